"""Figures of learning curves, and of the configurations that were trained again with new seeds."""

import math
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
from raybench.report.words import ROLES
from raybench.results.analyses import best_at_every_budget
from raybench.results.ranking import as_replicate, configurations, confirmed, repeated
from raybench.results.study import Study
from raybench.results.verdict import judge
from raybench.spec.metric import Metric
from raybench.spec.text import counted
from raybench.stats.record import Phase, Role

NUM_HIGHLIGHTED = 3
"""Number of highlighted configurations."""
MOST_CURVES = 200
"""Maximum number of gray curves; if there are more runs, the best are drawn."""
LOG_SECONDS_FROM = 12.0
"""The axis of seconds is logarithmic if the longest run took more than this multiple of the best
time."""


def curves_figure(results: Study) -> Figure:
    """Draw the learning curves of the search over training seconds.

    The NUM_HIGHLIGHTED best configurations (the first in `configurations`) are highlighted, with a
    marker where a run reached the target, or else at its best value. The thin dark line is the best
    value of all runs so far. At most MOST_CURVES other runs are drawn; the best are selected.
    """
    metric, trials = results.metric, results.trials
    figure, axes = parts.new_figure(3.6)
    axes.set(xlabel="seconds of training [s]", ylabel=parts.plain(metric.axis_words))
    search = trials[trials["phase"] == Phase.SEARCH].sort_values("score", kind="stable")
    metric_axis(axes, results)
    best = list(configurations(results)["trial"].head(NUM_HIGHLIGHTED))
    others = [str(trial) for trial in search["trial"] if trial not in best]
    _gray(axes, results, others[:MOST_CURVES])
    curves = results.curves[results.curves["trial"].isin(set(search["trial"]))]
    keys = [_best(axes, results, trial, rank) for rank, trial in enumerate(best)]
    envelope = best_at_every_budget(curves, metric)
    if len(envelope):
        x, y = curve_xy(metric, envelope)
        style: dict[str, Any] = {"color": parts.INK, "linewidth": 1.1}
        axes.plot(x, y, drawstyle="steps-post", zorder=2.5, gid="envelope", **style)
        keys.append(parts.key("best at every budget of seconds, of all search runs", **style))
    seconds = curves["train_s"][curves["train_s"] > 0]
    fastest = configurations(results)["expected_s"].min()
    if seconds.max() > LOG_SECONDS_FROM * fastest:  # False if one of the numbers is NaN
        axes.set(xscale="log", xlim=(max(seconds.min(), fastest / 30), seconds.max() * 1.05))
        parts.plain_ticks(axes, "x")
    else:
        axes.set_xlim(0, 1.03 * seconds.max() if len(seconds) else 1.0)
    if others:
        label = f"gray: {counted(len(others), 'other search run')}"
        label += parts.of_all(MOST_CURVES, len(others))
        keys.append(parts.key(label, parts.QUIET, linewidth=1))
    num_best = counted(len(best), "configuration")
    parts.head(axes, f"best {num_best} of {len(search):,} search runs", parts.TEXT)
    parts.legend_below(figure, keys, columns=1)
    return figure


def curves_table(results: Study) -> pd.DataFrame:
    """Return, as a table for display, the best value that the search reached within each budget of
    training seconds."""
    metric, trials = results.metric, results.trials
    search = set(trials["trial"][trials["phase"] == Phase.SEARCH])
    best = best_at_every_budget(results.curves[results.curves["trial"].isin(search)], metric)
    best[metric.name] = drawn(metric, best[metric.name])
    titles = {"train_s": "seconds of training", metric.name: f"best {metric.axis_words}"}
    return parts.in_words(
        _with_configs(results, best).tail(parts.MOST_ROWS), titles | parts.TRIAL_WORDS
    )


