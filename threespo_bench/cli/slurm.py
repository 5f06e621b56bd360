"""``threespo-bench slurm``: a comparison as one Slurm job on several nodes, with a Ray cluster of its own."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from threespo_bench.cli.comparison_request import Options, Request, request
from threespo_bench.cli.output import load_host, note, say, warn
from threespo_bench.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threespo_bench.contracts.engine import Engine
    from threespo_bench.experiment import PlannedRun
    from threespo_bench.host import PluginHost

_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
_PROFILE = re.compile(r"(\d+c\.)?\d+g\.\d+gb([+-][\w.+-]+)?|full")
_RAY = "ray"
_EPILOG = """\
The job starts Ray on its nodes, waits until all have joined, and runs `compare EXPERIMENT.yaml` on the first one. Before the time limit the runs stop with a
checkpoint, and the job is queued again. docs/clusters.md tells the rest, also about MIG.

threespo-bench slurm experiment.yaml --nodes 2 --gpus 8 --cpus 32 --time 8:00:00 --partition gpu --dry-run

threespo-bench slurm experiment.yaml --nodes 4 --gres gpu:1g.10gb:7 --mig 1g.10gb --setup 'module load cuda' engine=verl
"""


@dataclass(frozen=True)
class Job:
    """What the scripts are made from; the fields are the options of the command."""

    nodes: int
    cpus: int
    gpus: int
    gres: str | None
    mem: str | None
    time: str
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    mig: str | None
    setup: tuple[str, ...]
    python: str
    signal_seconds: int
    requeues: int
    wait_seconds: int

    def asked(self) -> list[str]:
        """What sbatch is told beside what every job has."""
        values = {"gres": self.gres, "mem": self.mem, "partition": self.partition, "account": self.account, "qos": self.qos, "constraint": self.constraint}
        values["gpus-per-node"] = str(self.gpus) if self.gpus else None
        return [f"--{name}={shlex.quote(value)}" for name, value in values.items() if value]


@click.command("slurm", epilog=_EPILOG)
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Nodes of the job.")
@click.option("--cpus", type=click.IntRange(min=1), default=8, show_default=True, help="CPUs of each node.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, show_default=True, help="GPUs of each node.")
@click.option("--gres", metavar="TEXT", help="Generic resources of each node instead of --gpus, e.g. gpu:1g.10gb:7.")
@click.option("--mem", metavar="TEXT", help="Memory of each node, e.g. 64G.")
@click.option("--time", metavar="TIME", default="4:00:00", show_default=True, help="Time limit, as sbatch takes it.")
@click.option("--partition", metavar="NAME", help="As for sbatch; so are the next three.")
@click.option("--account", metavar="NAME")
@click.option("--qos", metavar="NAME")
@click.option("--constraint", metavar="TEXT")
@click.option("--mig", metavar="PROFILE", help="The MIG profile that all GPUs must have, e.g. 1g.10gb, or full for GPUs that are not cut.")
@click.option("--setup", multiple=True, metavar="COMMAND", help="A shell command before all else, e.g. 'module load cuda'; can be given several times.")
@click.option("--python", metavar="PATH", default=sys.executable, help="The interpreter on the nodes, by default this one; `ray` is looked for beside it.")
@click.option("--signal-seconds", type=click.IntRange(min=1), default=300, show_default=True, help="So long before the time limit the runs are told to stop.")
@click.option("--requeues", type=click.IntRange(min=0), default=10, show_default=True, help="How often the job is queued again after its time limit.")
@click.option("--wait-seconds", type=click.IntRange(min=1), default=300, show_default=True, help="How long the nodes may take to join the Ray cluster.")
@click.option("--dry-run", is_flag=True, help="Check everything and print the scripts; write and submit nothing.")
@click.argument("file", metavar="EXPERIMENT.yaml")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.pass_context
def command(context: click.Context, dry_run: bool, file: str, overrides: tuple[str, ...], **options: Any) -> int:
    """Write the scripts of a job that carries out a comparison on several nodes with Ray, and submit it where there is sbatch."""
    job = Job(**options)
    _check(job, file)
    host = load_host(context)
    asked = request(Options(words=(file, *overrides)), host)
    planned = asked.plan(host)
    _check_gpus(planned, host, job)
    extra = _for_ray(asked, planned, host, job)
    folder = _folder(planned)
    scripts = render(job, asked.experiment, folder, ["compare", str(Path(file).resolve()), "--no-progress", *overrides, *extra])
    if dry_run:
        for name, text in scripts.items():
            say(f"# ---- {folder / name}")
            say(text)
        note(f"{len(planned)} runs; nothing was written or submitted")
        return 0
    _write(folder, scripts)
    return _submit(folder)


def _check(job: Job, file: str) -> None:
    if not file.lower().endswith((".yaml", ".yml")):
        raise UsageError(f"{file} is no experiment file", fix="name a .yaml file first; docs/experiments.md has examples")
    if not _TIME.fullmatch(job.time):
        raise UsageError(f"--time {job.time}: is no time limit", fix="write minutes, H:M:S or D-H:M:S")
    if job.mig and not _PROFILE.fullmatch(job.mig):
        raise UsageError(f"--mig {job.mig}: is no MIG profile", fix="as nvidia-smi -L lists it, e.g. 1g.10gb, or full")
    if job.gres and job.gpus:
        raise UsageError("--gpus and --gres both say what GPUs a node gives", fix="leave one of them out")


def _check_gpus(planned: Sequence[PlannedRun], host: PluginHost, job: Job) -> None:
    """Raises UsageError if a run takes more GPUs than the whole job has; what ``--gres`` gives is not known here."""
    have = job.nodes * job.gpus
    for run in planned:
        engine: type[Engine] = host.find("engines", run.config.engine.name).load()
        need = engine.gpus(run.config.engine.options)
        if need > have and not job.gres:
            has = f"{job.nodes} node{'s' * (job.nodes != 1)} with {job.gpus} each" if job.gpus else "none"
            fix = f"--gpus {-(-need // job.nodes)}, more --nodes, or fewer ranks of the engine"
            raise UsageError(f"{run.name} takes {need} GPU{'s' * (need != 1)} (engine={run.config.engine.name}), and the job has {has}", fix=fix)


def _for_ray(asked: Request, planned: Sequence[PlannedRun], host: PluginHost, job: Job) -> list[str]:
    """The overrides that make the comparison use the job's Ray cluster; a warning if nothing of it would."""
    launcher = asked.choose_launcher(host)
    if launcher.name == "slurm":
        raise UsageError("the launcher slurm submits jobs itself", fix="use threespo-bench compare on the login node, or another launcher in this job")
    if launcher.name == _RAY:
        return ["launcher.address=auto"]
    if all(getattr(run.config.engine.options, "ray_address", "") is None for run in planned):
        return ["engine.ray_address=auto"]
    engines = {run.config.engine.name for run in planned}
    if job.nodes > 1 and not any(_RAY in host.find("engines", name).entry.tags for name in engines):
        warn(f"neither the launcher {launcher.name} nor the engine {', '.join(sorted(engines))} uses Ray: only the first of {job.nodes} nodes will work")
    return []


