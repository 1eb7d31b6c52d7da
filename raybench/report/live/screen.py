"""A study's screen, made of its state: lines of text for any width, on a terminal or in a page.

Runs that have not ended are a table of as many columns and rows as there is room for.
"""

import html
import importlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from raybench.report.live.state import LiveRun, LiveState
from raybench.report.live.words import (
    BLOCKS,
    PHASES,
    STARTING,
    Glyphs,
    bar,
    best_words,
    cause_words,
    cut,
    fold,
    follows_words,
    glyphs_for,
    left_words,
    reached_words,
    span,
    sparkline,
    spent,
    standing_words,
    workers_words,
)
from raybench.spec.text import clean

GAP = "  "
CURVE = 16
"""Characters of a curve at most."""
LEAST_CURVE = 6
COLUMNS: tuple[tuple[str, ...], ...] = (("value", "train", "speed"), ("value", "train"), ("value",))
"""Numbers that are shown, by how much room there is."""
TITLE = "configuration"
LONGEST_NAME = 20
UNKNOWN = "recorded when it ends"
"""The configuration of a trial of which only evaluations were read."""


def running_lines(
    state: LiveState, at: float, *, width: int, height: int, glyphs: Glyphs
) -> list[Text]:
    """Return a head and a line or two for each run, those that train first; none without runs.

    At most `height` lines: the last one then counts the runs that are left out.
    """
    runs = sorted(state.runs.values(), key=lambda run: run.evaluation is None)
    if not runs:
        return []
    columns = _Columns(runs, width)
    low, high = _scale(runs, state.target)
    lines = [columns.head()]
    for number, run in enumerate(runs):
        curve = sparkline(run.values, columns.curve, glyphs, low=low, high=high)
        own = columns.lines(run, curve, standing_words(state, run, at))
        is_last = number == len(runs) - 1
        if number and len(lines) + len(own) > (height if is_last else height - 1):
            return [*lines, _left_out(runs[number:], width)]
        lines += own
    return lines


def _left_out(runs: Sequence[LiveRun], width: int) -> Text:
    training = sum(run.evaluation is not None for run in runs)
    words = f"and {len(runs)} more: {training} training, {len(runs) - training} not yet"
    return Text(cut(words, width), "dim")


class _Columns:
    """Which columns there is room for, and how wide each is."""

    def __init__(self, runs: Sequence[LiveRun], width: int) -> None:
        self._width = width
        self._name = max(5, *(min(cell_len(clean(run.name)), LONGEST_NAME) for run in runs))
        self._titles = {"value": runs[0].metric.words, "train": "train s", "speed": "samples/s"}
        cells = [_cells(run) for run in runs]
        wide = {
            key: max(len(title), *(len(row[key]) for row in cells))
            for key, title in self._titles.items()
        }
        label = max(len(TITLE), *(cell_len(clean(_label(run))) for run in runs))
        self._label, self.has_label = label, False
        for keys in (("value", "train", "speed"), ("value", "train")):
            if self._room(wide, keys) - len(GAP) - label >= LEAST_CURVE:
                self._numbers, self.has_label = {key: wide[key] for key in keys}, True
                break
        else:  # configurations get lines of their own
            fitting = [some for some in COLUMNS if self._room(wide, some) >= LEAST_CURVE]
            self._numbers = {key: wide[key] for key in (*fitting, ())[0]}
        room = self._room(wide, tuple(self._numbers))
        self.curve = max(min(CURVE, room - (len(GAP) + label if self.has_label else 0)), 0)

    def _room(self, wide: Mapping[str, int], keys: Sequence[str]) -> int:
        """Return what is left beside the name and some numbers, the gap before it taken off."""
        return self._width - self._name - sum(len(GAP) + wide[key] for key in keys) - len(GAP)

    def head(self) -> Text:
        """Return the titles."""
        numbers = [self._titles[key].rjust(wide) for key, wide in self._numbers.items()]
        label = [TITLE.ljust(self._label)] if self.has_label else []
        titles = ["trial".ljust(self._name), *label, *numbers, "curve"[: self.curve]]
        return Text(GAP.join(titles).rstrip(), "dim")

    def lines(self, run: LiveRun, curve: str, standing: str) -> list[Text]:
        """Return a run's own line, and that of its configuration where it has one."""
        name = set_cell_size(cut(clean(run.name), LONGEST_NAME), self._name)
        label = clean(_label(run))
        if run.evaluation is None:
            room = self._width - self._name - len(GAP)
            if self.has_label and cell_len(label) + len(GAP) + cell_len(standing) <= room:
                return [Text(GAP.join([name, label, clean(standing)]))]
            return [Text(GAP.join([name, cut(clean(standing), room)])), *self._own(label)]
        cells = _cells(run)
        numbers = [cells[key].rjust(wide) for key, wide in self._numbers.items()]
        inside = [set_cell_size(label, self._label)] if self.has_label else []
        line = Text.assemble(GAP.join([name, *inside, *numbers, ""]), (curve, "cyan"))
        return [line] if self.has_label else [line, *self._own(label)]

    def _own(self, label: str) -> list[Text]:
        return [Text(f"{GAP}{cut(label, max(self._width - len(GAP), 8))}", "dim")]


