"""Parallel coordinates: a configuration is a line through the values of all its keys."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raybench.results.figures import parts
from raybench.results.figures.importance import keys_by_importance
from raybench.results.figures.outcome import outcome
from raybench.results.figures.values import values_of
from raybench.results.load import StudyResults

MOST_KEYS = 9
MOST_LINES = 180
GOOD_SHARE = 0.1
"""Part of the configurations that is coloured: the best of them."""
ROW = 0.62
"""Inches between two axes, which lie: on a telephone there is more room below than beside."""
MISSED = 0.2
"""Where the worst outcome stands where some runs missed the target, which stand at 0."""
GOOD, BEST = "#0072B2", "#D55E00"


def parallel_figure(results: StudyResults) -> Figure:
    """All configurations over all searched keys, an axis each, the outcome the last.

    The best tenth is coloured; where its lines run together, that value is needed for a good
    result, where they spread, it is not.
    """
    found = outcome(results)
    keys = keys_by_importance(results)[:MOST_KEYS]
    height = ROW * (len(keys) + 1) + 0.4
    figure, axes = parts.new_figure(parts.WIDTH, height)
    known = found.known
    if known.empty or not keys:
        return parts.say(figure, axes, parts.NOTHING)
    values = [values_of(results, key, found.rows) for key in keys]
    columns = [pd.Series(one.places, index=found.rows.index) for one in values]
    order = known.sort_values("outcome", ascending=found.sign < 0, kind="stable").index
    first = known.index[0]
    good = [row for row in order[: max(round(GOOD_SHARE * len(order)), 1)] if row != first]
    rest = [row for row in order if row not in {first, *good}]
    levels = np.arange(len(keys) + 1)
    drawn_good = parts.spread(good, MOST_LINES // 4)
    drawn_rest = parts.spread(rest, MOST_LINES - len(drawn_good))
    missed = parts.spread(list(found.missed.index), MOST_LINES // 4)
    least = MISSED if missed else 0.0
    ends = pd.Series(0.0, index=found.rows.index)
    ends[known.index] = least + (1 - least) * found.places(known["outcome"])
    trials = found.rows["trial"]
    styles: list[tuple[list[Any], dict[str, Any]]] = [
        (missed, {"color": parts.QUIET, "linewidth": 0.7, "zorder": 0.8, "linestyle": ":"}),
        (drawn_rest, {"color": parts.QUIET, "linewidth": 0.7, "zorder": 1}),
        (drawn_good, {"color": GOOD, "linewidth": 1.1, "zorder": 2, "linestyle": "--"}),
        ([first], {"color": BEST, "linewidth": 2.2, "zorder": 3, "marker": "o", "markersize": 6}),
    ]
    for rows, style in styles:
        for row in rows:
            x = [*(column[row] for column in columns), ends[row]]
            axes.add_line(Line2D(x, levels, gid=str(trials[row]), **style))
    for level, (key, one) in enumerate(zip(keys, values, strict=True)):
        _axis(axes, level, parts.wrapped(key, 40), one.ticks, one.labels)
    worst, best = known["outcome"].loc[order[-1]], known["outcome"].loc[order[0]]
    ticks, labels = [least, 1.0], [f"{worst:.4g}", f"{best:.4g} (best)"]
    if missed:
        ticks, labels = [0.0, *ticks], ["missed", *labels]
    _axis(axes, len(keys), found.words, tuple(ticks), tuple(labels))
    axes.set(xlim=(-0.04, 1.04), ylim=(len(keys) + 0.5, -0.55))
    axes.set_axis_off()
    words = (
        "missed the target" + parts.of_all(len(missed), len(found.missed), "runs"),
        "others" + parts.of_all(len(drawn_rest), len(rest), "runs"),
        f"best {100 * GOOD_SHARE:.0f} %" + parts.of_all(len(drawn_good), len(good), "runs"),
        f"first: trial {parts.plain(str(trials[first]))}",
    )
    legend = [
        parts.key(label, **{key: value for key, value in style.items() if key != "zorder"})
        for label, (rows, style) in zip(words, styles, strict=True)
        if rows
    ]
    labels = [str(one.get_label()) for one in legend]
    parts.legend_below(figure, legend[::-1], columns=parts.columns_for(labels, most=2))
    return figure


def _axis(
    axes: Axes, level: int, name: str, ticks: tuple[float, ...], labels: tuple[str, ...]
) -> None:
    """Draw one axis: its name above it, its values below."""
    axes.plot([0, 1], [level, level], color=parts.INK, linewidth=0.9, zorder=0.5)
    style: dict[str, Any] = {"color": parts.INK, "va": "top", "fontsize": parts.SMALL}
    style["bbox"] = {"facecolor": parts.PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
    for tick, label in zip(ticks, labels, strict=True):
        axes.plot([tick, tick], [level - 0.06, level + 0.06], color=parts.INK, linewidth=0.9)
        side = "left" if tick < 0.03 else "right" if tick > 0.97 else "center"
        axes.text(tick, level + 0.1, label, ha=side, **style)
    over: dict[str, Any] = {"color": parts.INK, "va": "bottom", "fontweight": "bold"}
    over["bbox"] = style["bbox"]
    axes.text(0, level - 0.12, name, fontsize=parts.SMALL, **over)
