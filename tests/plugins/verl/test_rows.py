"""Rows of turns to tensors and back."""

from __future__ import annotations

import numpy as np
import pytest

from tests.plugins.verl.recorded import recorded_turns


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("number", [1, 2, 7, 24])
def test_dealing_gives_each_rank_as_many_rows_of_like_length(rank, ranks, number):
    from threespo_plugins.verl_engine.rows import deal

    rng = np.random.default_rng(number)
    lengths, rows = rng.integers(1, 100, size=number), rng.permutation(50)[:number]
    dealt = deal(lengths, rows, ranks)
    assert len(dealt.rows) % ranks == 0 and len(dealt.rows) - number < ranks
    assert sorted(dealt.rows[dealt.real]) == sorted(rows)
    if number >= 3 * ranks:
        known = dict(zip(rows.tolist(), lengths.tolist(), strict=True))
        loads = [sum(known[row] for row in part) for part in dealt.rows.reshape(ranks, -1).tolist()]
        assert max(loads) - min(loads) <= 2 * lengths.max()


def test_answers_find_their_rows_again(rank):
    import torch

    from threespo_plugins.verl_engine.rows import deal, read, tensors

    turns = recorded_turns(lambda turns: np.zeros(turns.response_mask.shape))
    rows = np.flatnonzero(turns.real)[::2]
    lengths = np.array([len(turns.prompt_ids[row]) for row in rows])
    dealt = deal(lengths, rows, 4)
    batch = tensors(turns, dealt, {"advantages": turns.old_log_probs}, 16)
    shifted = [torch.roll(sequence, -1).double() for sequence in batch["input_ids"].unbind()]  # at each position, the token that it predicts
    found = read(torch.nested.as_nested_tensor(shifted, layout=torch.jagged), turns, dealt)
    expected = np.where(turns.response_mask & np.isin(np.arange(len(turns)), rows)[:, None], turns.response_ids, 0)
    np.testing.assert_array_equal(found, expected)
    assert not batch["mask"][~torch.from_numpy(dealt.real)].any()
    assert batch["max_token_len_per_gpu"] == max(len(sequence) for sequence in shifted)
