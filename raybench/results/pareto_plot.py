"""The figure of speed against cost: is more hardware worth it?"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.results import plot_parts as parts
from raybench.results.load import StudyResults
from raybench.results.pareto import configurations, not_dominated, pareto_front
from raybench.results.tables import ranked


def pareto_figure(results: StudyResults) -> Figure:
    """What speed costs: seconds to the target against worker-seconds to the target.

    Each worker count is one diagonal; the numbers at its end say how many of its search runs
    reached the target. If no run did: best accuracy against worker-seconds of training.
    """
    points = configurations(results)
    if points.empty:
        return _accuracy_figure(results)
    figure, axes = parts.new_figure(7.4, 5.2)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("worker-seconds to the target = workers x seconds  (right: dearer)")
    axes.set_ylabel("seconds of training to the target  (up: slower)")
    front = pareto_front(points)
    bands: list[Patch] = []
    for _, row in points.iterrows():
        seconds, is_filled = row["time_to_target_s"], bool(row["is_confirmed"])
        parts.point(axes, row, row["worker_seconds_to_target"], seconds, is_filled=is_filled)
        if is_filled and np.isfinite(row["high_s"]) and row["trial"] in set(front["trial"]):
            ends = np.array([row["low_s"], row["high_s"]])
            colour = parts.colour_of(row["framework"])
            axes.plot(ends * row["num_workers"], ends, color=colour, alpha=0.25, lw=6, zorder=1)
            bands = [Patch(color=colour, alpha=0.25, label="its fastest to slowest run")]
    _diagonals(axes, points, results.trials[results.trials["phase"] == "search"])
    cheapest_first = front.iloc[::-1]
    cost = cheapest_first["worker_seconds_to_target"]
    _front(axes, cost, cheapest_first["time_to_target_s"], worst=axes.get_ylim()[1])
    _name_front(axes, front)
    runs = points["runs"][points["is_confirmed"]]
    kinds = [("search (one run)", False)] if not points["is_confirmed"].all() else []
    if len(runs):
        kinds.append((f"confirmed (median of {runs.max()})", True))
    parts.point_legend(figure, points, kinds=kinds, more=bands)
    return figure


def _accuracy_figure(results: StudyResults) -> Figure:
    figure, axes = parts.new_figure(7.4, 4.8)
    axes.set_xlabel("worker-seconds of training = workers x seconds  (right: dearer)")
    axes.set_ylabel("best validation accuracy [%]")
    runs = ranked(results.trials)
    runs = runs[runs["best_accuracy"].notna() & (runs["worker_seconds"] > 0)]
    if runs.empty:
        return parts.say(figure, axes, parts.NOTHING)
    x, y = runs["worker_seconds"].astype(float), 100 * runs["best_accuracy"].astype(float)
    for (_, row), cost, accuracy in zip(runs.iterrows(), x, y, strict=True):
        parts.point(axes, row, cost, accuracy, is_filled=False)
    front = x[not_dominated(np.column_stack([x, -y]))].sort_values()
    parts.accuracy_axis(axes, results)
    axes.set(xscale="log", xlim=(0.8 * x.min(), 1.3 * x.max()))
    _front(axes, front, y[front.index], worst=axes.get_ylim()[0])
    parts.plain_ticks(axes, "x")
    if results.target is not None:
        axes.set_title("no run reached the target: best accuracy of each, and its cost")
    parts.point_legend(figure, runs, kinds=[("search (one run)", False)])
    return figure


def _diagonals(axes: Axes, points: pd.DataFrame, search: pd.DataFrame) -> None:
    """Draw the line of each worker count, and on the top axis its hit rate."""
    counts = sorted(set(search["num_workers"]))
    low, high = 0.6 * points["low_s"].min(), 1.6 * points["time_to_target_s"].max()
    axes.set(ylim=(low, high), xlim=(low * counts[0] * 0.16, high * counts[-1] * 1.4))
    for count in counts:
        axes.plot([count * low, count * high], [low, high], color="#DDDDDD", linewidth=1, zorder=0)
    parts.plain_ticks(axes, "x")
    parts.plain_ticks(axes, "y")
    top = axes.secondary_xaxis("top")
    hits = search["time_to_target_s"].notna().groupby(search["num_workers"]).agg(["sum", "size"])
    labels = [f"{count}\n{hits.loc[count, 'sum']} of {hits.loc[count, 'size']}" for count in counts]
    top.set_xticks([count * high for count in counts], labels, minor=False)
    top.tick_params(which="both", length=0)
    top.set_xlabel("workers / search runs that reached the target", fontsize=9)
    top.spines["top"].set_visible(False)


def _front(axes: Axes, cost: pd.Series, value: pd.Series, *, worst: float) -> None:
    """Draw the border of what is beaten: steps, because nothing was measured in between."""
    style: dict[str, Any] = {"color": parts.INK, "linewidth": 1.2, "zorder": 2}
    style["drawstyle"] = "steps-post"
    axes.plot(cost, value, gid="front", **style)
    right = axes.get_xlim()[1]
    axes.plot([cost.iloc[0]] * 2, [worst, value.iloc[0]], **style)
    axes.plot([cost.iloc[-1], right], [value.iloc[-1]] * 2, **style)


def _name_front(axes: Axes, front: pd.DataFrame) -> None:
    """Name the points of the front at their left, where nothing can be, from the top down."""
    low, high = axes.get_ylim()
    line_height = (high / low) ** 0.045
    y = float("inf")
    for _, row in front.iloc[::-1].iterrows():
        y = min(float(row["time_to_target_s"]), y / line_height)
        axes.annotate(
            f"{row['trial']}  {row['config']}",
            (row["worker_seconds_to_target"], y),
            xytext=(-9, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=9,
            color=parts.colour_of(row["framework"]),
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
