"""Learning curves: every run of the search, the best at every budget, the best configurations."""

import textwrap
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raybench.core.metric import Metric
from raybench.results.analyses import best_at_every_budget
from raybench.results.figures import parts
from raybench.results.figures.metric_axis import drawn, metric_axis
from raybench.results.load import StudyResults
from raybench.results.ranking import repeat

LINE_STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
MOST_CURVES, MOST_POINTS, MOST_OF_ONE = 300, 4000, 200
"""Grey curves that are drawn; evaluations of all of them; of one that is highlighted."""
LONG = 12.0
"""Seconds of the longest over those of the best, beyond which the axis of seconds is a log."""


def curves_figure(results: StudyResults, *, number: int = 3) -> Figure:
    """The metric against seconds of training: every search run, the best `number` highlighted.

    The best are the confirmed configurations, then the search's by score. A marker stands
    where the run reached the target, or at its best value if it did not. The thin dark line is the
    best that any run had reached by then. Of very many runs some are drawn, from the best score to
    the worst.
    """
    metric, trials = results.metric, results.trials
    figure, axes = parts.new_figure(parts.WIDTH, 3.6)
    axes.set(xlabel="seconds of training [s]", ylabel=parts.plain(metric.axis_words))
    search = trials[trials["phase"] == "search"]
    if search.empty:
        return parts.say(figure, axes, parts.NOTHING)
    metric_axis(axes, results)
    best = list(results.configurations["trial"].head(number))
    by_score = search.sort_values("score", kind="stable")["trial"]
    others = [str(trial) for trial in by_score[~by_score.isin(best)]]
    grey = parts.spread(others, MOST_CURVES)
    _grey(axes, results, grey)
    curves = results.curves[results.curves["trial"].isin(set(search["trial"]))]
    keys = _envelope(axes, best_at_every_budget(curves, metric), metric)
    keys = [_best(axes, results, trial, rank) for rank, trial in enumerate(best)] + keys
    _seconds_axis(axes, results, curves)
    words = parts.of_all(len(grey), len(others), "other search runs")
    named = parts.plural(len(best), "configuration")
    rest = words.strip(" ()") or parts.plural(len(others), "other search run")
    if others:
        keys.append(parts.key(f"grey: {rest}", parts.QUIET, linewidth=1))
    parts.head(axes, f"best {named} of {len(search):,} search runs")
    parts.legend_below(figure, keys, columns=1)
    return figure


