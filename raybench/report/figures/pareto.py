"""The figure of speed against cost: is more hardware worth it?"""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from raybench.report.figures import parts
from raybench.report.figures.parts import drawn, metric_axis
from raybench.results.analyses import not_dominated, pareto_front
from raybench.results.ranking import confirmed, ranked
from raybench.results.study import Study
from raybench.results.verdict import reached_target

WIDEST = 5
"""Doublings of the costs along the axis up to which the words above it have room side by side."""
MOST_NAMED = 5
"""Points of the front whose configurations there is room to name."""
MOST_POINTS = 200
"""Configurations that ran once and are drawn, from the best to the worst."""


def pareto_figure(results: Study) -> Figure:
    """What speed costs: expected seconds to the target against worker-seconds to the target.

    Each worker count is one diagonal; the words at its end say how many of its search runs
    reached the target. If no run did, or none is asked for: the best value of the metric against
    worker-seconds of training.
    """
    points = reached_target(results)
    if points.empty:
        return _metric_figure(results)
    points = points.assign(x=points["worker_seconds_to_target"], y=points["time_to_target_s"])
    figure, axes = parts.new_figure(parts.WIDTH, 4.0)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("worker-seconds to the target [s]  (right: dearer)")
    axes.set_ylabel("expected seconds to the target [s]")
    front = pareto_front(points)
    _limits(axes, points, front)
    shown = _points(axes, points, set(front["trial"]))
    known = front[front["is_confirmed"] & np.isfinite(front["high_s"])]
    for _, row in known.iterrows():
        ends = np.array([row["low_s"], row["high_s"]])
        colour = parts.colour_of(row["framework"])
        axes.plot(ends * row["num_workers"], ends, color=colour, alpha=0.25, lw=6, zorder=1)
    _diagonals(axes, results.trials[results.trials["phase"] == "search"])
    _front(axes, front.iloc[::-1], worst=axes.get_ylim()[1])
    _name_front(figure, axes, front)
    once = "search (one run)" + parts.of_all(shown, len(points), "configurations")
    again = f"confirmed (expected, {_up_to(points['runs'][points['is_confirmed']])} runs)"
    colour = parts.colour_of(known["framework"].iloc[-1]) if len(known) else ""
    bands = [Patch(color=colour, alpha=0.25, label="90 % interval")] if colour else []
    _explain(figure, points, once, again, bands)
    return figure


def _points(axes: Axes, points: pd.DataFrame, front: set[str]) -> int:
    """Draw the points, of very many that ran once some; return how many."""
    is_named = points["is_confirmed"] | points["trial"].isin(front)
    others = points[~is_named]
    kept = others.iloc[parts.spread(range(len(others)), MOST_POINTS)]
    shown = pd.concat([points[is_named], kept])
    for _, row in shown.iterrows():
        parts.point(axes, row, row["x"], row["y"], is_filled=bool(row["is_confirmed"]))
    return len(shown)


def _metric_figure(results: Study) -> Figure:
    metric, proof = results.metric, confirmed(results).set_index("trial")
    figure, axes = parts.new_figure(parts.WIDTH, 3.7)
    axes.set_xlabel("worker-seconds of training [s]  (right: dearer)")
    axes.set_ylabel(parts.plain(f"best {metric.axis_words}"))
    runs = ranked(results.trials)
    runs = runs[runs[metric.best_column].notna() & (runs["worker_seconds"] > 0)]
    is_confirmed = runs["trial"].isin(proof.index) & (not results.is_timed)
    medians = runs["trial"].map(proof[f"median_{metric.name}"])
    y = drawn(metric, medians.where(is_confirmed, runs[metric.best_column]))
    runs = runs.assign(x=runs["worker_seconds"], y=y, is_confirmed=is_confirmed)
    runs = runs[np.isfinite(runs["y"])]  # no median where most confirming runs have failed
    if runs.empty:
        return parts.say(figure, axes, parts.NOTHING)
    losses = np.column_stack([runs["x"], -metric.sign * runs["y"]])
    front = runs[not_dominated(losses)].sort_values("x")
    shown = _points(axes, runs, set(front["trial"]))
    metric_axis(axes, results, runs["y"] / (100 if metric.is_share else 1))
    axes.set(xscale="log", xlim=parts.window(runs["x"].min(), runs["x"].max()))
    _front(axes, front, worst=axes.get_ylim()[metric.direction == "min"])
    parts.plain_ticks(axes, "x")
    if results.is_timed:
        what = parts.plain(metric.words)
        parts.head(axes, f"no run reached the target: best {what} of each")
    once = "search (one run)" + parts.of_all(shown, len(runs), "runs")
    _explain(figure, runs, once, f"confirmed (median of {_up_to(proof['new_runs'])})")
    return figure


def _explain(
    figure: Figure, rows: pd.DataFrame, once: str, again: str, more: Sequence[Artist] = ()
) -> None:
    """Explain colours, markers and fillings: of what ran once, and again."""
    handles: list[Artist] = [
        Patch(color=parts.colour_of(name), label=parts.plain(name))
        for name in sorted(set(rows["framework"].astype(str)))
    ]
    for count in sorted(set(rows["num_workers"])):
        label, marker = parts.plural(int(count), "worker"), parts.marker_of(count)
        handles.append(parts.dot(label, marker=marker))
    for is_confirmed, words in ((False, once), (True, again)):
        if (rows["is_confirmed"] == is_confirmed).any():
            handles.append(parts.dot(words, is_filled=is_confirmed))
    handles += [parts.key("Pareto front", linewidth=1.4), *more]
    parts.legend_below(figure, handles, most=2)


