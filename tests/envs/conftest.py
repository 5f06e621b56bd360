"""Fixtures that find the real ALFWorld data beside the checkout; without it the tests that need it are skipped."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from threespo_envs.alfred.game import Game
from threespo_envs.alfworld.games import GameCache, PackedGames

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Callable[..., Path]:
    """``shared_data("alfworld", "INDEX.json")`` is a path in the shared data; skips the test if it is not there."""

    def find(*parts: str) -> Path:
        path = SHARED.joinpath(*parts)
        if not path.exists():
            pytest.skip(f"needs the shared data: {path} is not there")
        return path

    return find


@pytest.fixture(scope="session")
def packed_games(shared_data: Callable[..., Path]) -> PackedGames:
    """All games of the benchmark."""
    return PackedGames(shared_data("alfworld"))


@pytest.fixture(scope="session")
def real_game(packed_games: PackedGames) -> Callable[[str, str], Game]:
    """``real_game(split, game_id)`` is a parsed game."""
    cache = GameCache()
    payloads: dict[str, dict[str, bytes | str]] = {}

    def load(split: str, game_id: str) -> Game:
        if split not in payloads:
            payloads[split] = {record.game_id: record.payload for record in packed_games.records(split)}
        return cache.load(f"{split}/{game_id}", game_id, payloads[split][game_id])

    return load


@pytest.fixture(scope="session")
def some_games(packed_games: PackedGames, real_game: Callable[[str, str], Game]) -> list[Game]:
    """Two dozen games of valid_unseen and valid_seen, of all task types."""
    games = []
    for split in ("valid_unseen", "valid_seen"):
        records = packed_games.records(split)
        games += [real_game(split, record.game_id) for record in records[:: len(records) // 12]]
    return games


@pytest.fixture(scope="session")
def transcripts(shared_data: Callable[..., Path]) -> list[dict[str, Any]]:
    """The episodes that were recorded from TextWorld."""
    with lzma.open(shared_data("alfworld_transcripts", "transcripts.jsonl.xz"), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
