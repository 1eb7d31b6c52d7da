"""The figure of what a scaling study's runs have learnt."""

from matplotlib.figure import Figure

from raybench.results import plot_parts as parts
from raybench.results.load import StudyResults
from raybench.results.metric_axis import drawn
from raybench.results.scaling.plots import cell_label, cell_rows

MOST_LINES = 24
"""Cells that a legend has room for."""
LEGEND_WIDTH = 66
"""Characters of a label up to which two stand side by side."""


def accuracy_figure(results: StudyResults) -> Figure:
    """The metric of every run on validation, against epochs and against seconds of training."""
    metric = results.metric
    runs, cells = results.scaling_runs, results.scaling.drop_duplicates("cell")
    labels = {str(row["cell"]): cell_label(row) for row in cell_rows(cells)}
    columns = 2 if max(map(len, labels.values()), default=0) <= LEGEND_WIDTH else 1
    legend = 0.2 * min(len(labels), MOST_LINES) / columns
    figure = Figure(figsize=(9.0, 4.2 + legend), dpi=100, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    curves = dict(iter(results.curves.groupby("trial")))
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
                        drawn(metric, curves[trial][metric.name]),
                        color=parts.colour(number),
                        linestyle=parts.line_of(number),
                        linewidth=1.2,
                        marker=".",
                        label=told if axes is panels[0] else None,
                        gid=trial,
                    )
                    told = "_nolegend_"
        axes.set_xlim(left=0)
    panels[0].set_ylabel(parts.plain(metric.axis_words))
    if panels[0].lines and len(labels) <= MOST_LINES:
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure
