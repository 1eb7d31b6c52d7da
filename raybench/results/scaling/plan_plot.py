"""The figure of a scaling study's plan: seconds to the target over batch size and workers."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.results.figures import parts

MOST_PANELS, MOST_LINES = 6, 6
PANEL = 3.0
"""Inches of a panel's height."""


def plan_figure(plan: pd.DataFrame) -> Figure:
    """Seconds to the target over the global batch size: predicted, and measured where it ran.

    `plan`: series, gpu_type, num_workers, num_nodes, global_batch_size, seconds, low_s, high_s,
    measured_s (missing where nothing ran, infinite where most runs missed). A panel for each series
    and kind of worker, a line for each number of workers; hollow and dashed is predicted (~).
    """
    kinds = list(dict.fromkeys(zip(plan["series"], plan["gpu_type"], strict=True)))[:MOST_PANELS]
    size = (parts.WIDTH, PANEL * max(len(kinds), 1) + 0.3)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(max(len(kinds), 1), 1, squeeze=False)[:, 0]
    if not kinds:
        return parts.say(figure, panels[0], "no plan: too little was measured")
    layouts = sorted(set(zip(plan["num_workers"], plan["num_nodes"], strict=True)))
    for axes, (series, gpu_type) in zip(panels, kinds, strict=True):
        parts.dress(axes)
        own = plan[(plan["series"] == series) & (plan["gpu_type"] == gpu_type)]
        axes.set(xscale="log", yscale="log")
        for number, layout in enumerate(layouts[:MOST_LINES]):
            here = (own["num_workers"] == layout[0]) & (own["num_nodes"] == layout[1])
            _line(axes, own[here].sort_values("global_batch_size"), number)
        _ticks(axes, own)
        title = parts.wrapped(f"{series}, {gpu_type}", parts.ROOM)
        axes.set_title(title, fontsize=parts.SMALL, color=parts.INK, loc="left")
        axes.set_ylabel("seconds to the target [s]")
    panels[-1].set_xlabel("global batch size [samples a step]")
    keys = _keys(layouts, has_measured=bool(np.isfinite(plan["measured_s"]).any()))
    labels = [str(one.get_label()) for one in keys]
    parts.legend_below(figure, keys, columns=parts.columns_for(labels))
    return figure


def _line(axes: Axes, line: pd.DataFrame, number: int) -> None:
    colour, marker = parts.colour(number), parts.marker(number)
    axes.plot(
        line["global_batch_size"],
        line["seconds"],
        color=colour,
        linestyle="--",
        linewidth=1.2,
        marker=marker,
        markerfacecolor=parts.PAPER,
        gid="extrapolated",
    )
    axes.fill_between(
        line["global_batch_size"], line["low_s"], line["high_s"], color=colour, alpha=0.1, lw=0
    )
    ran = line[np.isfinite(line["measured_s"])]
    style: dict[str, Any] = {"linestyle": "none", "markersize": 7, "zorder": 4}
    style["markeredgecolor"] = parts.PAPER
    axes.plot(ran["global_batch_size"], ran["measured_s"], color=colour, marker=marker, **style)


def _ticks(axes: Axes, own: pd.DataFrame) -> None:
    sizes = sorted({int(size) for size in own["global_batch_size"]})
    sizes = sizes[:: max(-(-len(sizes) // 8), 1)]
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    every = own[["low_s", "high_s", "measured_s"]].to_numpy(dtype=float).ravel()
    every = every[np.isfinite(every)]
    axes.set_ylim(parts.window(every.min(), every.max(), margin=1.1))
    parts.plain_ticks(axes, "y")


def _keys(layouts: list[tuple[int, int]], *, has_measured: bool) -> list[Artist]:
    keys: list[Artist] = []
    for number, (workers, nodes) in enumerate(layouts[:MOST_LINES]):
        words = parts.plural(int(workers), "worker")
        words += f" on {parts.plural(int(nodes), 'host')}" if nodes > 1 else ""
        style = {"linestyle": "--", "marker": parts.marker(number)}
        keys.append(parts.key(words, parts.colour(number), **style))
    if len(layouts) > MOST_LINES:
        keys.append(parts.key(f"{len(layouts) - MOST_LINES} more layouts", linestyle="none"))
    style = {"linestyle": "--", "marker": "o", "markerfacecolor": parts.PAPER}
    keys.append(parts.key("~ predicted", **style))
    keys.append(Patch(color=parts.INK, alpha=0.12, label="90 % interval"))
    if has_measured:
        keys.append(parts.dot("measured (median)"))
    return keys