def _grey(axes: Axes, results: StudyResults, trials: list[str]) -> None:
    every = results.curves[results.curves["trial"].isin(set(trials))]
    most = max(MOST_POINTS // max(len(trials), 1), 8)
    # Looked up one by one, the curves of 10,000 trials would take minutes.
    for trial, curve in every.groupby("trial", sort=False):
        kept = parts.spread(range(len(curve)), most)
        marker = "." if len(curve) == 1 else "None"
        x, y = (values[kept] for values in curve_xy(results.metric, curve))
        style: dict[str, Any] = {"color": parts.QUIET, "linewidth": 0.9, "marker": marker}
        axes.add_line(Line2D(x, y, gid=str(trial), **style))


def _envelope(axes: Axes, best: pd.DataFrame, metric: Metric) -> list[Line2D]:
    if best.empty:
        return []
    best = best.iloc[parts.spread(range(len(best)), MOST_OF_ONE)]
    x, y = curve_xy(metric, best)
    style: dict[str, Any] = {"color": parts.INK, "linewidth": 1.1}
    axes.plot(x, y, drawstyle="steps-post", zorder=2.5, gid="envelope", **style)
    return [parts.key("best at every budget of seconds, of all search runs", **style)]


def _best(axes: Axes, results: StudyResults, trial: str, rank: int) -> Line2D:
    run: Any = results.trials.set_index("trial").loc[trial]
    curve = curve_of(results, trial)
    shown = curve.iloc[parts.spread(range(len(curve)), MOST_OF_ONE)]
    colour, style = parts.colour_of(run["framework"]), LINE_STYLES[rank % len(LINE_STYLES)]
    x, y = curve_xy(results.metric, shown)
    axes.plot(x, y, color=colour, linewidth=2, linestyle=style, zorder=3, gid=trial)
    if len(curve):
        mark(axes, results.metric, curve, run, colour)
    words = "\n".join([name_of(results, trial), *textwrap.wrap(_said(results, trial), parts.ROOM)])
    shape = parts.marker_of(run["num_workers"])
    return parts.key(words, colour, linestyle=style, lw=2, marker=shape, mec=parts.PAPER)


def _said(results: StudyResults, trial: str) -> str:
    return ", ".join(seconds_of(results, trial))


def _seconds_axis(axes: Axes, results: StudyResults, curves: pd.DataFrame) -> None:
    seconds = curves["train_s"][curves["train_s"] > 0]
    fastest = results.configurations["expected_s"].min()
    if len(seconds) and fastest == fastest and seconds.max() > LONG * fastest:
        axes.set(xscale="log", xlim=(max(seconds.min(), fastest / 30), seconds.max() * 1.05))
        parts.plain_ticks(axes, "x")
    else:
        axes.set_xlim(0, 1.03 * seconds.max() if len(seconds) else 1.0)


def curve_of(results: StudyResults, trial: str) -> pd.DataFrame:
    """Return the evaluations of one run."""
    return results.curves[results.curves["trial"] == trial]


def curve_xy(metric: Metric, curve: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds, and values as figures have them."""
    return curve["train_s"].to_numpy(), drawn(metric, curve[metric.name]).to_numpy()


def name_of(results: StudyResults, trial: str) -> str:
    """Return a trial and its configuration, in lines that fit a legend."""
    row = results.trials.set_index("trial").loc[trial]
    return parts.wrapped(f"{trial}  {row['config']}", parts.ROOM - 6)


def seconds_of(results: StudyResults, trial: str) -> list[str]:
    """Say when the target was reached, and what that rests on."""
    run: Any = results.trials.set_index("trial").loc[trial]
    metric = results.metric
    value = run[metric.best_column]
    best = "nothing evaluated" if value != value else f"best {_text(metric, value)}"
    is_hit = results.is_timed and run["time_to_target_s"] == run["time_to_target_s"]
    found = f"{_searched_s(results, trial, run):.2f} s" if is_hit else best
    proof = results.confirmed.set_index("trial")
    if trial not in proof.index:
        return [f"search {found} (one run)"]
    row: Any = proof.loc[trial]
    of = f"of {row['new_runs']}"
    if not results.is_timed:
        median = _text(metric, row[f"median_{metric.name}"])
        return [f"search {best}", f"new seeds {median} (median {of})"]
    if not row["new_hits"]:
        return [f"search {found}", f"new seeds missed (0 {of})"]
    is_whole = row["new_hits"] == row["new_runs"]
    what = f"median {of}" if is_whole else f"expected; {row['new_hits']} {of}"
    ends = f"90 %: {row['interval_low_s']:.2f} to {row['interval_high_s']:.2f} s"
    return [f"search {found}", f"new seeds {row['printed_s']:.2f} s ({what})", ends]


def _searched_s(results: StudyResults, trial: str, run: Any) -> float:
    if trial in results.runs:
        return repeat(results, trial).seconds
    return float(run["time_to_target_s"])


def _text(metric: Metric, value: float) -> str:
    return f"{value:.1%}" if metric.is_share else f"{value:.4g}"


def mark(axes: Axes, metric: Metric, curve: pd.DataFrame, run: Any, colour: str) -> None:
    """Put the marker on a curve: at the target, else at the best value.

    `run` is its row of `trials`.
    """
    reached = run["time_to_target_s"]
    if reached == reached:
        later = curve[curve["train_s"] >= reached - 1e-9]
        at = later.iloc[0] if len(later) else curve.iloc[-1]  # part of a curve may be lost
    else:
        worst_first = (
            curve[metric.name].mul(metric.sign).sort_values(kind="stable", na_position="first")
        )
        at = curve.loc[worst_first.index[-1]]
    x, y = float(at["train_s"]), float(at[metric.name]) * (100 if metric.is_share else 1)
    style: dict[str, Any] = {"color": colour, "markeredgecolor": parts.PAPER}
    style["marker"] = parts.marker_of(run["num_workers"])
    axes.plot(x, y, markersize=8, zorder=5, **style)
