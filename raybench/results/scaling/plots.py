"""Figures of a scaling study: speed-up, efficiency, where a step's time goes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raybench.results import plot_parts as parts
from raybench.results.load import StudyResults
from raybench.results.scaling.curves import curves_of

SHARE_COLOURS = {
    "input wait": "#CC79A7",
    "as one worker alone": "#E69F00",
    "exchange of gradients": "#0072B2",
    "more than one worker": "#56B4E9",
    "not told apart": "#C4C4C4",
}
MOST_BARS = 24
"""Cells that one figure has room for."""
LEAST_SHARE = 0.1
"""Percent of a step that can be seen; a part that is less of all of them has no colour."""
INSIDE, LEGEND_LINE = 5, 0.16
"""Curves whose legend has room inside a panel; inches of a line of one below it."""
LABEL_WIDTH = 44
"""Characters of a cell's label beside its bar."""


def cell_rows(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows, by the names of its columns."""
    return [{str(key): value for key, value in row.items()} for row in cells.to_dict("records")]


def cell_label(row: Mapping[str, Any]) -> str:
    """Return what a figure calls a cell."""
    return f"{row['series']}, {row['num_workers']}x{row['batch_size_per_worker']}"


def speedup_figure(results: StudyResults) -> Figure:
    """Speed-up over workers, a panel for each kind of scaling; bars are the spread of repeats."""
    return _panels(results.scaling, "speedup", "speed-up over the best single worker", _ideal)


def efficiency_figure(results: StudyResults) -> Figure:
    """Efficiency over workers, a panel for each kind of scaling."""
    return _panels(results.scaling, "efficiency", "efficiency", _all_of_it)


def shares_figure(results: StudyResults) -> Figure:
    """Where the time of a step goes: input, what one worker alone needs, and the rest."""
    cells = results.scaling
    cells = cells[(cells["n"] > 0) & cells["exchange_gradients"]].drop_duplicates("cell")
    cells = cells.sort_values(["series", "batch_size_per_worker", "num_workers"])
    left_out = max(len(cells) - MOST_BARS, 0)
    cells = cells.head(MOST_BARS)
    shown = cell_rows(cells)
    rows = [step_shares(row) for row in shown]
    names = [parts.wrapped(cell_label(row), LABEL_WIDTH) for row in shown]
    lines = sum(0.16 + 0.16 * name.count("\n") + 0.16 for name in names)
    figure, axes = parts.new_figure(7.6, 1.7 + max(lines, 0.64))
    axes.set_xlabel("share of an optimizer step [%]")
    if cells.empty:
        return parts.say(figure, axes, parts.NOTHING)
    places, left = np.arange(len(rows)), np.zeros(len(rows))
    for part, colour in SHARE_COLOURS.items():
        widths = np.array([100 * row.get(part, 0.0) for row in rows])
        if widths.max() >= LEAST_SHARE:
            axes.barh(places, widths, left=left, color=colour, label=part)
            left += widths
    for place, seconds in enumerate(cells["step_median_s"]):
        axes.text(101, place, f"{1000 * seconds:.3g} ms", va="center", fontsize=8)
    axes.set_yticks(places, names, fontsize=8)
    axes.set_xlim(0, 113)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    if left_out:
        axes.set_title(f"{left_out} more cells: see scaling.csv", fontsize=9)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def step_shares(row: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of a cell's step, a row of `scaling`; they sum to 1.

    Input wait is measured; alone is the step of one worker with the same batch, waiting left out;
    exchange is what leaving it out saved, where a cell did. What is left is contention for cores
    and memory, and waiting for the slowest worker, or nothing where too little was measured.
    """
    wait = row["input_share"] if row["input_share"] == row["input_share"] else 0.0
    found, rest = {"input wait": wait}, 1 - wait
    alone, exchange = row["alone_share"], row["communication_share"]
    if alone == alone:
        found["as one worker alone"] = min(alone, rest)
        rest -= found["as one worker alone"]
    if exchange == exchange and row["num_workers"] > 1:
        found["exchange of gradients"] = min(max(exchange, 0.0), rest)
        rest -= found["exchange of gradients"]
    found["more than one worker" if alone == alone else "not told apart"] = rest
    return found


def _panels(
    cells: pd.DataFrame, column: str, label: str, ideal: Callable[[Axes, list[int]], None]
) -> Figure:
    """Draw the curves of weak and of strong scaling, never on the same axes."""
    scalings = list(dict.fromkeys(cells["scaling"])) or ["weak"]
    every = {scaling: curves_of(cells[cells["scaling"] == scaling]) for scaling in scalings}
    most = max(map(len, every.values()))
    height = 4.4 + (LEGEND_LINE * (most + 1) if most > INSIDE else 0)
    size = (4.6 * max(len(scalings), 1.5), height)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(1, len(scalings), sharey=True, squeeze=False)[0]
    for axes, (scaling, curves) in zip(panels, every.items(), strict=True):
        parts.dress(axes)
        axes.set(xlabel="workers", title=f"{scaling} scaling")
        if not curves:
            parts.say(figure, axes, "no cell with a single worker to compare with")
            continue
        workers = sorted(
            {int(count) for curve in curves.values() for count in curve["num_workers"]}
        )
        for number, (name, curve) in enumerate(curves.items()):
            told = _short(name, scaling, cells)
            _curve(axes, curve, column, number, told)
        ideal(axes, workers)
        axes.set_xticks(workers)
        axes.set_ylim(bottom=0)
        if most > INSIDE:
            axes.legend(
                frameon=False, fontsize=7.5, loc="upper center", bbox_to_anchor=(0.5, -0.14)
            )
        else:
            axes.legend(frameon=False, fontsize=7.5)
    panels[0].set_ylabel(label)
    return figure


def _curve(axes: Axes, curve: pd.DataFrame, column: str, number: int, label: str) -> None:
    middle = curve[column].astype(float)
    low = (middle - curve[f"{column}_low"].astype(float)).fillna(0.0).clip(lower=0)
    high = (curve[f"{column}_high"].astype(float) - middle).fillna(0.0).clip(lower=0)
    axes.errorbar(
        curve["num_workers"],
        middle,
        yerr=np.array([low, high]),
        color=parts.colour(number),
        linestyle=parts.line_of(number),
        marker="o",
        markersize=5,
        capsize=3,
        label=parts.plain(label),
    )


def _short(name: str, scaling: str, cells: pd.DataFrame) -> str:
    """Leave out of a curve's name what the panel's title says, and what all curves share."""
    name = name.replace(f", {scaling},", ",")
    for column in ("topology", "workload"):
        values = set(cells[column])
        if len(values) == 1:
            name = name.replace(f", {values.pop()}", "")
    return name


def _ideal(axes: Axes, workers: list[int]) -> None:
    ends = [1, max(workers)]
    axes.plot(ends, ends, color=parts.INK, linestyle=":", linewidth=1.2, label="ideal", gid="ideal")


def _all_of_it(axes: Axes, workers: list[int]) -> None:
    axes.axhline(1, color=parts.INK, linestyle=":", linewidth=1.2, label="ideal", gid="ideal")
