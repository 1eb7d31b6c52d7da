"""Figures of a scaling study: speed-up, efficiency, where a step's time goes, accuracy."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raybench.results import plot_parts as parts
from raybench.results.load import StudyResults
from raybench.results.scaling.curves import curves_of

# Okabe and Ito's colours, in an order in which neighbours are told apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHARE_COLOURS = {
    "input wait": "#CC79A7",
    "as one worker alone": "#E69F00",
    "exchange of gradients": "#0072B2",
    "more than one worker": "#56B4E9",
    "not told apart": "#C4C4C4",
}
MOST_BARS = 24
"""Cells that one figure has room for."""


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
    figure, axes = parts.new_figure(7.6, 1.7 + 0.32 * max(len(cells), 2))
    axes.set_xlabel("share of an optimizer step [%]")
    if cells.empty:
        return parts.say(figure, axes, parts.NOTHING)
    shown = [{str(key): value for key, value in row.items()} for row in cells.to_dict("records")]
    rows = [step_shares(row) for row in shown]
    names = [
        parts.plain(f"{row['series']}, {row['num_workers']} x {row['batch_size_per_worker']}")
        for row in shown
    ]
    places, left = np.arange(len(rows)), np.zeros(len(rows))
    for part, colour in SHARE_COLOURS.items():
        widths = np.array([100 * row.get(part, 0.0) for row in rows])
        if widths.any():
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
        found["as one worker alone"] = min(alone * (1 - wait), rest)
        rest -= found["as one worker alone"]
    if exchange == exchange and row["num_workers"] > 1:
        found["exchange of gradients"] = min(max(exchange, 0.0), rest)
        rest -= found["exchange of gradients"]
    found["more than one worker" if alone == alone else "not told apart"] = rest
    return found


def accuracy_figure(results: StudyResults) -> Figure:
    """Validation accuracy of every run, against epochs and against seconds of training."""
    runs, cells = results.scaling_runs, results.scaling.drop_duplicates("cell").set_index("cell")
    legend = 0.1 * min(len(cells), MOST_BARS)  # two columns, 0.2 inches a line
    figure = Figure(figsize=(9.0, 4.2 + legend), dpi=100, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    curves = dict(iter(results.curves.groupby("trial")))
    labels = {
        cell: f"{row['series']}, {row['num_workers']} x {row['batch_size_per_worker']}"
        for cell, row in cells.iterrows()
    }
    for axes, column, words in zip(
        panels, ("epoch", "train_s"), ("epochs", "seconds of training"), strict=True
    ):
        parts.dress(axes)
        axes.set_xlabel(words)
        for number, cell in enumerate(labels):
            told = parts.plain(labels[cell])
            for trial in runs.loc[runs["cell"] == cell, "trial"]:
                if trial in curves:
                    axes.plot(
                        curves[trial][column],
                        100 * curves[trial]["accuracy"],
                        color=COLOURS[number % len(COLOURS)],
                        linestyle=("-", "--", ":", "-.")[number // len(COLOURS) % 4],
                        linewidth=1.2,
                        marker=".",
                        label=told if axes is panels[0] else None,
                        gid=trial,
                    )
                    told = "_nolegend_"
        axes.set_xlim(left=0)
    panels[0].set_ylabel("validation accuracy [%]")
    if panels[0].lines and len(labels) <= MOST_BARS:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def predicted_figure(measured: pd.DataFrame, predicted: pd.DataFrame) -> Figure:
    """Throughput measured and predicted over workers, a panel for each series.

    `measured`: series, num_workers, batch_size_per_worker, samples_per_s (a row a repeat).
    `predicted`: the same of the model's table, with low and high, and `extrapolated`, which is
    drawn dashed and named.
    """
    names = list(dict.fromkeys(predicted["series"]))
    width, rows = min(max(len(names), 1), 3), -(-max(len(names), 1) // 3)
    size = (3.4 * max(width, 1.6), 3.4 * rows + 0.6)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(rows, width, squeeze=False).ravel()
    if not names:
        return parts.say(figure, panels[0], "no series of two cells or more")
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(panels, names, strict=False):
        parts.dress(axes)
        axes.set(xlabel="workers", ylabel="samples/s", xscale="log", yscale="log")
        axes.set_title(parts.plain(name), fontsize=9)
        own = predicted[predicted["series"] == name]
        for number, (batch, line) in enumerate(own.groupby("batch_size_per_worker")):
            dots = measured[
                (measured["series"] == name) & (measured["batch_size_per_worker"] == batch)
            ]
            _predicted_line(axes, line, dots, COLOURS[number % len(COLOURS)], f"batch {batch} each")
        workers = sorted(set(own["num_workers"]))
        axes.set_xticks(workers, [str(count) for count in workers])
        axes.minorticks_off()
        parts.plain_ticks(axes, "y")
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(
        "measured (dots), the model with its 90 % interval; dashed: extrapolated", fontsize=9
    )
    return figure


def _predicted_line(
    axes: Axes, line: pd.DataFrame, dots: pd.DataFrame, colour: str, label: str
) -> None:
    line = line.sort_values("num_workers")
    known = line[~line["extrapolated"]]
    beyond = pd.concat([known.tail(1), line[line["extrapolated"]]])
    axes.plot(known["num_workers"], known["samples_per_s"], color=colour, label=label)
    if len(beyond) > len(known.tail(1)):
        axes.plot(
            beyond["num_workers"],
            beyond["samples_per_s"],
            color=colour,
            linestyle="--",
            gid="extrapolated",
        )
    axes.fill_between(line["num_workers"], line["low"], line["high"], color=colour, alpha=0.15)
    axes.plot(
        dots["num_workers"], dots["samples_per_s"], linestyle="none", marker=".", color=colour
    )


def _panels(
    cells: pd.DataFrame, column: str, label: str, ideal: Callable[[Axes, list[int]], None]
) -> Figure:
    """Draw the curves of weak and of strong scaling, never on the same axes."""
    scalings = list(dict.fromkeys(cells["scaling"])) or ["weak"]
    size = (4.6 * max(len(scalings), 1.5), 4.4)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(1, len(scalings), sharey=True, squeeze=False)[0]
    for axes, scaling in zip(panels, scalings, strict=True):
        parts.dress(axes)
        axes.set(xlabel="workers", title=f"{scaling} scaling")
        curves = curves_of(cells[cells["scaling"] == scaling])
        if not curves:
            parts.say(figure, axes, "no cell with a single worker to compare with")
            continue
        workers = sorted(
            {int(count) for curve in curves.values() for count in curve["num_workers"]}
        )
        for number, (name, curve) in enumerate(curves.items()):
            told = _short(name, scaling, cells)
            _curve(axes, curve, column, COLOURS[number % len(COLOURS)], told)
        ideal(axes, workers)
        axes.set_xticks(workers)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=7.5)
    panels[0].set_ylabel(label)
    return figure


def _curve(axes: Axes, curve: pd.DataFrame, column: str, colour: str, label: str) -> None:
    middle = curve[column].astype(float)
    low = (middle - curve[f"{column}_low"].astype(float)).fillna(0.0).clip(lower=0)
    high = (curve[f"{column}_high"].astype(float) - middle).fillna(0.0).clip(lower=0)
    axes.errorbar(
        curve["num_workers"],
        middle,
        yerr=np.array([low, high]),
        color=colour,
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
