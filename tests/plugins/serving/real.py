"""What the tests with a real server of any engine have in common."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import numpy as np
import pytest

from threespo_bench.errors import EngineError
from threespo_plugins.serving.remote import OwnServer, RunningServer
from threespo_plugins.serving.rollout import ChosenServer
from threespo_plugins.serving.weights import StoredWeights


def kill(server: ChosenServer) -> None:
    """As a crash, or the kernel that is out of memory, would."""
    os.kill(server.processes[0], signal.SIGKILL)
    time.sleep(1)


def check_weights_of_another_program(running: OwnServer, other: RunningServer) -> None:
    """Answers from weights that ``other`` published to the same server are refused."""
    running.publish(StoredWeights(running.model.folder), 3)
    other.start()
    with pytest.raises(EngineError, match="stale weights: tokens came from weights labelled"):
        asyncio.run(running.complete(np.array([6, 7], np.int32), 0, 1.0, 4))
    other.close()
