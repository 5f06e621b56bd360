"""The launcher ``local``: runs on this machine, one in this process, or several in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, ClassVar

from threespo_bench.config.plain import from_plain
from threespo_bench.contracts.launcher import Cell, Launcher, LauncherConfig, Monitor
from threespo_bench.devices import Device, detect, one_each, visible
from threespo_bench.errors import BenchError
from threespo_bench.host import PluginHost
from threespo_bench.interruption import StopRequest
from threespo_bench.outcome import Outcome, failure
from threespo_bench.worker import Job, Worker, attempt


class LocalLauncher(Launcher):
    """One run at a time in this process; or ``jobs`` at a time, each in a process of its own, among which the GPUs are handed round.

    A process of its own gets one thread for NumPy; how many torch uses is the engine's option, a setting of the run, which can change its numbers.
    """

    Config: ClassVar[type[LauncherConfig]] = LauncherConfig
    title = "Runs on this machine, one in this process or several in processes of their own"

    def __init__(self, config: LauncherConfig, host: PluginHost, folder: Any) -> None:
        super().__init__(config, host, folder)
        self._running: dict[str, Worker] = {}
        self._stopping = False

    def launch(self, cells: Sequence[Cell], monitor: Monitor) -> None:
        """See the contract."""
        jobs = self.config.jobs or 1
        if jobs == 1 or len(cells) <= 1:
            self._one_by_one(cells, monitor)
        else:
            self._at_once(cells, monitor, jobs)

    def _one_by_one(self, cells: Sequence[Cell], monitor: Monitor) -> None:
        """The runner itself takes care of Ctrl-C."""
        for cell in cells:
            outcome = attempt(self._job(cell), self.host, monitor.progress(cell.name))
            monitor.ended(cell.name, outcome)
            if outcome.state == "interrupted":
                return

    def _at_once(self, cells: Sequence[Cell], monitor: Monitor, jobs: int) -> None:
        """Ctrl-C is passed on to the processes that run, and no further one is started."""
        devices, places = _devices(monitor), SimpleQueue[int]()
        for place in range(jobs):
            places.put(place)
        _warn_of_threads(cells, jobs, monitor)

        def interrupt(text: str) -> None:
            self._stopping = True
            monitor.say(text)
            for worker in list(self._running.values()):
                worker.interrupt()

        with StopRequest(interrupt), ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self._in_process, cell, monitor, devices, places) for cell in cells]
            try:
                for future in futures:
                    future.result()
            except KeyboardInterrupt:
                interrupt("stopping at once; the runs can be resumed")

    def _in_process(self, cell: Cell, monitor: Monitor, devices: Sequence[Device], places: SimpleQueue[int]) -> None:
        """In a thread that waits for the run's process. Nothing is reported if the user asked to stop before it was started."""
        if self._stopping:
            return
        place = places.get()
        try:
            outcome = self._work(cell, monitor, one_each(devices, place))
        except Exception as error:  # the process could not be started at all
            ended = failure(error)
            outcome = Outcome(None, "failed", ended.error, ended.fix, ended.exit_code)
        finally:
            places.put(place)
        monitor.ended(cell.name, outcome)

    def _work(self, cell: Cell, monitor: Monitor, environment: dict[str, str]) -> Outcome:
        worker = self._running[cell.name] = Worker(self._job(cell), self.host, environment)
        try:
            if self._stopping:
                worker.interrupt()
            return worker.wait(monitor.progress(cell.name))
        finally:
            worker.close()
            del self._running[cell.name]

    def _job(self, cell: Cell) -> Job:
        return Job(from_plain(cell.config, self.host), cell.name, cell.resume, cell.parent_tracker_run)


def _devices(monitor: Monitor) -> list[Device]:
    """What is handed round; nothing where all processes would get the same one anyway. Runs on the CPU need no driver, so its failure is only said."""
    try:
        devices = visible(detect())
    except BenchError as error:
        monitor.say(f"GPUs are not handed round: {error}")
        return []
    return devices if len(devices) > 1 or any(device.mig for device in devices) else []


def _warn_of_threads(cells: Sequence[Cell], jobs: int, monitor: Monitor) -> None:
    threads = max(int(cell.config["engine"]["options"].get("threads", 1)) for cell in cells)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads > 1 and jobs * threads > cores:
        monitor.say(f"{jobs} runs of {threads} threads each share {cores} cores, which makes all of them slower: use fewer jobs, or a smaller engine.threads")
