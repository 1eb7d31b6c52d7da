"""The figure of a throughput model: measured and predicted samples/s over workers."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raybench.results import plot_parts as parts

TITLE_WIDTH = 40
"""Characters of a panel's title."""


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
        return parts.say(figure, panels[0], "no series of several numbers of workers")
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(panels, names, strict=False):
        parts.dress(axes)
        axes.set(xlabel="workers", ylabel="samples/s", xscale="log", yscale="log")
        axes.set_title(parts.wrapped(name, TITLE_WIDTH), fontsize=9)
        own = predicted[predicted["series"] == name]
        for number, (batch, line) in enumerate(own.groupby("batch_size_per_worker")):
            dots = measured[
                (measured["series"] == name) & (measured["batch_size_per_worker"] == batch)
            ]
            _predicted_line(axes, line, dots, parts.colour(number), f"batch {batch} each")
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
