"""The table of runs that have not ended: as many columns and rows as there is room for."""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from raybench.core.text import clean
from raybench.results.live.fold import cut
from raybench.results.live.glyphs import Glyphs, span, sparkline
from raybench.results.live.state import LiveRun, LiveState
from raybench.results.live.words import standing_words

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
