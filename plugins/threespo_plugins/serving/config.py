"""Options of every rollout that is a server."""

from __future__ import annotations

from dataclasses import dataclass

from threespo_bench.contracts.rollout import RolloutOptions, require
from threespo_bench.errors import UsageError


@dataclass
class ServerOptions(RolloutOptions):
    """Options of a rollout that starts a server, or uses one that runs already.

    Attributes:
        url: a server that runs already, http://HOST:PORT, on a file system that it shares with this process; it is given this run's weights.
        python: the interpreter of the environment in which a server is started; it is stopped at the end.
        gpu_memory_utilization: on a GPU, the share of its memory that the server takes for weights and for keys and values; the learner needs the rest.
        max_num_seqs: sequences that are generated at the same time.
        prefix_caching: keep keys and values of prompts for those that begin alike.
        eager: no compilation and no CUDA graphs: starts sooner, and is slower on a GPU.
        startup_seconds: time to come up.
        request_seconds: an answer that takes longer counts as lost, and the server as gone.
        weights_folder: folder in which weights are handed over; null means shared memory, or else where temporary files are.
        log: file for the server's output; null keeps it with the temporary files, and only if something went wrong.
    """

    url: str | None = None
    python: str | None = None
    gpu_memory_utilization: float = 0.4
    max_num_seqs: int = 256
    prefix_caching: bool = True
    eager: bool = True
    startup_seconds: float = 600.0
    request_seconds: float = 600.0
    weights_folder: str | None = None
    log: str | None = None

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        from threespo_plugins.serving.http import split_url

        super().validate()
        if self.url is not None:
            split_url(self.url)
            if self.python is not None:
                raise UsageError("rollout.url and rollout.python are both given", fix="url for a server that runs, python to have one started")
        require(0 < self.gpu_memory_utilization <= 1, "gpu_memory_utilization", self.gpu_memory_utilization, "in (0, 1]")
        require(self.max_num_seqs >= 1, "max_num_seqs", self.max_num_seqs, ">= 1")
        require(self.startup_seconds > 0, "startup_seconds", self.startup_seconds, "> 0")
        require(self.request_seconds > 0, "request_seconds", self.request_seconds, "> 0")
