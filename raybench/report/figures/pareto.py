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
    figure, axes = parts.new_figure(parts.WIDTH, 4.0)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("worker-seconds to the target [s]  (right: dearer)")
    axes.set_ylabel("expected seconds to the target [s]")
    front = pareto_front(points)
    _limits(axes, points, front)
    bands: list[Patch] = []
    shown = _some(points, front)
    for _, row in shown.iterrows():
        seconds, is_filled = row["time_to_target_s"], bool(row["is_confirmed"])
        parts.point(axes, row, row["worker_seconds_to_target"], seconds, is_filled=is_filled)
        if is_filled and np.isfinite(row["high_s"]) and row["trial"] in set(front["trial"]):
            ends = np.array([row["low_s"], row["high_s"]])
            colour = parts.colour_of(row["framework"])
            axes.plot(ends * row["num_workers"], ends, color=colour, alpha=0.25, lw=6, zorder=1)
            bands = [Patch(color=colour, alpha=0.25, label="90 % interval")]
    _diagonals(axes, results.trials[results.trials["phase"] == "search"])
    cheapest_first = front.iloc[::-1]
    cost = cheapest_first["worker_seconds_to_target"]
    _front(axes, cost, cheapest_first["time_to_target_s"], worst=axes.get_ylim()[1])
    _name_front(figure, axes, front)
    runs = points["runs"][points["is_confirmed"]]
    once = "search (one run)" + parts.of_all(len(shown), len(points), "configurations")
    kinds = [(once, False)] if not points["is_confirmed"].all() else []
    if len(runs):
        kinds.append((f"confirmed (expected, {_up_to(runs)} runs)", True))
    _explain(figure, points, kinds=kinds, more=bands)
    return figure


def _some(points: pd.DataFrame, front: pd.DataFrame) -> pd.DataFrame:
    """Return the points that are drawn: of very many, some of those that ran once."""
    is_named = points["is_confirmed"] | points["trial"].isin(set(front["trial"]))
    others = points[~is_named]
    kept = others.iloc[parts.spread(range(len(others)), MOST_POINTS)]
    return pd.concat([points[is_named], kept])


def _metric_figure(results: Study) -> Figure:
    metric = results.metric
    figure, axes = parts.new_figure(parts.WIDTH, 3.7)
    axes.set_xlabel("worker-seconds of training [s]  (right: dearer)")
    axes.set_ylabel(parts.plain(f"best {metric.axis_words}"))
    runs = ranked(results.trials)
    runs = runs[runs[metric.best_column].notna() & (runs["worker_seconds"] > 0)]
    if runs.empty:
        return parts.say(figure, axes, parts.NOTHING)
    proof = confirmed(results).set_index("trial")
    is_confirmed = runs["trial"].isin(proof.index) & (not results.is_timed)
    medians = runs["trial"].map(proof[f"median_{metric.name}"])
    y = drawn(metric, medians.where(is_confirmed, runs[metric.best_column]))
    is_known = np.isfinite(y)  # no median where most confirming runs have failed
    runs, y, is_confirmed = runs[is_known], y[is_known], is_confirmed[is_known]
    if runs.empty:
        return parts.say(figure, axes, parts.NOTHING)
    x = runs["worker_seconds"]
    front = x[not_dominated(np.column_stack([x, -metric.sign * y]))].sort_values()
    chosen = runs.assign(is_confirmed=is_confirmed)
    shown = _some(chosen, chosen.loc[front.index])
    for (_, row), cost, value in zip(shown.iterrows(), x[shown.index], y[shown.index], strict=True):
        parts.point(axes, row, cost, value, is_filled=bool(row["is_confirmed"]))
    metric_axis(axes, results, y / (100 if metric.is_share else 1))
    axes.set(xscale="log", xlim=parts.window(x.min(), x.max()))
    _front(axes, front, y[front.index], worst=axes.get_ylim()[metric.direction == "min"])
    parts.plain_ticks(axes, "x")
    if results.is_timed:
        what = parts.plain(metric.words)
        parts.head(axes, f"no run reached the target: best {what} of each")
    once = "search (one run)" + parts.of_all(len(shown), len(runs), "runs")
    kinds = [(once, False)] if not is_confirmed.all() else []
    if is_confirmed.any():
        kinds.append((f"confirmed (median of {_up_to(proof['new_runs'])})", True))
    _explain(figure, runs, kinds=kinds)
    return figure


def _explain(
    figure: Figure,
    rows: pd.DataFrame,
    *,
    kinds: Sequence[tuple[str, bool]],
    more: Sequence[Artist] = (),
) -> None:
    """Explain colours, markers and fillings; `kinds` are (words, is_filled)."""
    handles: list[Artist] = [
        Patch(color=parts.colour_of(name), label=parts.plain(name))
        for name in sorted(set(rows["framework"].astype(str)))
    ]
    for count in sorted(set(rows["num_workers"])):
        label, marker = parts.plural(int(count), "worker"), parts.marker_of(count)
        handles.append(parts.dot(label, marker=marker))
    handles += [parts.dot(words, is_filled=is_filled) for words, is_filled in kinds]
    handles += [parts.key("Pareto front", linewidth=1.4), *more]
    parts.legend_below(figure, handles, most=2)


def _up_to(runs: pd.Series) -> str:
    """Return `3`, or `2 to 5` where configurations have run differently often."""
    low, high = int(runs.min()), int(runs.max())
    return f"{low}" if low == high else f"{low} to {high}"


def _limits(axes: Axes, points: pd.DataFrame, front: pd.DataFrame) -> None:
    """Frame the points, and the ranges that are drawn of those on the front."""
    seconds = [*points["time_to_target_s"], *front["low_s"].dropna(), *front["high_s"].dropna()]
    costs = [*points["worker_seconds_to_target"]]
    costs += [*(front["low_s"] * front["num_workers"]).dropna()]
    costs += [*(front["high_s"] * front["num_workers"]).dropna()]
    axes.set(
        xlim=parts.window(min(costs), max(costs)), ylim=parts.window(min(seconds), max(seconds))
    )
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


def _front(axes: Axes, cost: pd.Series, value: pd.Series, *, worst: float) -> None:
    """Draw the border of what is beaten: steps, because nothing was measured in between."""
    style: dict[str, Any] = {"color": parts.INK, "linewidth": 1.2, "zorder": 2}
    style["drawstyle"] = "steps-post"
    axes.plot(cost, value, gid="front", **style)
    right = axes.get_xlim()[1]
    axes.plot([cost.iloc[0]] * 2, [worst, value.iloc[0]], **style)
    axes.plot([cost.iloc[-1], right], [value.iloc[-1]] * 2, **style)


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