def _label(run: LiveRun) -> str:
    return run.label or UNKNOWN


def _cells(run: LiveRun) -> dict[str, str]:
    point = run.evaluation
    if point is None:
        return {"value": "", "train": "", "speed": ""}
    return {
        "value": run.metric.shown(point.value),
        "train": f"{point.train_s:.2f}",
        "speed": f"{point.samples_per_s:,.0f}",
    }


def _scale(runs: Sequence[LiveRun], target: float | None) -> tuple[float, float]:
    """Return the values at a curve's lowest and highest level: one scale for all, so that they
    compare; the target is on it."""
    values = [value for run in runs for value in run.values]
    return span([*values, target] if target is not None else values)


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


PER_SECOND = 4
NOTEBOOK_S = 1.0
"""A notebook's display changes no more often: each change is a message to the browser."""
NOTEBOOK_WIDTH = 100
NOTEBOOK_HEIGHT = 30
Bundle = dict[str, str]
"""What a notebook shows, by its MIME type: it takes the best that it can."""
Draw = Callable[[int, int, Glyphs], list[Text]]
"""(width, height, characters) -> the lines of now."""


class TerminalView:
    """One screen on a terminal, drawn again a few times a second in a thread of its own."""

    def __init__(self, console: Console, draw: Draw) -> None:
        self._console, self._draw = console, draw
        self._glyphs = glyphs_for(console.encoding)
        self._live = Live(
            get_renderable=self._rendered,
            console=console,
            refresh_per_second=PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def start(self) -> None:
        """Show it from now on."""
        self._live.start()

    def changed(self) -> None:
        """Do nothing: it is drawn again soon."""

    def stop(self) -> None:
        """Take it off the screen."""
        self._live.stop()

    def _rendered(self) -> Group:
        width, height = self._console.size
        lines = self._draw(width, height, self._glyphs)
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        return Group(*lines)


class NotebookView:
    """One display of a notebook, changed in place."""

    def __init__(
        self,
        draw: Draw,
        display: Callable[[Bundle, bool], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`display` shows a bundle: for the first time, or in place of what it has shown."""
        self._draw, self._clock = draw, clock
        self._display = display if display is not None else _ipython_display()
        self._shown_s = float("-inf")
        self._is_new = True

    def start(self) -> None:
        """Show it for the first time."""
        self._show()

    def changed(self) -> None:
        """Show it anew, if that was not just done."""
        if self._clock() - self._shown_s >= NOTEBOOK_S:
            self._show()

    def stop(self) -> None:
        """Show how it ended."""
        self._show()

    def _show(self) -> None:
        self._shown_s = self._clock()
        lines = self._draw(NOTEBOOK_WIDTH, NOTEBOOK_HEIGHT, BLOCKS)
        bundle = {
            "text/html": as_html(lines),
            "text/plain": "\n".join(line.plain for line in lines),
        }
        self._display(bundle, self._is_new)
        self._is_new = False


View = TerminalView | NotebookView
"""What shows a screen that changes."""


def as_html(lines: list[Text]) -> str:
    """Return lines as HTML that has the colours of the page around it."""
    text = "\n".join(html.escape(line.plain) for line in lines)
    return f'<pre style="line-height:1.25;white-space:pre;overflow-x:auto">{text}</pre>'


def view_for(console: Console, draw: Draw) -> View | None:
    """Return how a console shows a screen that changes; None where it takes lines alone."""
    if console.is_jupyter:
        return NotebookView(draw)
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalView(console, draw)
    return None


def _ipython_display() -> Callable[[Bundle, bool], None]:
    """Return what shows a bundle in the notebook that runs this; one display, changed in place."""
    display: Any = importlib.import_module("IPython.display")  # has no types
    handle = display.DisplayHandle()

    def show(bundle: Bundle, is_new: bool) -> None:
        (handle.display if is_new else handle.update)(bundle, raw=True)

    return show
