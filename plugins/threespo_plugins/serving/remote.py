"""Rollout servers behind HTTP: one that is started and stopped here, or one that runs already. What an engine says and answers is left to its plugin."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from threespo_bench.contracts.rollout import RolloutServer, ServedModel, ServerGone, Weights
from threespo_bench.errors import EngineError, StorageError
from threespo_plugins.serving.config import ServerOptions
from threespo_plugins.serving.http import JsonClient, StatusError
from threespo_plugins.serving.labels import Labels
from threespo_plugins.serving.process import ServerProcess, free_port
from threespo_plugins.serving.pulse import Pulse
from threespo_plugins.serving.weights import StoredWeights, WeightsFolder


class RemoteServer(RolloutServer):
    """Requests and weights over HTTP. Subclasses say where the server is, in ``_client``.

    Attributes:
        title: what messages call the engine.
        health_seconds: time that it has to say that it is well.
    """

    title: ClassVar[str]
    health_seconds: ClassVar[float] = 2.0
    _client: JsonClient

    def __init__(self, config: ServerOptions, model: ServedModel) -> None:
        super().__init__(config, model)
        self._labels = Labels()
        self._folder: WeightsFolder | None = None
        self._pulse = Pulse(self._alive, lambda: ServerGone(f"{self.title} does not answer, and does not say that it is well"))

    def publish(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.publish`. Requests under way are given up, and :meth:`complete` asks them again."""
        if self._folder is None:
            self._folder = WeightsFolder(self.config.weights_folder)
        with self._folder.holding(self._tensors(weights), self.model.dtype) as folder:
            self._load(folder, version)

    def close(self) -> None:
        """See :meth:`RolloutServer.close`."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    @abstractmethod
    def _load(self, folder: Path, version: int) -> None:
        """Let the server read the weights in ``folder``. If that fails, what it generates carries no version."""

    def _tensors(self, weights: Weights) -> Iterator[tuple[str, Any]]:
        """(name, tensor) in the form in which the server has to get them."""
        return weights.tensors()

    def _answers(self) -> bool:
        """The server is there, and says that it is well."""
        return self._client.answers("/health", self.health_seconds)

    def _alive(self) -> bool:
        """It is there, as far as that can be told at any time: asked while an answer lets one wait. By default nothing is known against it."""
        return True

    def _healthy(self) -> bool:
        """The engine is still alive after an answer that was an error."""
        return self._answers()

    async def _ask(self, path: str, payload: Any) -> Any:
        """The answer to a request beside others. Raises ServerGone if the engine died, and what :meth:`JsonClient.request` raises."""
        try:
            return (await self._pulse.guard(self._client.request("POST", path, payload))).body
        except StatusError as error:
            if error.status >= 500 and not await asyncio.to_thread(self._healthy):
                raise self._died(error) from error
            raise

    def _post(self, path: str, payload: Any = None) -> Any:
        """The same, blocking."""
        try:
            return self._client.request_now("POST", path, payload, alive=self._alive).body
        except StatusError as error:
            if error.status >= 500 and not self._healthy():
                raise self._died(error) from error
            raise

    def _died(self, error: StatusError) -> ServerGone:
        return ServerGone(f"{self.title}'s engine died: {error}")


class OwnServer(RemoteServer):
    """A server in an environment of its own, which lives no longer than this process."""

    def __init__(self, config: ServerOptions, model: ServedModel) -> None:
        super().__init__(config, model)
        self._process: ServerProcess | None = None
        self._log: Path | None = None
        self._well = False

    @abstractmethod
    def _command(self, port: int) -> list[str]:
        """Starts the server, which listens on ``port`` of this machine only."""

    @abstractmethod
    def _environment(self) -> dict[str, str]:
        """Variables of its process."""

    @abstractmethod
    def _foreign(self) -> str | None:
        """What a server that answers and is not ours says of itself; None if it is ours."""

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        self._well = False
        port = free_port()
        self._folder = WeightsFolder(self.config.weights_folder)
        if self._log is None:
            self._log = Path(self.config.log) if self.config.log else _temporary_log(self.title)
        environment = {**self._environment(), "PYTHONPATH": None}
        self._process = ServerProcess(self.title, self._command(port), self._log, environment, remove=(self._folder.path,))
        self._client = JsonClient(f"http://127.0.0.1:{port}", self.config.request_seconds, self.config.max_num_seqs)
        self._process.start()
        try:
            self._process.wait(self._answers, self.config.startup_seconds, say)
        except KeyboardInterrupt:
            self._well = True  # nobody needs its output
            raise
        foreign = self._foreign()
        if foreign is not None:
            raise EngineError(f"another server, {foreign}, took the port {port} of {self.title}", fix="try again")
        self._well = True

    def publish(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.publish`. Raises ServerGone too if the guard of a server that ended has removed the folder for weights."""
        try:
            super().publish(weights, version)
        except StorageError as error:
            if self._answers():
                raise
            raise ServerGone(f"{self.title} has ended, and its folder for weights with it") from error

    @property
    def processes(self) -> list[int]:
        """Ids of the server's processes, its main process first."""
        return self._process.ids if self._process is not None else []

    def restart(self, weights: Weights, version: int) -> None:
        """See :meth:`RolloutServer.restart`."""
        self._well = False  # its output is worth keeping
        say(f"{self.title} is gone and is started again (what it said: {self._log})")
        super().restart(weights, version)

    def close(self) -> None:
        """See :meth:`RolloutServer.close`."""
        if self._process is not None:
            if self._well and self._process.alive and self._log is not None and not self.config.log:
                self._log.unlink(missing_ok=True)
            self._process.close()
            self._client.close()
            self._process = self._log = None
        super().close()


class RunningServer(RemoteServer):
    """A server that somebody started, on the same file system."""

    def __init__(self, config: ServerOptions, model: ServedModel) -> None:
        super().__init__(config, model)
        self._client = JsonClient(config.url, config.request_seconds, config.max_num_seqs)

    @abstractmethod
    def _check(self) -> None:
        """Raises EngineError unless the server is set up as needed, and has a model like ours."""

    def start(self) -> None:
        """See :meth:`RolloutServer.start`."""
        self._check()
        self.publish(StoredWeights(self.model.folder), 0)

    def restart(self, weights: Weights, version: int) -> None:
        """It is not ours to start: wait until it is there again."""
        deadline = time.monotonic() + self.config.startup_seconds
        say(f"waiting for the server at {self.config.url} to come back")
        while not self._answers():
            if time.monotonic() > deadline:
                raise EngineError(
                    f"rollout.url={self.config.url} did not come back within {self.config.startup_seconds:g} s", fix="start it, and resume the run"
                )
            time.sleep(0.5)
        self.start()
        self.publish(weights, version)

    def close(self) -> None:
        """See :meth:`RolloutServer.close`. The server goes on, with the weights that it got last."""
        self._client.close()
        super().close()


@contextmanager
def resuming(resume: Callable[[], object]) -> Iterator[None]:
    """Let a paused server go on at the end, unless it is gone; if that fails after an error, the first one counts, Ctrl-C among them."""
    try:
        yield
    except ServerGone:
        raise
    except BaseException:
        with suppress(EngineError):
            resume()
        raise
    resume()


def say(text: str) -> None:
    """Tell the user, beside the output of a command."""
    print(text, file=sys.stderr, flush=True)


def _temporary_log(title: str) -> Path:
    number, name = tempfile.mkstemp(prefix=f"threespo-{title.lower()}-", suffix=".log")
    os.close(number)
    return Path(name)
