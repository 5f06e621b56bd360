"""Conformance checks for plugin authors: call them in a test, with your class. They raise AssertionError saying what is wrong.

from threespo_bench.testing import check_algorithm, check_engine, check_environment, check_rollout_server

def test_mine():
    check_algorithm(Mine)
    check_environment(MyWorld(MyWorld.Config()))
    check_engine(lambda: MyEngine(MyEngine.Config(), "path/of/a/model", seed=0))
    check_rollout_server(lambda rollout: Engine(Engine.Config(), "path/of/a/model", 0, rollout), Rollout("mine", MyServer.Config(), MyServer))
"""

from threespo_bench.testing.algorithms import check_algorithm
from threespo_bench.testing.batches import sample_turns
from threespo_bench.testing.engines import check_engine
from threespo_bench.testing.environments import check_environment
from threespo_bench.testing.rollout_servers import check_rollout_server

__all__ = ["check_algorithm", "check_engine", "check_environment", "check_rollout_server", "sample_turns"]
