"""Figures of a scaling study: speed-up, efficiency, where a step's time goes, what was learnt."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.report.figures import parts
from raybench.report.figures.parts import drawn, metric_axis
from raybench.results.study import Study
from raybench.scaling.cells import curves_of, scaling_cells, scaling_runs

SHARE_STYLE = {
    "input wait": ("#CC79A7", "xx"),
    "as one worker alone": ("#E69F00", ""),
    "exchange of gradients": ("#0072B2", "///"),
    "more than one worker": ("#56B4E9", "\\\\\\"),
    "not distinguishable": ("#C4C4C4", ""),
}
"""Colour and hatching of each part."""
MOST_BARS = 24
"""Cells that one figure has room for."""
BAR = 0.34
"""Inches of a bar and what is around it."""
LEAST_SHARE = 0.1
"""Percent of a step that can be seen; a part that is less of all of them has no colour."""
MOST_CURVES = 12
"""Curves of a panel that a legend has room for."""
PANEL = 2.9
"""Inches of a panel's height."""
ASIDE = 0.02
"""Doublings of the workers by which neighbouring curves are apart, so that no bar hides another."""
MEANING = {"weak": "same batch per worker", "strong": "same global batch"}


def cell_rows(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows, by the names of its columns."""
    return [{str(key): value for key, value in row.items()} for row in cells.to_dict("records")]


def cell_label(row: Mapping[str, Any]) -> str:
    """Return what a figure calls a cell."""
    return f"{row['series']}, {row['num_workers']}x{row['batch_size_per_worker']}"


def speedup_figure(results: Study) -> Figure:
    """Speed-up over workers, a panel for each kind of scaling; bars are the spread of repeats."""
    return _panels(scaling_cells(results), "speedup", "speed-up over one worker", _ideal)


def efficiency_figure(results: Study) -> Figure:
    """Efficiency over workers, a panel for each kind of scaling."""
    return _panels(scaling_cells(results), "efficiency", "efficiency", _all_of_it)


def share_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells whose steps were timed, each once, in the order of the figure."""
    timed = (cells["n"] > 0) & cells["exchange_gradients"] & cells["step_median_s"].notna()
    kept = cells[timed.astype(bool)].drop_duplicates("cell")
    return kept.sort_values(["series", "batch_size_per_worker", "num_workers"])


def shares_figure(results: Study) -> Figure:
    """Where the time of a step goes: input, what one worker alone needs, and the rest."""
    every = share_cells(scaling_cells(results))
    cells = every.head(MOST_BARS)
    shown = cell_rows(cells)
    rows = [step_shares(row) for row in shown]
    names = [parts.wrapped(cell_label(row), parts.ROOM) for row in shown]
    lines = [1 + name.count("\n") for name in names]
    height = sum(parts.LINE * count + BAR for count in lines)
    figure, axes = parts.new_figure(parts.WIDTH, 0.7 + max(height, 0.8))
    axes.set_xlabel("share of an optimizer step [%]")
    if cells.empty:
        return parts.say(figure, axes, parts.NOTHING)
    # A cell's words stand above its bar: beside it they would take half of a telephone's width.
    places = np.cumsum([parts.LINE * count + BAR for count in lines]) - BAR / 2
    left, keys = np.zeros(len(rows)), []
    for part, (colour, hatch) in SHARE_STYLE.items():
        widths = np.array([100 * row.get(part, 0.0) for row in rows])
        if widths.max() >= LEAST_SHARE:
            style: dict[str, Any] = {"facecolor": colour, "hatch": hatch}
            style |= {"edgecolor": parts.PAPER, "linewidth": 0}
            axes.barh(places, widths, left=left, height=0.62 * BAR, **style)
            keys.append(Patch(label=part, **style))
            left += widths
    text: dict[str, Any] = {"fontsize": parts.SMALL, "color": parts.INK}
    for place, name, seconds in zip(places, names, cells["step_median_s"], strict=True):
        axes.text(0, place - 0.36 * BAR, name, va="bottom", **text)
        axes.text(101, place, f"{1000 * seconds:.3g} ms", va="center", **text)
    axes.set(yticks=[], xlim=(0, 116), ylim=(places[-1] + 0.6 * BAR, 0))
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False, axis="y")
    if len(every) > len(cells):
        parts.head(axes, f"{len(every) - len(cells)} more cells: see scaling.csv")
    parts.legend_below(figure, keys, columns=2)
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
    found["more than one worker" if alone == alone else "not distinguishable"] = rest
    return found


