"""Named random streams."""

from __future__ import annotations

import subprocess
import sys

import pytest

from threespo_bench.seeding import Streams


def test_the_numbers_of_a_stream_never_change() -> None:
    """Recorded values: another number here would be another experiment under the same seed."""
    assert Streams(0).integer("sample", 3, 1, 7) == 5656581044379902818
    assert Streams(1).integer("sample", 3, 1, 7) == 1023013973199736881
    assert Streams(0).generator("tasks", 0).permutation(6).tolist() == [4, 5, 1, 2, 0, 3]


def test_a_stream_is_addressed_and_not_advanced() -> None:
    streams = Streams(5)
    first = streams.integer("sample", "task", 2)
    streams.generator("other").random(100)
    streams.integer("sample", "task", 1)
    assert streams.integer("sample", "task", 2) == first
    assert streams.generator("tasks", 1).random(3).tolist() == streams.generator("tasks", 1).random(3).tolist()


def test_names_keys_and_seeds_tell_streams_apart() -> None:
    addresses = [("sample",), ("reset",), ("sample", 1), ("sample", 11), ("sample", 1, 1), ("sample", "1", "2"), ("sample", 12), ("sample1", 2)]
    numbers = {Streams(seed).integer(*address) for seed in range(50) for address in addresses}
    assert len(numbers) == 50 * len(addresses)


def test_numbers_are_seeds_of_63_bits() -> None:
    numbers = [Streams(0).integer("x", i) for i in range(500)]
    assert all(0 <= number < 2**63 for number in numbers)
    assert 0.4 < sum(number < 2**62 for number in numbers) / 500 < 0.6


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_other_processes_draw_the_same(hash_seed: str) -> None:
    code = "from threespo_bench.seeding import Streams; print(Streams(3).integer('reset', 'household/train/00001'))"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True)
    assert done.stdout.strip() == str(Streams(3).integer("reset", "household/train/00001")), done.stderr
