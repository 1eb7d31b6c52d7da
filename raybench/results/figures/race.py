"""The contenders: every run of the configurations that were trained again, which are tied."""

import math
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.results.figures import parts
from raybench.results.figures.curves import name_of
from raybench.results.figures.metric_axis import drawn
from raybench.results.load import StudyResults
from raybench.results.ranking import repeat
from raybench.results.verdict import judge

MOST_ROWS = 10
ROW = 0.52
"""Inches of a configuration's row."""
ROLE_STYLE = {
    "trial": ("D", False, "its run in the search"),
    "finalist": ("D", False, "its run in the search"),
    "race": ("o", True, "race: new seed"),
    "confirm": ("s", True, "confirm: new seed, alone"),
}
"""Marker, whether it is filled, words."""


def race_figure(results: StudyResults) -> Figure:
    """Runs of every configuration that was trained again, best first, with 90 % intervals.

    The bar is the interval of what the configuration is compared by, the stroke in it its expected
    value. Those statistically tied with the first say `tied`. A cross is a run that missed the
    target, at the seconds it had spent.
    """
    table = race_rows(results)
    rows = list(dict.fromkeys(table["trial"]))
    shown = rows[:MOST_ROWS]
    figure, axes = parts.new_figure(parts.WIDTH, 0.8 + ROW * max(len(shown), 2))
    if not shown:
        return parts.say(figure, axes, "no configuration was trained again")
    verdict = judge(results)
    ties = set(verdict.ties) if verdict is not None else set()
    _scale(axes, results, table[table["trial"].isin(shown)])
    for place, trial in enumerate(shown):
        own = table[table["trial"] == trial]
        colour = parts.colour_of(own["framework"].iloc[0])
        _interval(axes, results, trial, place, colour)
        for row in parts.tuples(own):
            _run(axes, row, place, colour)
        words = name_of(results, trial).split("\n")[0]
        if trial in ties and place:
            words += " · tied"
        style: dict[str, Any] = {"fontsize": parts.SMALL, "color": parts.INK, "va": "bottom"}
        style |= {"transform": axes.get_yaxis_transform(), "clip_on": False}
        axes.text(0.0, place - 0.22, words, **style)
    axes.set(yticks=[], ylim=(len(shown) - 0.5, -0.75))
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    is_missed = bool((~table["is_hit"]).any())
    _legend(figure, results, table, is_missed=is_missed, left_out=len(rows) - len(shown))
    return figure


def race_rows(results: StudyResults) -> pd.DataFrame:
    """Return a row for each run: trial (its configuration), run, role, framework, value, is_hit.

    `value`: seconds to the target, of a miss all that it spent; without a target the metric.
    """
    trials = results.trials.set_index("trial")
    rows = []
    for trial, one in results.repeated.items():
        for name in dict.fromkeys((*one.chosen_runs, *one.printed_runs)):
            found = repeat(results, name)
            value = found.seconds
            if not results.is_timed:
                value = -results.metric.sign * value if found.is_hit else math.nan
            role, framework = trials.loc[name, "role"], trials.loc[name, "framework"]
            rows.append((trial, name, role, framework, value, found.is_hit))
    columns = ["trial", "run", "role", "framework", "value", "is_hit"]
    table = pd.DataFrame(rows, columns=columns).astype({"value": float, "is_hit": bool})
    return table if results.is_timed else table.assign(value=drawn(results.metric, table["value"]))


def _scale(axes: Axes, results: StudyResults, table: pd.DataFrame) -> None:
    if not results.is_timed:
        axes.set_xlabel(parts.plain(f"best {results.metric.axis_words}"))
        axes.margins(x=0.08)
        return
    known = table["value"][table["value"] > 0]
    proof = results.confirmed[results.confirmed["trial"].isin(set(table["trial"]))]
    ends = pd.concat([known, proof["expected_low_s"], proof["expected_high_s"]])
    ends = ends[(ends > 0) & (ends < math.inf)]
    axes.set(xscale="log", xlim=parts.window(ends.min(), ends.max(), margin=1.1))
    parts.plain_ticks(axes, "x")
    axes.set_xlabel("seconds of training to the target [s]  (left: faster)")


def _interval(axes: Axes, results: StudyResults, trial: str, place: int, colour: str) -> None:
    row: Any = results.confirmed.set_index("trial").loc[trial]
    if results.is_timed:
        low, middle, high = (row[f"expected{end}_s"] for end in ("_low", "", "_high"))
    else:
        name, factor = results.metric.name, 100 if results.metric.is_share else 1
        ends = ("interval_low", "median", "interval_high")
        low, middle, high = (factor * row[f"{end}_{name}"] for end in ends)
    if not all(map(math.isfinite, (low, middle, high))):
        return
    style: dict[str, Any] = {"solid_capstyle": "butt", "color": colour}
    axes.plot([low, high], [place, place], linewidth=9, alpha=0.25, zorder=1, **style)
    axes.plot([middle, middle], [place - 0.17, place + 0.17], linewidth=2, zorder=2, **style)


def _run(axes: Axes, row: Any, place: int, colour: str) -> None:
    marker, is_filled, _ = ROLE_STYLE[row.role]
    style: dict[str, Any] = {"marker": marker, "markersize": 6, "color": colour}
    style |= {"markerfacecolor": colour if is_filled else parts.PAPER}
    if is_filled:
        style |= {"markeredgecolor": parts.PAPER, "markeredgewidth": 0.7}
    if not row.is_hit:
        style = {"marker": "x", "markersize": 7, "markeredgewidth": 1.8, "color": parts.INK}
    axes.plot(row.value, place, linestyle="none", zorder=4, gid=row.run, **style)


def _legend(
    figure: Figure, results: StudyResults, table: pd.DataFrame, *, is_missed: bool, left_out: int
) -> None:
    roles = list(dict.fromkeys(table["role"]))
    kinds = dict.fromkeys(ROLE_STYLE[role] for role in roles)
    keys: list[Artist] = [
        parts.dot(words, marker=marker, is_filled=is_filled) for marker, is_filled, words in kinds
    ]
    what = "expected seconds" if results.is_timed else "median"
    keys.append(Patch(color=parts.QUIET, label=f"{what}, 90 % interval"))
    if is_missed:
        words = "missed the target" if results.is_timed else "failed"
        keys.append(parts.key(words, marker="x", linestyle="none", markeredgewidth=1.8))
    keys += [
        Patch(color=parts.colour_of(name), label=parts.plain(str(name)))
        for name in dict.fromkeys(table["framework"])
    ]
    if left_out > 0:
        keys.append(parts.key(f"{left_out} more are not drawn", linestyle="none"))
    labels = [str(one.get_label()) for one in keys]
    parts.legend_below(figure, keys, columns=parts.columns_for(labels, most=2))