def _panels(
    cells: pd.DataFrame, column: str, label: str, ideal: Callable[[Axes, list[int]], None]
) -> Figure:
    """Draw the curves of weak and of strong scaling, never on the same axes."""
    scalings = list(dict.fromkeys(cells["scaling"])) or ["weak"]
    every = {scaling: curves_of(cells[cells["scaling"] == scaling]) for scaling in scalings}
    size = (parts.WIDTH, PANEL * len(scalings))
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(len(scalings), 1, squeeze=False)[:, 0]
    higher = 0.0
    for axes, (scaling, curves) in zip(panels, every.items(), strict=True):
        parts.dress(axes)
        parts.head(axes, f"{scaling} scaling: {MEANING[scaling]}")
        axes.set_ylabel(label)
        if not curves:
            parts.say(figure, axes, "no cell with a single worker to compare with")
            continue
        workers = sorted(
            {int(count) for curve in curves.values() for count in curve["num_workers"]}
        )
        shown = list(curves.items())[:MOST_CURVES]
        for number, (name, curve) in enumerate(shown):
            aside = 2.0 ** (ASIDE * (number - (len(shown) - 1) / 2))
            moved = curve.assign(num_workers=curve["num_workers"] * aside)
            _curve(axes, moved, column, number, _short(name, scaling, cells))
        ideal(axes, workers)
        # Bars of neighbours lie beside each other.
        axes.set_xscale("log", base=2)
        axes.set_xticks(workers, [str(count) for count in workers])
        axes.minorticks_off()
        axes.set_xlim(min(workers) / 1.2, max(workers) * 1.2)
        axes.set_xlabel("workers")
        higher += _explain(axes, len(curves))
    figure.set_figheight(figure.get_figheight() + higher)
    return figure


def _explain(axes: Axes, num_curves: int) -> float:
    """Put a legend below a panel; return the inches that it takes."""
    handles, labels = axes.get_legend_handles_labels()
    if num_curves > MOST_CURVES:
        handles.append(parts.key("", linestyle="none"))
        labels.append(f"{num_curves - MOST_CURVES} more curves: see scaling.csv")
    columns = parts.columns_for(labels, most=2)
    axes.legend(
        handles,
        labels,
        frameon=False,
        fontsize=parts.SMALL,
        labelcolor=parts.INK,
        loc="upper left",
        bbox_to_anchor=(-0.1, -0.2),
        ncols=columns,
        borderaxespad=0,
    )
    rows = -(-len(labels) // columns)
    lines = rows + 1 + sum(str(label).count("\n") for label in labels)
    return parts.LINE * lines


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
        marker=parts.marker(number),
        markersize=6,
        capsize=3,
        elinewidth=1,
        label=parts.wrapped(label, parts.ROOM),
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
    # Both by their logs: what is in proportion is straight.
    low, high = axes.get_ylim()
    axes.set(yscale="log", ylim=parts.window(max(low, 0.05), max(high, *ends), margin=1.02))
    parts.plain_ticks(axes, "y")
    axes.plot(ends, ends, color=parts.INK, linestyle=":", linewidth=1.2, label="ideal", gid="ideal")


def _all_of_it(axes: Axes, workers: list[int]) -> None:
    axes.set_ylim(bottom=0)
    axes.axhline(1, color=parts.INK, linestyle=":", linewidth=1.2, label="ideal", gid="ideal")


MOST_LINES = 16
"""Cells that a legend has room for."""
MOST_POINTS, MOST_OF_ALL = 60, 5000
"""Points of one curve, and of all."""


def accuracy_figure(results: Study) -> Figure:
    """The metric of every run on validation, against epochs and against seconds of training."""
    metric = results.metric
    runs, cells = scaling_runs(results), scaling_cells(results).drop_duplicates("cell")
    labels = {str(row["cell"]): cell_label(row) for row in cell_rows(cells)}
    figure = Figure(figsize=(parts.WIDTH, 5.6), dpi=100, layout="constrained")
    panels = figure.subplots(2, 1, sharey=True)
    curves = dict(iter(results.curves.groupby("trial")))
    most = min(MOST_POINTS, max(MOST_OF_ALL // (2 * max(len(runs), 1)), 8))
    for axes, column, words in zip(
        panels, ("epoch", "train_s"), ("epochs", "seconds of training [s]"), strict=True
    ):
        parts.dress(axes)
        axes.set_xlabel(words)
        axes.set_ylabel(parts.plain(metric.axis_words))
        for number, cell in enumerate(labels):
            for trial in runs.loc[runs["cell"] == cell, "trial"]:
                if trial in curves:
                    curve = curves[trial].iloc[parts.spread(range(len(curves[trial])), most)]
                    _run_curve(
                        axes, curve[column], drawn(metric, curve[metric.name]), number, trial
                    )
        metric_axis(axes, results)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", integer=axes.get_xlim()[1] > 2)
    keys: list[Artist] = [
        parts.key(parts.wrapped(label, parts.ROOM), **_style(number))
        for number, label in enumerate(labels.values())
    ]
    if len(keys) > MOST_LINES:
        more = parts.key(f"{len(keys) - MOST_LINES} more cells: see scaling.csv", linestyle="none")
        keys = [*keys[:MOST_LINES], more]
    if panels[0].lines:
        told = [str(one.get_label()) for one in keys]
        parts.legend_below(figure, keys, columns=parts.columns_for(told, most=2))
    return figure


def _run_curve(
    axes: Axes, x: "pd.Series[float]", y: "pd.Series[float]", number: int, trial: str
) -> None:
    axes.plot(x, y, gid=trial, **_style(number))


def _style(number: int) -> dict[str, Any]:
    return {
        "color": parts.colour(number),
        "linestyle": parts.line_of(number),
        "marker": parts.marker(number),
        "linewidth": 1.2,
        "markersize": 4,
    }
