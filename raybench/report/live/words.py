"""What all views of a study have in common: words, times, curves and bars of characters, and how
text fits the columns of a terminal (characters of East Asia take two)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size

from raybench.report.live.state import Cause, LiveRun, LiveState
from raybench.report.words import target_words
from raybench.spec.metric import Metric
from raybench.stats.record import RunRecord


@dataclass(frozen=True)
class Glyphs:
    """Characters of one kind of terminal."""

    levels: str
    """Of a curve, from the lowest to the highest."""
    done: str
    """Of a bar: what is done."""
    left: str
    """Of a bar: what is not."""


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", "━", "╌")
ASCII = Glyphs("_.:-=+*#", "#", ".")
GAP = " "
"""Of a curve, where the value is no number."""


def glyphs_for(encoding: str) -> Glyphs:
    """Return the characters that text in `encoding` can hold."""
    try:
        "".join((BLOCKS.levels, BLOCKS.done, BLOCKS.left)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def sparkline(
    values: Sequence[float], width: int, glyphs: Glyphs, *, low: float, high: float
) -> str:
    """Return a curve in at most `width` characters, the lowest level at `low`, the highest at
    `high`.

    Of more values than there is room for, each character is the last of its part.
    """
    count = min(len(values), width)
    shown = [values[(number + 1) * len(values) // count - 1] for number in range(count)]
    return "".join(_level(value, glyphs.levels, low, high) for value in shown)


def span(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest of the values that are numbers; (0, 0) without any."""
    known = [value for value in values if math.isfinite(value)]
    return (min(known), max(known)) if known else (0.0, 0.0)


def bar(share: float, width: int, glyphs: Glyphs) -> str:
    """Return a bar of `width` characters, `share` of it done."""
    done = round(width * min(max(share, 0.0), 1.0))
    return glyphs.done * done + glyphs.left * (width - done)


def _level(value: float, levels: str, low: float, high: float) -> str:
    if math.isnan(value):
        return GAP
    if high <= low:
        return levels[0]
    share = min(max((value - low) / (high - low), 0.0), 1.0)
    return levels[min(int(share * len(levels)), len(levels) - 1)]


DOTS = "..."


def fold(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` columns, broken at spaces where it can be."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) <= width:
            line += f" {word}"
            continue
        if line:
            lines.append(line)
        *whole, line = chop_cells(word, width)
        lines += whole
    return [*lines, line] if line else lines


def cut(text: str, width: int) -> str:
    """Return a text in at most `width` columns; the middle goes, its ends say most."""
    if cell_len(text) <= width:
        return text
    tail = max((width - len(DOTS)) // 3, 0)
    start = len(text) - tail
    while cell_len(text[start:]) > tail:
        start += 1
    head = width - len(DOTS) - cell_len(text[start:])
    if head < 1:
        return set_cell_size(text, width)
    return f"{set_cell_size(text, head).rstrip()}{DOTS}{text[start:]}"


MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def spent(seconds: float) -> str:
    """Return time that has passed, in whole seconds as long as they matter: `1 min 12 s`."""
    whole = max(int(seconds), 0)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < 10 * MINUTE:
        return f"{whole // 60} min {whole % 60} s"
    if whole < HOUR:
        return f"{whole // 60} min"
    if whole < 2 * DAY:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole / DAY:.1f} days"


def about(seconds: float) -> str:
    """Return time to come, no more precise than it is known: `95 s`, `12 min`, `3.2 h`."""
    seconds = max(seconds, 0.0)
    if seconds < 20:
        return f"{seconds:.0f} s"
    if seconds < 2 * MINUTE:
        return f"{5 * round(seconds / 5)} s"
    if seconds < 100 * MINUTE:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / DAY:.1f} days"


PHASES = {
    "reference": "reference runs",
    "search": "search",
    "placement_check": "placements that were only predicted",
    "race": "race",
    "confirm": "winners alone",
    "scaling": "scaling",
    "train": "training",
}
STARTING = "starting workers"
FOLLOWS = {
    "search": "the race and the winners' runs alone",
    "placement_check": "the race and the winners' runs alone",
    "race": "the winners' runs alone",
}
"""What the time after a phase is for."""
Outcome = Callable[[RunRecord], str]
"""Says how a run ended that did not fail, where none is the best of them."""


def left_words(state: LiveState, at: float) -> str:
    """Return the time left for a head: `about 95 s left`; empty while nothing is known of it."""
    left = state.time_left(at)
    if left is None:
        return ""
    if left.is_budget:
        return f"at most {about(left.seconds)} left (time budget)"
    return f"about {about(left.seconds)} left"


def follows_words(state: LiveState) -> str:
    """Return what follows the phase, and how much of the time left it is."""
    words = FOLLOWS.get(state.phase)
    is_informative = words is not None and state.after_s > 0 and not state.is_over
    return f"about {about(state.after_s)} of it for {words}" if is_informative else ""


def result_words(record: RunRecord) -> str:
    """Return what a run that did not fail came to, in a few words."""
    metric, target = record.spec.objective.judged_by, record.spec.objective.target
    if record.time_to_target_s is not None and target is not None:
        return f"{record.time_to_target_s:.2f} s to {target_words(metric, target)}"
    return f"{metric_words(metric, record.best_value)} after {record.ledger['train']:.2f} s"


def metric_words(metric: Metric, value: float | None) -> str:
    """Return a value with its name where a number alone does not tell it: `97.3 %`, `RMSE 0.4`."""
    return f"{'' if metric.is_share else f'{metric.words} '}{metric.shown(value)}"


def best_words(state: LiveState) -> str:
    """Return the best run so far, against the target where there is one."""
    best, target = state.best, state.target
    if best is None:
        return "none yet"
    words = f"{result_words(best)} (one run)"
    if target is not None and best.time_to_target_s is None and best.best_value is not None:
        lacks = state.metric.gap(target, best.best_value)
        points = f"{100 * lacks:.1f} points" if state.metric.is_share else f"{lacks:.3g}"
        words += f", {points} short of {target_words(state.metric, target)}"
    return words


def reached_words(state: LiveState) -> str:
    """Return how many runs of the search reached the target; empty where there is none."""
    if state.target is None or not state.num_searched:
        return ""
    what = target_words(state.metric, state.target)
    return f"{what}, reached by {state.num_reached} of {state.num_searched}"


def workers_words(state: LiveState, at: float) -> str:
    """Return how many workers train now, and their share of the last minute."""
    training, num_all = state.num_training, state.num_workers
    if training is None:
        count = len(state.training)
        return f"{count} run{'' if count == 1 else 's'} training"
    words = f"{training} training" if num_all is None else f"{training} of {num_all} training"
    share = state.busy_share(at)
    return words if share is None else f"{words}, {100 * share:.0f} % of the last minute"


def cause_words(cause: Cause) -> str:
    """Return failures of one cause."""
    return f"{cause.count} {cause.failure} ({cause.message})"


def standing_words(state: LiveState, run: LiveRun, at: float) -> str:
    """Return what a run does that has shown no evaluation."""
    waiting = state.waiting.get(run.name)
    if waiting is not None:
        return f"waits for {waiting[0]}, {waiting[1]:.0f} s"
    return f"{STARTING}, {at - run.asked_s:.0f} s"
