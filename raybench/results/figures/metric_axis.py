"""The axis of the metric in a figure: its scale, its ticks, the target on it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from raybench.core.metric import Metric
from raybench.results.figures.parts import INK, SMALL, TEXT, plain_ticks
from raybench.results.load import StudyResults

SHARE_TICKS = (0, 30, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9, 100)
HELD = 0.7
"""Part of its height that a panel keeps once titles and labels have their room."""
MARGIN = 0.05
"""Of the range of values, above and below them."""
FAR_BELOW = 0.25
"""A metric without a worst value is shown so far beyond chance: the first evaluation of a bad run,
or one that has burst, would else take the whole picture."""


def drawn(metric: Metric, values: "pd.Series[float]") -> "pd.Series[float]":
    """Return values as a figure has them: shares in per cent."""
    return 100 * values if metric.is_share else values


def metric_axis(
    axes: Axes,
    results: StudyResults,
    values: "pd.Series[float] | None" = None,
    *,
    is_labelled: bool = True,
) -> None:
    """Scale y so that good values are told apart; draw the target.

    `values` of the metric are those that are drawn; without them it is the learning curves.

    A share by its error (log), so that 98 % and 99 % are. What is better the less it is (a loss,
    an RMSE) by its log, where all of it is above 0; anything else as it is.
    """
    metric, target = results.metric, results.target
    values = results.curves[metric.name] if values is None else values
    values = values.replace([np.inf, -np.inf], np.nan).dropna()
    if metric.is_share:
        _error_scale(axes, _ends(values, target)[1] if len(values) or target else 0.9)
    elif len(values):
        _value_scale(axes, results, *_ends(values, target))
    if target is not None:
        _draw_target(axes, results, is_labelled)


def _ends(values: "pd.Series[float]", target: float | None) -> tuple[float, float]:
    known = [*([] if values.empty else [values.min(), values.max()])]
    known += [] if target is None else [target]
    return float(min(known)), float(max(known))


def _error_scale(axes: Axes, top: float) -> None:
    floor = 0.001  # an error of 0 has a place too
    axes.set_yscale(
        "function",
        functions=(
            lambda y: -np.log10(np.maximum(1 + floor - y / 100, floor)),
            lambda z: 100 * (1 + floor - 10.0**-z),
        ),
    )
    axes.set_ylim(0, 100 * min(1, 1 - 0.6 * (1 - top)))
    axes.set_yticks(_apart(axes, [y for y in SHARE_TICKS if y <= axes.get_ylim()[1]]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _apart(axes: Axes, ticks: list[float]) -> list[float]:
    """Return those of `ticks` whose words do not touch, from the best down."""
    points = HELD * 72 * axes.bbox.height / axes.figure.dpi
    low, high = axes.transScale.transform([(0, end) for end in axes.get_ylim()])[:, 1]
    kept: list[float] = []
    for tick in reversed(ticks):
        at = axes.transScale.transform((0, tick))[1]
        before = axes.transScale.transform((0, kept[-1]))[1] if kept else np.inf
        if (before - at) / (high - low) * points >= 1.3 * TEXT:
            kept.append(tick)
    return kept[::-1]


def _value_scale(axes: Axes, results: StudyResults, low: float, high: float) -> None:
    chance = results.chance
    if results.metric.direction == "min" and low > 0:
        if chance is not None:
            high = min(high, max(chance * (chance / low) ** FAR_BELOW, low))
        axes.set_yscale("log")
        room = max((high / low) ** MARGIN, 1.02)
        axes.set_ylim(low / room, high * room)
        plain_ticks(axes, "y")
        return
    if chance is not None and results.metric.direction == "max":
        low = max(low, chance - FAR_BELOW * max(high - chance, 0.0))
    if chance is not None and results.metric.direction == "min":
        high = min(high, chance + FAR_BELOW * max(chance - low, 0.0))
    room = MARGIN * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)


def _draw_target(axes: Axes, results: StudyResults, is_labelled: bool) -> None:
    assert results.target is not None
    is_share = results.metric.is_share
    target = 100 * results.target if is_share else results.target
    axes.axhline(target, color=INK, linewidth=1, linestyle=(0, (4, 3)), gid="target")
    if is_labelled:
        hold = results.study["study"]["objective"].get("hold", 1)
        held = f"\n{hold} in a row" if hold > 1 else ""
        axes.annotate(
            f"target\n{target:g}{' %' if is_share else ''}{held}",
            (1.01, target),
            xycoords=axes.get_yaxis_transform(),
            va=_side(axes, target),
            fontsize=SMALL,
            color=INK,
            annotation_clip=False,
        )


def _side(axes: Axes, target: float) -> str:
    """Return on which side of its line the target's words stand: not beyond the panel."""
    place = axes.transAxes.inverted().transform(axes.transData.transform((0, target)))[1]
    return "top" if place > 0.85 else "bottom" if place < 0.15 else "center"
