"""A study's screen, made of its state: lines of text for any width, on a terminal or in a page."""

from collections.abc import Iterable

from rich.text import Text

from raybench.core.text import clean
from raybench.results.live.durations import spent
from raybench.results.live.fold import cut, fold
from raybench.results.live.glyphs import Glyphs, bar
from raybench.results.live.running import running_lines
from raybench.results.live.state import LiveState
from raybench.results.live.words import (
    PHASES,
    STARTING,
    best_words,
    cause_words,
    follows_words,
    left_words,
    reached_words,
    workers_words,
)

LEAST_WIDTH = 20
NAMED = 9
"""Columns of the names on the left."""
MOST_LINES = 3
"""Lines of one text before its middle goes."""
MOST_CAUSES = 5
"""Causes of failures that the screen has room for."""
BAR = 60
LEAST_ROWS = 4
"""Lines for the running runs, however low the terminal is."""


def screen_lines(
    state: LiveState,
    at: float,
    *,
    width: int,
    height: int = 40,
    glyphs: Glyphs,
    has_best: bool = True,
    notes: Iterable[str] = (),
) -> list[Text]:
    """Return the screen's lines, none wider than `width`, `height` of them if that can be.

    `has_best` is false where no run is the best of the others; `notes` stand below the head.
    """
    width = max(width, LEAST_WIDTH)
    top = _head(state, at, width, glyphs)
    top += [line for note in notes for line in _folded(note, width, style="yellow")]
    if has_best:
        best, label = best_words(state), _best_label(state)
        top += _named("best", f"{best}: {label}" if label else best, width, style="green")
        top += _named("target", reached_words(state), width)
    if not state.is_over:
        top += _named("workers", workers_words(state, at), width)
    bottom = _failures(state, width)
    room = max(height - len(top) - len(bottom) - 1, LEAST_ROWS)
    rows = running_lines(state, at, width=width, height=room, glyphs=glyphs)
    if not rows and not state.pace.num_done and not state.is_over:
        rows = [Text(STARTING)]
    spaced = [Text(), *rows] if rows and len(rows) < room else rows
    return [*top, *spaced, *bottom]


def _head(state: LiveState, at: float, width: int, glyphs: Glyphs) -> list[Text]:
    pace = state.pace
    words = f"{PHASES.get(state.phase, state.phase)}: {pace.num_done}"
    words += " done" if pace.num_runs is None else f" of {pace.num_runs} done"
    in_all = f"{state.num_finished} runs in all" if state.is_over else ""
    parts = [words, in_all, spent(at - state.began_s), left_words(state, at)]
    lines = _folded(", ".join(part for part in parts if part), width, style="bold")
    if pace.num_runs:
        lines.append(Text(bar(pace.num_done / pace.num_runs, min(width, BAR), glyphs), "cyan"))
    return [*lines, *_folded(follows_words(state), width, style="dim")]


def _best_label(state: LiveState) -> str:
    best = state.best
    return "" if best is None else f"trial {best.trial}  {state.label(best.spec)}"


def _failures(state: LiveState, width: int) -> list[Text]:
    causes = sorted(state.causes.values(), key=lambda cause: -cause.count)
    lines: list[Text] = []
    for cause in causes[:MOST_CAUSES]:
        words = cut(clean(cause_words(cause)), max(width - NAMED, 8))
        lines += _named("" if lines else "failed", words, width, style="red")
    more = sum(cause.count for cause in causes[MOST_CAUSES:])
    return [*lines, *_named("", f"{more} of other causes", width)] if more else lines


def _named(name: str, text: str, width: int, *, style: str = "") -> list[Text]:
    """Return a text with its name on the left; nothing for an empty one."""
    if not text:
        return []
    found = _folded(text, width - NAMED, style=style)
    names = [name, *[""] * (len(found) - 1)]
    return [
        Text.assemble((one.ljust(NAMED), "dim"), line)
        for one, line in zip(names, found, strict=True)
    ]


def _folded(text: str, width: int, *, style: str = "") -> list[Text]:
    """Return a text in MOST_LINES lines at most; nothing for an empty one."""
    text = clean(text)
    lines = fold(text, width)
    if len(lines) > MOST_LINES:
        lines = fold(cut(text, MOST_LINES * width - width // 2), width)[:MOST_LINES]
    return [Text(line, style) for line in lines]
