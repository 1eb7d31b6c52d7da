"""The figure of speed against cost: is more hardware worth it?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from raybench.report.figures import parts
from raybench.report.figures.parts import drawn, metric_axis
from raybench.results.analyses import not_dominated, pareto_front
from raybench.results.ranking import confirmed, ranked
from raybench.results.study import Study
from raybench.results.verdict import reached_target
from raybench.spec.text import counted

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
    figure, axes = parts.new_figure(4.0)
    axes.set_xlabel("worker-seconds to the target [s]  (right: dearer)")
    axes.set_ylabel("expected seconds to the target [s]")
    front = pareto_front(points)
    # The frame holds the points, and the ranges that are drawn of those on the front.
    ends = pd.concat([front["low_s"], front["high_s"]])
    costs = ends * pd.concat([front["num_workers"]] * 2)
    for which, more in (("x", costs), ("y", ends)):
        values = pd.concat([points[which], more]).dropna()
        parts.log_axis(axes, which, values.min(), values.max())
    shown = _points(axes, points, set(front["trial"]))
    known = front[front["is_confirmed"] & np.isfinite(front["high_s"])]
    for row in parts.tuples(known):
        interval = np.array([row.low_s, row.high_s])
        style: dict[str, Any] = {"color": parts.colour_of(row.framework), "alpha": 0.25}
        axes.plot(interval * row.num_workers, interval, linewidth=6, zorder=1, **style)
    _diagonals(axes, results.trials[results.trials["phase"] == "search"])
    _front(axes, front.iloc[::-1], worst=axes.get_ylim()[1])
    _name_front(figure, axes, front)
    once = "search (one run)" + parts.of_all(shown, len(points), "configurations")
    again = f"confirmed (expected, {_up_to(points['runs'][points['is_confirmed']])} runs)"
    bands = [Patch(label="90 % interval", **style)] if len(known) else []
    _explain(figure, points, once, again, bands)
    return figure


def has_costs(results: Study) -> bool:
    """Return whether any run has what the figure draws."""
    return len(_metric_points(results)) > 0


def _metric_points(results: Study) -> pd.DataFrame:
    metric, proof = results.metric, confirmed(results).set_index("trial")
    runs = ranked(results.trials)
    runs = runs[runs[metric.best_column].notna() & (runs["worker_seconds"] > 0)]
    is_confirmed = runs["trial"].isin(proof.index) & (not results.is_timed)
    medians = runs["trial"].map(proof[f"median_{metric.name}"])
    y = drawn(metric, medians.where(is_confirmed, runs[metric.best_column]))
    runs = runs.assign(x=runs["worker_seconds"], y=y, is_confirmed=is_confirmed)
    # No median where most confirming runs have failed.
    known: pd.DataFrame = runs[np.isfinite(runs["y"])]
    return known


def _metric_figure(results: Study) -> Figure:
    metric, runs = results.metric, _metric_points(results)
    figure, axes = parts.new_figure(3.7)
    axes.set_xlabel("worker-seconds of training [s]  (right: dearer)")
    axes.set_ylabel(parts.plain(f"best {metric.axis_words}"))
    losses = np.column_stack([runs["x"], -metric.sign * runs["y"]])
    front = runs[not_dominated(losses)].sort_values("x")
    shown = _points(axes, runs, set(front["trial"]))
    metric_axis(axes, results, runs["y"] / (100 if metric.is_share else 1))
    parts.log_axis(axes, "x", runs["x"].min(), runs["x"].max())
    _front(axes, front, worst=axes.get_ylim()[metric.direction == "min"])
    if results.is_timed:
        words = f"no run reached the target: best {metric.words} of each"
        parts.head(axes, parts.plain(words), parts.TEXT)
    once = "search (one run)" + parts.of_all(shown, len(runs), "runs")
    again = f"confirmed (median of {_up_to(confirmed(results)['new_runs'])})"
    _explain(figure, runs, once, again)
    return figure


def _points(axes: Axes, points: pd.DataFrame, front: set[str]) -> int:
    """Draw the points, of very many that ran once some; return how many."""
    is_named = points["is_confirmed"] | points["trial"].isin(front)
    shown = pd.concat([points[is_named], parts.some(points[~is_named], MOST_POINTS)])
    for row in parts.tuples(shown):
        colour = parts.colour_of(row.framework)
        style: dict[str, Any] = {"marker": parts.marker_of(row.num_workers)}
        if row.is_confirmed:
            style |= {"ms": 8, "mfc": colour, "mec": parts.PAPER, "mew": 1, "zorder": 4}
        else:
            style |= {"ms": 6.5, "mfc": parts.PAPER, "mec": colour, "mew": 1.6, "zorder": 3}
        parts.mark(axes, row.x, row.y, str(row.trial), **style)
    return len(shown)


def _explain(
    figure: Figure, rows: pd.DataFrame, once: str, again: str, more: Sequence[Artist] = ()
) -> None:
    """Explain colours, markers and fillings: of what ran once, and again."""
    handles = [*parts.frameworks(rows["framework"]), *parts.workers(rows["num_workers"])]
    for is_confirmed, words in ((False, once), (True, again)):
        if (rows["is_confirmed"] == is_confirmed).any():
            handles.append(parts.dot(words, is_filled=is_confirmed))
    handles += [parts.key("Pareto front", linewidth=1.4), *more]
    parts.legend_below(figure, handles, most=2)


def _up_to(runs: "pd.Series[int]") -> str:
    """Return `3`, or `2 to 5` where configurations have run differently often."""
    return " to ".join(dict.fromkeys(f"{end:.0f}" for end in (runs.min(), runs.max())))


def _diagonals(axes: Axes, search: pd.DataFrame) -> None:
    """Draw the line of each worker count, and where it leaves the frame its hit rate."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    hits = search["time_to_target_s"].notna().groupby(search["num_workers"]).agg(["sum", "size"])
    # A doubling of the workers is narrower than the words above it: every other one stands higher.
    crowded, num_above = right / left > 2**WIDEST, 0
    for count, (reached, tried) in zip(hits.index, hits.to_numpy(), strict=True):
        if count * high <= left or count * low >= right:
            continue  # it does not cross the frame
        ends = [count * low, count * high]
        axes.plot(ends, [low, high], color=parts.QUIET, linewidth=0.8, zorder=0)
        words, hits_of = f"{counted(int(count), 'worker')}:\n", f"{reached} of {tried}"
        if count * high <= right:
            words += f"{hits_of}\nreached it"  # narrow: a neighbour is a factor of two beside it
            lift = (0, 4.2 * parts.SMALL * (num_above % 2 if crowded else 0))
            style: dict[str, Any] = {"fontsize": parts.SMALL, "color": parts.INK, "ha": "center"}
            style |= {"va": "bottom"}
            axes.annotate(words, (count * high, high), lift, textcoords="offset points", **style)
            num_above += 1
        else:
            parts.write(axes, right, right / count, f" {words} {hits_of} reached it")


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
    for number, row in enumerate(parts.tuples(front), start=1):
        if len(front) > 1:
            style: dict[str, Any] = {"fontsize": parts.TEXT, "color": parts.INK, "ha": "right"}
            style |= {"va": "top", "textcoords": "offset points"}
            axes.annotate(str(number), (row.x, row.y), (-6, -6), **style)
        if number > MOST_NAMED:
            continue
        words = f"{number}  " if len(front) > 1 else ""
        words += f"{row.trial}  {row.config}: {row.y:.3g} s, {row.x:.3g} worker-seconds"
        if row.is_confirmed and row.hits < row.runs:
            words += f" ({row.hits} of {row.runs} runs reached the target)"
        label = parts.wrapped(words, parts.ROOM - 6)
        num_lines += 1 + label.count("\n")
        colour, marker = parts.colour_of(row.framework), parts.marker_of(row.num_workers)
        handles.append(parts.dot(label, colour, marker=marker, is_filled=row.is_confirmed))
    title = "on the Pareto front" + (f" (first {MOST_NAMED})" if len(front) > MOST_NAMED else "")
    place: dict[str, Any] = {"loc": "outside upper left", "alignment": "left", "title": title}
    legend = figure.legend(handles=handles, title_fontsize=parts.SMALL, **place, **parts.LEGEND)
    legend.get_title().set_color(parts.INK)
    figure.set_figheight(figure.get_figheight() + parts.LINE * num_lines)