def _folder(planned: Sequence[PlannedRun]) -> Path:
    from threespo_bench.experiment import experiment_folder

    return experiment_folder(planned[0].config).resolve() / "slurm"


def render(job: Job, name: str, folder: Path, comparison: Sequence[str], *, poll_seconds: float = 2.0) -> dict[str, str]:
    """The scripts by file name: ``job.sh`` for sbatch, and ``node.sh``, which it starts on every node.

    Args:
        name: of the experiment. folder: for the scripts and their logs. comparison: the words after ``threespo-bench``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    syntax: Any = {"comment_start_string": "{%#", "comment_end_string": "#%}", "trim_blocks": True, "keep_trailing_newline": True}  # ${#array[@]} is no comment
    jinja = Environment(loader=PackageLoader("threespo_bench.cli"), undefined=StrictUndefined, **syntax)
    jinja.filters["quote"] = lambda value: shlex.quote(str(value))
    beside = Path(job.python).parent / "ray"
    values = {
        **{field: getattr(job, field) for field in ("nodes", "cpus", "time", "signal_seconds", "requeues", "wait_seconds", "setup", "python")},
        "name": f"3spo-{name}",
        "asked": job.asked(),
        "folder": str(folder),
        "job_script": shlex.quote(str(folder / "job.sh")),
        "node_script": str(folder / "node.sh"),
        "ray": str(beside) if beside.is_file() else "ray",
        "expect": f" --expect {shlex.quote(job.mig)}" if job.mig else "",
        "workdir": str(Path.cwd()),
        "comparison": list(comparison),
        "poll_seconds": poll_seconds,
    }
    return {f"{part}.sh": jinja.get_template(f"slurm_{part}.sh.j2").render(values) for part in ("job", "node")}


def _write(folder: Path, scripts: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in scripts.items():
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)
    except OSError as error:
        raise StorageError(f"the scripts cannot be written in {folder}: {error.strerror or error}") from error
    say(f"written: {', '.join(str(folder / name) for name in scripts)}")


def _submit(folder: Path) -> int:
    script = folder / "job.sh"
    if shutil.which("sbatch") is None:
        say(f"there is no sbatch here; on a login node of the cluster: sbatch {shlex.quote(str(script))}")
        return 0
    done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise UsageError(f"sbatch refused the job: {said or f'code {done.returncode}'}", fix=f"change the options, or edit {script} and submit it yourself")
    number = done.stdout.strip().partition(";")[0]
    say(f"submitted: job {number}; its log is {folder / f'{number}.log'}")
    return 0