def _up_to(runs: pd.Series) -> str:
    """Return `3`, or `2 to 5` where configurations have run differently often."""
    if runs.empty:
        return ""
    low, high = int(runs.min()), int(runs.max())
    return f"{low}" if low == high else f"{low} to {high}"


def _limits(axes: Axes, points: pd.DataFrame, front: pd.DataFrame) -> None:
    """Frame the points, and the ranges that are drawn of those on the front."""
    ends = pd.concat([front["low_s"], front["high_s"]])
    costs = pd.concat([points["x"], ends * pd.concat([front["num_workers"]] * 2)]).dropna()
    seconds = pd.concat([points["y"], ends]).dropna()
    axes.set(xlim=parts.window(costs.min(), costs.max()))
    axes.set(ylim=parts.window(seconds.min(), seconds.max()))
    parts.plain_ticks(axes, "x")
    parts.plain_ticks(axes, "y")


def _diagonals(axes: Axes, search: pd.DataFrame) -> None:
    """Draw the line of each worker count, and where it leaves the frame its hit rate."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    hits = search["time_to_target_s"].notna().groupby(search["num_workers"]).agg(["sum", "size"])
    # A doubling of the workers is narrower than the words above it: every other one stands higher.
    crowded, num_above = right / left > 2**WIDEST, 0
    for count in sorted(set(search["num_workers"])):
        if count * high <= left or count * low >= right:
            continue  # it does not cross the frame
        ends = [count * low, count * high]
        axes.plot(ends, [low, high], color=parts.QUIET, linewidth=0.8, zorder=0)
        reached, tried = hits.loc[count, "sum"], hits.loc[count, "size"]
        words, hits_of = f"{parts.plural(count, 'worker')}:\n", f"{reached} of {tried}"
        style: dict[str, Any] = {"fontsize": parts.SMALL, "color": parts.INK}
        if count * high <= right:
            words += f"{hits_of}\nreached it"  # narrow: a neighbour is a factor of two beside it
            lift = (0, 4.2 * parts.SMALL * (num_above % 2 if crowded else 0))
            axes.annotate(
                words, (count * high, high), lift, textcoords="offset points",
                ha="center", va="bottom", **style,
            )  # fmt: skip
            num_above += 1
        else:
            words = f" {words} {hits_of} reached it"
            axes.text(right, right / count, words, ha="left", va="center", **style)


def _front(axes: Axes, front: pd.DataFrame, *, worst: float) -> None:
    """Draw the border of what is beaten: steps, because nothing was measured in between."""
    style: dict[str, Any] = {"color": parts.INK, "linewidth": 1.2, "zorder": 2}
    style["drawstyle"] = "steps-post"
    axes.plot(front["x"], front["y"], gid="front", **style)
    right, first, last = axes.get_xlim()[1], front.iloc[0], front.iloc[-1]
    axes.plot([first["x"]] * 2, [worst, first["y"]], **style)
    axes.plot([last["x"], right], [last["y"]] * 2, **style)


def _name_front(figure: Figure, axes: Axes, front: pd.DataFrame) -> None:
    """Number the points of the front, and say above the figure what they are."""
    handles, num_lines = [], 0
    for number, (_, row) in enumerate(front.iterrows(), start=1):
        colour = parts.colour_of(row["framework"])
        cost, seconds = row["worker_seconds_to_target"], row["time_to_target_s"]
        style: dict[str, Any] = {
            "fontsize": parts.TEXT,
            "color": parts.INK,
            "ha": "right",
            "va": "top",
        }
        if len(front) > 1:
            offset: dict[str, Any] = {"xytext": (-6, -6), "textcoords": "offset points"}
            axes.annotate(str(number), (cost, seconds), **offset, **style)
        if number > MOST_NAMED:
            continue
        words = f"{row['trial']}  {row['config']}: {seconds:.3g} s, {cost:.3g} worker-seconds"
        if row["is_confirmed"] and row["hits"] < row["runs"]:
            words += f" ({row['hits']} of {row['runs']} runs reached the target)"
        words = f"{number}  {words}" if len(front) > 1 else words
        lines = textwrap.wrap(words, parts.ROOM - 6, break_on_hyphens=False)
        num_lines += len(lines)
        face = colour if row["is_confirmed"] else "white"
        marker = parts.marker_of(row["num_workers"])
        label = parts.plain("\n".join(lines))
        handles.append(
            Line2D([], [], marker=marker, ls="none", color=colour, mfc=face, label=label)
        )
    title = "on the Pareto front" + (f" (first {MOST_NAMED})" if len(front) > MOST_NAMED else "")
    figure.legend(
        handles=handles,
        loc="outside upper left",
        frameon=False,
        fontsize=parts.SMALL,
        labelcolor=parts.INK,
        title=title,
        title_fontsize=parts.SMALL,
        alignment="left",
    ).get_title().set_color(parts.INK)
    figure.set_figheight(figure.get_figheight() + parts.LINE * num_lines)
