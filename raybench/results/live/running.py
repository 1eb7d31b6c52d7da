"""The table of runs that have not ended: as many columns and rows as there is room for."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from raybench.core.text import clean, shorten
from raybench.results.live.glyphs import Glyphs, span, sparkline
from raybench.results.live.state import LiveRun, LiveState
from raybench.results.live.words import standing_words

GAP = "  "
CURVE = 16
"""Characters of a curve at most."""
LEAST_CURVE = 6
LEAST_LABEL = 26
"""Columns for a configuration beside the numbers; with less, it stands on a line of its own."""
LONGEST_NAME = 20
UNKNOWN = "is in the records when it ends"
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
    per_run = 1 if columns.has_label else 2
    room = max(height - 1, per_run)
    num_shown = len(runs) if per_run * len(runs) <= room else max((room - 1) // per_run, 1)
    lines = [columns.head()]
    for run in runs[:num_shown]:
        curve = sparkline(run.values, columns.curve, glyphs, low=low, high=high)
        lines += columns.lines(run, curve, standing_words(state, run, at))
    left_out = runs[num_shown:]
    if left_out:
        training = sum(run.evaluation is not None for run in left_out)
        starting = len(left_out) - training
        lines.append(
            Text(
                shorten(
                    f"and {len(left_out)} more: {training} training, {starting} not yet", width
                ),
                "dim",
            )
        )
    return lines


class _Columns:
    """Which columns there is room for, and how wide each is."""

    def __init__(self, runs: Sequence[LiveRun], width: int) -> None:
        self._width = width
        self._name = max(5, *(min(cell_len(clean(run.name)), LONGEST_NAME) for run in runs))
        metric = runs[0].metric
        self._numbers: dict[str, int] = {}
        cells = [_cells(run) for run in runs]
        used = self._name
        titles = {"value": metric.words, "train": "train s", "speed": "samples/s"}
        for key in ("value", "train", "speed"):
            wide = max(len(titles[key]), *(len(row[key]) for row in cells))
            least = LEAST_CURVE if key == "value" else LEAST_CURVE + (LEAST_LABEL + 4) // 2
            if used + len(GAP) + wide + len(GAP) + least <= width or key == "value":
                self._numbers[key] = wide
                used += len(GAP) + wide
        self._titles = titles
        room = width - used - len(GAP)
        self.curve = max(min(CURVE, room), 0)
        self._label = room - LEAST_CURVE - len(GAP)
        self.has_label = self._label >= LEAST_LABEL
        if self.has_label:
            longest = max(len(title) for title in ("configuration", *map(_label, runs)))
            self._label = min(self._label, max(longest, LEAST_LABEL))
            self.curve = min(CURVE, room - self._label - len(GAP))

    def head(self) -> Text:
        """Return the titles."""
        numbers = [self._titles[key].rjust(wide) for key, wide in self._numbers.items()]
        label = ["configuration".ljust(self._label)] if self.has_label else []
        return self._line(["trial".ljust(self._name), *label, *numbers, "curve"[: self.curve]])

    def lines(self, run: LiveRun, curve: str, standing: str) -> list[Text]:
        """Return a run's own line, and that of its configuration where it has one."""
        name = set_cell_size(shorten(clean(run.name), LONGEST_NAME), self._name)
        label = clean(_label(run))
        if run.evaluation is None:
            room = self._width - self._name - len(GAP)
            if self.has_label and cell_len(label) + len(GAP) + cell_len(standing) <= room:
                return [self._line([name, label, clean(standing)])]
            first = self._line([name, shorten(clean(standing), room)])
            return [first, *self._own(label)] if label else [first]
        cells = _cells(run)
        numbers = [cells[key].rjust(wide) for key, wide in self._numbers.items()]
        inside = [set_cell_size(shorten(label, self._label), self._label)] if self.has_label else []
        line = self._line([name, *inside, *numbers, curve])
        return [line] if self.has_label else [line, *self._own(label)]

    def _own(self, label: str) -> list[Text]:
        return [Text(f"{GAP}{shorten(label, max(self._width - len(GAP), 8))}", "dim")]

    def _line(self, cells: Sequence[str]) -> Text:
        return Text(GAP.join(cells).rstrip())


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
