"""The engine on Ray: the conformance kit, two ranks with two servers, and what happens when a process is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from threespo_bench.contracts.objective import Optimization, PolicyGradient
from threespo_bench.errors import EngineError
from threespo_bench.testing.engines import SAMPLING, TEXTS, chat, check_engine, credit_of, generate, turns_of
from threespo_plugins.verl_engine.config import VerlConfig
from threespo_plugins.verl_engine.engine import VerlEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def make_engine(model, **options):
    return VerlEngine(VerlConfig(**options), str(model), 0)


@pytest.fixture
def one_cluster():
    """Ray stays up from engine to engine."""
    from threespo_plugins.verl_engine import cluster

    config = VerlConfig()
    cluster.prepare_process(config)
    cluster.connect(config)
    yield
    cluster.disconnect()


def test_it_keeps_the_contract(model, one_cluster):
    check_engine(lambda: make_engine(model), tolerance=1e-4)


def test_two_ranks_with_a_server_each_and_lora(model, tmp_path):
    """LoRA adapters reach the servers: their log-probabilities are the learner's after an update."""
    engine = make_engine(model, ranks=2, lora_rank=4, lora_targets=["q_proj", "v_proj"])
    try:
        answers = generate(engine, TEXTS)
        turns = turns_of(answers)
        before = engine.learner.score(turns)
        np.testing.assert_allclose(before, turns.old_log_probs, atol=1e-4)
        engine.learner.update(turns, credit_of(turns), PolicyGradient(), Optimization(learning_rate=2e-2))
        with pytest.raises(EngineError, match="not published"):
            generate(engine, TEXTS)
        assert engine.publish() == 1
        moved = turns_of(generate(engine, [TEXTS[i % len(TEXTS)] for i in range(16)], range(16)))
        np.testing.assert_allclose(engine.learner.score(moved), moved.old_log_probs, atol=1e-4)
        assert np.abs(engine.learner.score(turns) - before).max() > 1e-2
        engine.learner.save(tmp_path / "state")
        assert len(list((tmp_path / "state" / "actor").glob("model_world_size_2_*"))) == 2
    finally:
        engine.close()


@pytest.mark.parametrize("options", [{"ranks": 2, "rollout_ranks": 1}, {"rollout_ranks": 2, "lora_rank": 4}], ids=["two ranks", "two servers with LoRA"])
def test_servers_with_ranks_of_their_own(model, tmp_path, options):
    """Published weights arrive in other processes, again after loading a checkpoint; a server that is gone is one clear line, and no wait."""
    import ray

    engine = make_engine(model, **options)
    try:
        assert len(engine._deployment._replicas()) == options["rollout_ranks"]
        turns = turns_of(generate(engine, TEXTS))
        before = engine.learner.score(turns)
        np.testing.assert_allclose(before, turns.old_log_probs, atol=1e-4)
        engine.learner.save(tmp_path / "state")
        engine.learner.update(turns, credit_of(turns), PolicyGradient(), Optimization(learning_rate=2e-2))
        with pytest.raises(EngineError, match="not published"):
            generate(engine, TEXTS)
        assert engine.publish() == 1
        moved = turns_of(generate(engine, [TEXTS[i % len(TEXTS)] for i in range(16)], range(16)))  # enough requests for every server
        np.testing.assert_allclose(engine.learner.score(moved), moved.old_log_probs, atol=1e-4)
        assert np.abs(engine.learner.score(turns) - before).max() > 1e-2
        engine.learner.load(tmp_path / "state")
        back = turns_of(generate(engine, TEXTS))
        np.testing.assert_array_equal(back.response_ids, turns.response_ids)
        np.testing.assert_allclose(back.old_log_probs, turns.old_log_probs, atol=1e-4)
        replica = engine._deployment._replicas()[-1]
        ray.kill(replica.servers[0])
        with pytest.raises(EngineError, match="worker of the rollout is gone") as found:
            engine.publish()
        assert "\n" not in str(found.value) and "--resume" in found.value.fix
        ray.kill(replica.workers[0])
        with pytest.raises(EngineError, match="worker of the rollout is gone"):
            engine.publish()
    finally:
        engine.close()


def test_a_killed_worker_is_one_clear_line(model):
    engine = make_engine(model)
    try:
        turns = turns_of(generate(engine, TEXTS))
        (pid,) = engine._deployment._policy_workers.all("process_id")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="worker of the policy is gone") as found:
            engine.learner.update(turns, credit_of(turns), PolicyGradient(), Optimization())
        assert "\n" not in str(found.value) and "--resume" in found.value.fix
    finally:
        engine.close()


def test_a_killed_server_is_one_clear_line(model):
    engine = make_engine(model)
    try:
        import ray

        server = engine._deployment._manager.get_replicas()[0].servers[0]
        ray.kill(server)
        with pytest.raises(EngineError, match="worker of the rollout is gone"):
            asyncio.run(engine.rollout.generate(chat("w1"), 0, SAMPLING))
    finally:
        engine.close()


def test_nothing_outlives_a_killed_driver(model):
    """Ray and all workers end with the process that started them, however it ends."""
    program = f"""
import sys, time
from threespo_plugins.verl_engine.config import VerlConfig
from threespo_plugins.verl_engine.engine import VerlEngine
if __name__ == "__main__":
    engine = VerlEngine(VerlConfig(), {str(model)!r}, 0)
    print("up", flush=True)
    time.sleep(600)
"""
    below = []
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "up\n"
        below = descendants(process.pid)
        assert len(below) >= 4, "Ray and a worker should be running"
        process.kill()
        process.wait()
        deadline = time.monotonic() + 100  # processes that Ray keeps ready and never used take a minute
        while (left := [pid for pid in below if alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left, [command(pid) for pid in left]
    finally:
        process.kill()
        for pid in filter(alive, below):
            os.kill(pid, signal.SIGKILL)


def descendants(root):
    """Ids of all processes below one."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, left = [], [root]
    while left:
        parent = left.pop()
        below = [pid for pid, above in parents.items() if above == parent]
        found += below
        left += below
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().replace("\0", " ")[:120]
    except OSError:
        return ""
