"""The figure of a throughput model: measured and predicted samples/s over workers."""

from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.results.figures import parts

TITLE_WIDTH = 32
"""Characters of a panel's title."""
PANEL = 2.6
"""Inches of a panel's height."""
MOST_LINES, MOST_PANELS = 6, 8


def predicted_figure(measured: pd.DataFrame, predicted: pd.DataFrame) -> Figure:
    """Throughput measured and predicted over workers, a panel for each series.

    `measured`: series, num_workers, batch_size_per_worker, samples_per_s (a row a repeat).
    `predicted`: the same of the model's table, with low and high, and `extrapolated`, which is
    drawn dashed and named.
    """
    names = list(dict.fromkeys(predicted["series"]))[:MOST_PANELS]
    width, rows = min(max(len(names), 1), 2), -(-max(len(names), 1) // 2)
    size = (parts.WIDTH, PANEL * rows + 0.4)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(rows, width, squeeze=False).ravel()
    if not names:
        return parts.say(figure, panels[0], "no series of several numbers of workers")
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    batches = sorted(set(predicted["batch_size_per_worker"]))
    shown = parts.spread(batches, MOST_LINES)
    for axes, name in zip(panels, names, strict=False):
        parts.dress(axes)
        axes.set(xscale="log", yscale="log")
        title = parts.wrapped(name, TITLE_WIDTH)
        axes.set_title(title, fontsize=parts.SMALL, color=parts.INK, loc="left")
        own = predicted[predicted["series"] == name]
        for number, batch in enumerate(shown):
            line = own[own["batch_size_per_worker"] == batch]
            dots = measured[
                (measured["series"] == name) & (measured["batch_size_per_worker"] == batch)
            ]
            if len(line):
                _predicted_line(axes, line, dots, number)
        workers = sorted({int(count) for count in own["num_workers"]})
        workers = workers[:: max(-(-len(workers) // 8), 1)]
        axes.set_xticks(workers, [str(count) for count in workers])
        axes.minorticks_off()
        low, high = axes.get_ylim()
        axes.set_ylim(parts.window(low, high, margin=1.0))
        parts.plain_ticks(axes, "y")
    for axes in panels[max(len(names) - width, 0) : len(names)]:
        axes.set_xlabel("workers")
    figure.supylabel("samples/s of all workers", fontsize=parts.TEXT, color=parts.INK)
    parts.legend_below(figure, _keys(shown, len(batches)), columns=2)
    return figure


def _keys(shown: list[int], every: int) -> list[Artist]:
    keys: list[Artist] = [
        parts.key(f"batch {batch:g} a worker", parts.colour(number), marker=parts.marker(number))
        for number, batch in enumerate(shown)
    ]
    keys.append(parts.dot("measured, a dot a repeat"))
    keys.append(Patch(color=parts.INK, alpha=0.15, label="the model, 90 % interval"))
    keys.append(parts.key("~ beyond what was measured", linestyle="--"))
    if every > len(shown):
        keys.append(parts.key(f"{len(shown)} of {every} batch sizes drawn", linestyle="none"))
    return keys


def _predicted_line(axes: Axes, line: pd.DataFrame, dots: pd.DataFrame, number: int) -> None:
    colour = parts.colour(number)
    line = line.sort_values("num_workers")
    known = line[~line["extrapolated"]]
    beyond = pd.concat([known.tail(1), line[line["extrapolated"]]])
    axes.plot(known["num_workers"], known["samples_per_s"], color=colour)
    if len(beyond) > len(known.tail(1)):
        axes.plot(
            beyond["num_workers"],
            beyond["samples_per_s"],
            color=colour,
            linestyle="--",
            gid="extrapolated",
        )
    axes.fill_between(line["num_workers"], line["low"], line["high"], color=colour, alpha=0.1, lw=0)
    style: dict[str, Any] = {"marker": parts.marker(number), "markersize": 4.5, "color": colour}
    axes.plot(dots["num_workers"], dots["samples_per_s"], linestyle="none", **style)
