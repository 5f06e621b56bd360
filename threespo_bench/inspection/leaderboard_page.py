"""The leaderboard as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from threespo_bench.inspection.leaderboard import Board, Standing

_STYLE = """\
:root { color-scheme: light dark; --page: #fff; --ink: #22262b; --muted: #5d666f; --rule: #dfe3e8; --bar: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --page: #15181b; --ink: #e6e9ec; --muted: #a0a8b0; --rule: #343a41; --bar: #5db7f0; } }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem; background: var(--page); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: left; border-bottom: 1px solid var(--rule); white-space: nowrap; }
td:nth-child(2) { white-space: normal; font-weight: 600; }
.muted, thead { color: var(--muted); font-size: .88rem; }
.track { position: relative; width: 10rem; height: .9rem; background: var(--rule); border-radius: 3px; }
.track i { position: absolute; top: 0; bottom: 0; left: 0; background: var(--bar); border-radius: 3px; opacity: .55; }
.track b { position: absolute; top: .38rem; height: .14rem; background: var(--ink); }
"""
HEAD = ("rank", "algorithm", "success", "interval", "", "from", "seeds", "env steps", "budget")


def page(boards: Sequence[Board], title: str, explanation: str) -> str:
    """The page; ``explanation`` says what the numbers are."""
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="muted">{escape(explanation)}</p>', *(_board(board) for board in boards)]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = (
        f'<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{escape(title)}</title>\n<style>\n{_STYLE}</style>'
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n' + "\n".join(parts) + "\n</body>\n</html>\n"


def cells(rank: int, row: Standing) -> tuple[str, ...]:
    """A row's texts in the order of :data:`HEAD`; the bar's place is empty."""
    interval = "" if row.interval is None else f"{row.interval[0]:.1%} to {row.interval[1]:.1%}"
    seeds = f"{len(row.seeds)}: {' '.join(map(str, row.seeds))}" + (f" ({row.older} older left out)" if row.older else "")
    start = "" if row.start is None else f"{row.start:.1%}"
    return (str(rank), row.label, f"{row.success:.1%}", interval, "", start, seeds, f"{row.env_steps:,.0f}", row.budget)


def _board(board: Board) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in HEAD)
    rows = "\n".join(_row(rank, row) for rank, row in enumerate(board.standings, 1))
    return f'<h2>{escape(board.environment)}</h2>\n<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def _row(rank: int, row: Standing) -> str:
    texts = [f"<td>{escape(text)}</td>" for text in cells(rank, row)]
    mark = ""
    if row.interval is not None:
        low, high = row.interval
        mark = f'<b style="left: {100 * low:.1f}%; width: {100 * (high - low):.1f}%"></b>'
    texts[HEAD.index("")] = f'<td><div class="track"><i style="width: {100 * row.success:.1f}%"></i>{mark}</div></td>'
    return f"<tr>{''.join(texts)}</tr>"