def _with_configs(results: Study, table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(config=table["trial"].map(results.trials.set_index("trial")["config"]))


def _gray(axes: Axes, results: Study, trials: list[str]) -> None:
    curves = results.curves[results.curves["trial"].isin(set(trials))]
    # One lookup per trial would take minutes with 10,000 trials.
    for trial, curve in curves.groupby("trial", sort=False):
        x, y = curve_xy(results.metric, curve)
        marker = "." if len(curve) == 1 else "None"
        style: dict[str, Any] = {"color": parts.QUIET, "linewidth": 0.9, "marker": marker}
        axes.add_line(Line2D(x, y, gid=str(trial), **style))


def _best(axes: Axes, results: Study, trial: str, rank: int) -> Line2D:
    """Draw a highlighted curve; return its legend entry.

    A marker shows where the run reached the target, or else its best value.
    """
    run, metric = results.runs[trial], results.metric
    curve = results.curves[results.curves["trial"] == trial]
    color, style = parts.color_of(run.spec.framework), parts.LINE_STYLES[rank % 4]
    x, y = curve_xy(metric, curve)
    axes.plot(x, y, color=color, linewidth=2, linestyle=style, zorder=3, gid=trial)
    shape = parts.marker_of(run.spec.num_workers)
    if curve[metric.name].notna().any():
        index = int(np.nanargmax(metric.sign * y))
        if run.time_to_target_s is not None:
            index = int(np.abs(x - run.time_to_target_s).argmin())
        look: dict[str, Any] = {"color": color, "markeredgecolor": parts.PAPER, "marker": shape}
        axes.plot(x[index], y[index], markersize=8, zorder=5, **look)
    return parts.key(
        name_of(results, trial), color, linestyle=style, lw=2, marker=shape, mec=parts.PAPER
    )


def curve_xy(metric: Metric, curve: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds and values of a learning curve, converted for a figure (`drawn`)."""
    return curve["train_s"].to_numpy(), drawn(metric, curve[metric.name]).to_numpy()


def name_of(results: Study, trial: str) -> str:
    """Return the name of a trial and its configuration, wrapped for a legend."""
    return parts.wrapped(f"{trial}  {results.label(results.specs[trial])}", parts.ROOM - 6)


MOST_ROWS = 10
ROW_HEIGHT = 0.52
"""Height of the row of a configuration in inches."""
ROLE_MARKERS = {Role.TRIAL: "D", Role.PLACEMENT_CHECK: "v", Role.RACE: "o", Role.CONFIRM: "s"}
SEARCH_ROLES = (Role.TRIAL, Role.PLACEMENT_CHECK)
"""Roles of runs that are drawn with hollow markers."""
MISS_STYLE: dict[str, Any] = {"marker": "x", "markeredgewidth": 1.8}


def race_figure(results: Study) -> Figure:
    """Draw the runs of each configuration that was trained again with new seeds, best first.

    Configurations are compared by expected seconds to the target, or without a target by the median
    of the metric. The line shows this number, and the bar its 90 % interval. A cross is a run that
    missed the target.
    """
    table = race_rows(results)
    rows = list(dict.fromkeys(table["trial"]))
    trials_drawn = rows[:MOST_ROWS]
    figure, axes = parts.new_figure(0.8 + ROW_HEIGHT * max(len(trials_drawn), 2))
    verdict = judge(results)
    ties = set(verdict.ties) if verdict is not None else set()
    _scale(axes, results, table[table["trial"].isin(trials_drawn)])
    top = axes.get_yaxis_transform()
    for place, trial in enumerate(trials_drawn):
        runs = table[table["trial"] == trial]
        color = parts.color_of(runs["framework"].iloc[0])
        _interval(axes, results, trial, place, color)
        for row in parts.tuples(runs):
            _run(axes, row, place, color)
        label = name_of(results, trial).split("\n")[0]
        if trial in ties and place:
            label += " · tied"
        parts.write(axes, 0, place - 0.22, label, transform=top, va="bottom")
    axes.set(yticks=[], ylim=(len(trials_drawn) - 0.5, -0.75))
    parts.rows_only(axes)
    _legend(figure, results, table, left_out=len(rows) - len(trials_drawn))
    return figure


def race_rows(results: Study) -> pd.DataFrame:
    """Return the runs of the configurations that were trained again with new seeds.

    Columns: trial (of the configuration), run, role, framework, value, is_hit. The value is the
    seconds to the target, or all training seconds of a run that missed it. Without a target, it is
    the metric value.
    """
    trials = results.trials.set_index("trial")
    rows = []
    for trial, configuration in repeated(results).items():
        for name in dict.fromkeys((*configuration.chosen_runs, *configuration.printed_runs)):
            replicate = as_replicate(results, name)
            value = replicate.seconds
            if not results.is_timed:
                value = -results.metric.sign * value if replicate.is_hit else math.nan
            role, framework = trials.loc[name, "role"], trials.loc[name, "framework"]
            rows.append((trial, name, role, framework, value, replicate.is_hit))
    columns = ["trial", "run", "role", "framework", "value", "is_hit"]
    table = pd.DataFrame(rows, columns=columns).astype({"value": float, "is_hit": bool})
    return table if results.is_timed else table.assign(value=drawn(results.metric, table["value"]))


def race_table(results: Study) -> pd.DataFrame:
    """Return `race_rows` as a table for display, with the configurations in words."""
    rows = _with_configs(results, race_rows(results))
    rows["role"] = rows["role"].replace(dict.fromkeys(SEARCH_ROLES, "search"))
    titles = {"value": f"best {results.metric.axis_words}", "is_hit": "finished"}
    if results.is_timed:
        titles = {"value": "seconds to the target", "is_hit": "reached the target"}
    return parts.in_words(rows, parts.TRIAL_WORDS | {"run": "run", "role": "what for"} | titles)


def _scale(axes: Axes, results: Study, table: pd.DataFrame) -> None:
    if not results.is_timed:
        axes.set_xlabel(parts.plain(f"best {results.metric.axis_words}"))
        axes.margins(x=0.08)
        return
    positive = table["value"][table["value"] > 0]
    proof = confirmed(results)[confirmed(results)["trial"].isin(set(table["trial"]))]
    ends = pd.concat([positive, proof["expected_low_s"], proof["expected_high_s"]])
    ends = ends[(ends > 0) & (ends < math.inf)]
    parts.log_axis(axes, "x", ends.min(), ends.max(), margin=1.1)
    axes.set_xlabel("seconds of training to the target [s]  (left: faster)")


def _interval(axes: Axes, results: Study, trial: str, place: int, color: str) -> None:
    row: Any = confirmed(results).set_index("trial").loc[trial]
    if results.is_timed:
        low, middle, high = (row[f"expected{end}_s"] for end in ("_low", "", "_high"))
    else:
        name, factor = results.metric.name, 100 if results.metric.is_share else 1
        ends = ("interval_low", "median", "interval_high")
        low, middle, high = (factor * row[f"{end}_{name}"] for end in ends)
    if not all(map(math.isfinite, (low, middle, high))):
        return
    style: dict[str, Any] = {"solid_capstyle": "butt", "color": color}
    axes.plot([low, high], [place, place], linewidth=9, alpha=0.25, zorder=1, **style)
    axes.plot([middle, middle], [place - 0.17, place + 0.17], linewidth=2, zorder=2, **style)


def _run(axes: Axes, row: Any, place: int, color: str) -> None:
    style: dict[str, Any] = {"marker": ROLE_MARKERS[row.role], "markersize": 6, "color": color}
    if not row.is_hit:
        style = MISS_STYLE | {"markersize": 7, "color": parts.INK}
    elif row.role in SEARCH_ROLES:
        style |= {"markerfacecolor": parts.PAPER}
    else:
        style |= {"markeredgecolor": parts.PAPER, "markeredgewidth": 0.7}
    axes.plot(row.value, place, linestyle="none", zorder=4, gid=row.run, **style)


def _legend(figure: Figure, results: Study, table: pd.DataFrame, *, left_out: int) -> None:
    keys: list[Artist] = [
        parts.dot(ROLES[role], marker=marker, is_filled=role not in SEARCH_ROLES)
        for role, marker in ROLE_MARKERS.items()
        if role in set(table["role"])
    ]
    quantity = "expected seconds" if results.is_timed else "median"
    keys.append(Patch(color=parts.QUIET, label=f"{quantity}, 90 % interval"))
    if not table["is_hit"].all():
        label = "missed the target" if results.is_timed else "failed"
        keys.append(parts.key(label, linestyle="none", **MISS_STYLE))
    keys += parts.frameworks(table["framework"])
    if left_out:
        keys.append(parts.note(f"{left_out} more are not drawn"))
    parts.legend_below(figure, keys, max_columns=2)
