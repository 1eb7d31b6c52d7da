"""The figure of what a scaling study's runs have learnt."""

from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raybench.results.figures import parts
from raybench.results.figures.parts import drawn, metric_axis
from raybench.results.load import StudyResults
from raybench.results.scaling.plots import cell_label, cell_rows

MOST_LINES = 16
"""Cells that a legend has room for."""
MOST_POINTS, MOST_OF_ALL = 60, 5000
"""Points of one curve, and of all."""


def accuracy_figure(results: StudyResults) -> Figure:
    """The metric of every run on validation, against epochs and against seconds of training."""
    metric = results.metric
    runs, cells = results.scaling_runs, results.scaling.drop_duplicates("cell")
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
                    _curve(axes, curve[column], drawn(metric, curve[metric.name]), number, trial)
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


def _curve(
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
