"""Figures of runs: learning curves, runs with new seeds by configuration, the study over wall-clock
time, and the time that runs spend in each phase."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from raybench.report.figures import parts
from raybench.report.figures.parts import drawn, metric_axis
from raybench.report.words import ROLES
from raybench.results.analyses import (
    SEARCH_ROLES,
    best_at_every_budget,
    ledger_totals,
    search_curves,
)
from raybench.results.ranking import as_replicate, configurations, confirmed, repeated
from raybench.results.study import Study
from raybench.results.verdict import verdict_of
from raybench.spec.metric import Metric
from raybench.spec.text import counted
from raybench.stats.record import Phase, Role, State

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
    value so far of the runs that did not fail. At most MOST_CURVES other runs are drawn; the best
    are selected.
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
    keys = [_highlighted(axes, results, trial, rank) for rank, trial in enumerate(best)]
    envelope = best_at_every_budget(search_curves(results), metric)
    if len(envelope):
        x, y = curve_xy(metric, envelope)
        style: dict[str, Any] = {"color": parts.INK, "linewidth": 1.1}
        axes.plot(x, y, drawstyle="steps-post", zorder=2.5, gid="envelope", **style)
        keys.append(parts.key("best value up to each second, without failed runs", **style))
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
    training seconds. Runs that failed are left out."""
    metric = results.metric
    best = best_at_every_budget(search_curves(results), metric)
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


def _highlighted(axes: Axes, results: Study, trial: str, rank: int) -> Line2D:
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
MISS_STYLE: dict[str, Any] = {"marker": "x", "markeredgewidth": 1.8}


def race_figure(results: Study) -> Figure:
    """Draw the runs of each configuration that was trained again with new seeds, best first.

    Configurations are compared by expected seconds to the target or, without a target, by the
    median of the metric. A line shows this number, and a bar its 90 % interval. A cross is a run
    that missed the target.
    """
    table = race_rows(results)
    rows = list(dict.fromkeys(table["trial"]))
    trials_drawn = rows[:MOST_ROWS]
    figure, axes = parts.new_figure(0.8 + ROW_HEIGHT * max(len(trials_drawn), 2))
    verdict = verdict_of(results)
    ties = set(verdict.ties) if verdict is not None else set()
    _scale(axes, results, table[table["trial"].isin(trials_drawn)])
    top = axes.get_yaxis_transform()
    for place, trial in enumerate(trials_drawn):
        runs = table[table["trial"] == trial]
        color = parts.color_of(runs["framework"].iloc[0])
        _draw_interval(axes, results, trial, place, color)
        for row in parts.tuples(runs):
            _draw_run(axes, row, place, color)
        label = name_of(results, trial).split("\n")[0]
        if trial in ties and place:
            label += " · tied"
        parts.write(axes, 0, place - 0.22, label, transform=top, va="bottom")
    axes.set(yticks=[], ylim=(len(trials_drawn) - 0.5, -0.75))
    parts.rows_only(axes)
    _race_legend(figure, results, table, left_out=len(rows) - len(trials_drawn))
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
    """Return the rows of `race_rows` for display, with readable titles and with each configuration
    as one line of text."""
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


def _draw_interval(axes: Axes, results: Study, trial: str, place: int, color: str) -> None:
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


def _draw_run(axes: Axes, row: Any, place: int, color: str) -> None:
    style: dict[str, Any] = {"marker": ROLE_MARKERS[row.role], "markersize": 6, "color": color}
    if not row.is_hit:
        style = MISS_STYLE | {"markersize": 7, "color": parts.INK}
    elif row.role in SEARCH_ROLES:
        style |= {"markerfacecolor": parts.PAPER}
    else:
        style |= {"markeredgecolor": parts.PAPER, "markeredgewidth": 0.7}
    axes.plot(row.value, place, linestyle="none", zorder=4, gid=row.run, **style)


def _race_legend(figure: Figure, results: Study, table: pd.DataFrame, *, left_out: int) -> None:
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


SLACK_S = 1.0
"""Resolution of recorded end times in seconds; runs in the same lane may overlap by this time."""
LEAST_PAUSE_S, PAUSE_SHARE = 30.0, 0.1
"""Limits that a period without runs must exceed to count as an interruption: LEAST_PAUSE_S in
seconds, and PAUSE_SHARE as a fraction of the total time with runs."""


@dataclass(frozen=True)
class Spans:
    """The runs of a study over wall-clock time, with interruptions cut out."""

    runs: pd.DataFrame
    """One row per run, sorted by lane and then by begin. Columns: trial, role, state, group, lane
    (row of the figure), begin and end (seconds since the first run got its workers)."""
    lanes: list[str]
    """Framework and worker count of each lane, in words."""
    pauses: dict[float, float]
    """Length in seconds of each interruption, keyed by its position in seconds."""
    total_s: float


def spans(results: Study) -> Spans:
    """Arrange the runs of a study in lanes (rows of a figure) in which no runs overlap.

    A lane contains successive runs with the same framework and worker count; worker groups
    themselves are not recorded. There are as many lanes as worker groups were busy at the same
    time.
    """
    trials = results.trials
    runs = trials[trials["finished_at"].notna() & trials["wall_s"].notna()]
    end = runs["finished_at"].astype("int64") / 1e6
    begin = end - (runs["wall_s"] - runs["queue_s"].fillna(0.0)).clip(lower=0.0)
    groups = zip(runs["framework"], runs["num_workers"], strict=True)
    table = runs[["trial", "role", "state"]].assign(
        group=[f"{name}, {counted(int(count), 'worker')}" for name, count in groups],
        begin=begin - begin.min(),
        end=end - begin.min(),
    )
    table, pauses = _without_pauses(table)
    lanes, names = _assign_lanes(table)
    table = table.assign(lane=lanes).sort_values(["lane", "begin"], ignore_index=True)
    return Spans(table, names, pauses, float(table["end"].max()))


def _without_pauses(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[float, float]]:
    ordered = table.sort_values("begin")
    gaps = (ordered["begin"] - ordered["end"].cummax().shift()).clip(lower=0.0).fillna(0.0)
    busy_s = float(ordered["end"].max() - gaps.sum())
    gaps = gaps.where(gaps > max(LEAST_PAUSE_S, PAUSE_SHARE * busy_s), 0.0)
    cut = gaps.cumsum()
    positions = (ordered["begin"] - cut)[gaps > 0]
    pauses = dict(zip(positions, gaps[gaps > 0], strict=True))
    return table.assign(begin=table["begin"] - cut, end=table["end"] - cut), pauses


def _assign_lanes(table: pd.DataFrame) -> tuple["pd.Series[int]", list[str]]:
    """Assign runs to lanes.

    Returns:
        - Lane of each run: the first free lane of its group (framework and worker count).
        - Group of each lane, in words.
    """
    lane = pd.Series(0, index=table.index)
    names: list[str] = []
    for group in sorted(set(table["group"])):
        free: list[float] = []
        runs = table[table["group"] == group].sort_values(["begin", "end"])
        for index, begin, end in zip(runs.index, runs["begin"], runs["end"], strict=True):
            free_lanes = (n for n, until in enumerate(free) if until <= begin + SLACK_S)
            place = next(free_lanes, len(free))
            free[place : place + 1] = [end]
            lane[index] = len(names) + place
        names += [group] * len(free)
    return lane, names


def phases(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the time span of the runs with each role, sorted by begin.

    Columns: role, runs (number of runs), begin and end in seconds. The argument is `Spans.runs`.
    """
    ends = {"runs": ("trial", "size"), "begin": ("begin", "min"), "end": ("end", "max")}
    table = runs.groupby("role").agg(**ends)
    return table.reset_index().sort_values("begin", ignore_index=True)


def best_so_far(results: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the search runs that did not fail, in the order in which they ended.

    Columns: end (seconds), trial, value (seconds to the target if any run reached it, otherwise the
    best metric value), best (best value so far).
    """
    table = results.trials.set_index("trial")
    ended = runs[runs["role"].isin(SEARCH_ROLES) & (runs["state"] != State.FAILED)]
    ended = ended.sort_values("end", kind="stable")
    ended_trials = table.loc[ended["trial"]]
    is_seconds = results.is_timed and ended_trials["crossed_s"].notna().any()
    value = ended_trials["crossed_s"] if is_seconds else ended_trials[results.metric.best_column]
    points = pd.DataFrame(
        {
            "end": ended["end"].to_numpy(),
            "trial": ended_trials.index,
            "value": value.to_numpy(dtype=float),
        }
    )
    points = points.dropna(subset=["value"]).reset_index(drop=True)
    is_more = not is_seconds and results.metric.direction == "max"
    points["best"] = points["value"].cummax() if is_more else points["value"].cummin()
    return points


ROLE_COLORS: dict[str, str] = {
    Role.REFERENCE: "#CC79A7",
    Role.TRIAL: "#0072B2",
    Role.PLACEMENT_CHECK: "#56B4E9",
    Role.RACE: "#E69F00",
    Role.CONFIRM: "#009E73",
    Role.SCALING: "#0072B2",
    Role.PAIR: "#0072B2",
}
MOST_RUN_BARS, MOST_DOTS = 250, 200
"""Maximum number of runs that are drawn as bars, and of points in the upper panel."""
MOST_LANES = 24
TIME_UNITS = ((240.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (72 * 3600.0, 3600.0, "h"))


def timeline_figure(results: Study) -> Figure:
    """Draw the best result so far, and below it the runs of each worker group as bars.

    A hollow bar is a run that was stopped early, and a cross is a run that failed. Interruptions of
    the study are cut out, and their positions are marked.
    """
    timeline = spans(results)
    heights = [1.7, 0.22 * max(min(len(timeline.lanes), MOST_LANES), 3) + 0.2]
    figure, panels = parts.panels(
        2, sum(heights) / 2, 0.7, sharex=True, gridspec_kw={"height_ratios": heights}
    )
    above, below = panels
    scale, unit = _unit(timeline.total_s)
    keys = [*_bars(below, timeline, scale), *_best_results(figure, above, results, timeline, scale)]
    _lanes(below, timeline)
    for position, seconds in timeline.pauses.items():
        for axes in panels:
            axes.axvline(position / scale, color=parts.INK, linewidth=0.9, linestyle=(0, (1, 2)))
        pause_scale, pause_unit = _unit(seconds)
        label = f" interrupted\n {seconds / pause_scale:.3g} {pause_unit}"
        parts.write(
            above, position / scale, 0.99, label, transform=above.get_xaxis_transform(), va="top"
        )
    below.set_xlabel(f"wall-clock since the first run had workers [{unit}]")
    width = timeline.total_s / scale or 1.0  # 0 if no run has had workers
    below.set_xlim(-0.01 * width, 1.01 * width)
    parts.legend_below(figure, keys, max_columns=2)
    return figure


def timeline_table(results: Study) -> pd.DataFrame:
    """Return the time span and the number of runs of each role as a table for display."""
    table = phases(spans(results).runs)
    table = table.assign(role=table["role"].replace({"trial": "search"}))
    titles = {"role": "phase", "runs": "runs", "begin": "from second", "end": "to second"}
    return parts.in_words(table, titles)


def _unit(seconds: float) -> tuple[float, str]:
    units = ((scale, unit) for limit, scale, unit in TIME_UNITS if seconds <= limit)
    return next(units, (86400.0, "d"))


def _best_results(
    figure: Figure, axes: Axes, results: Study, timeline: Spans, scale: float
) -> list[Artist]:
    table = best_so_far(results, timeline.runs)
    metric = results.metric
    if table.empty:
        parts.show_message(figure, axes, "no run of the search has a result yet")
        return []
    if results.is_timed and results.trials["crossed_s"].notna().any():
        values, best = table["value"], table["best"]
        label, fastest = "seconds to\nthe target [s]", float(best.min())
        parts.log_axis(
            axes, "y", fastest, min(float(values.max()), parts.FAR * fastest), margin=1.2
        )
    else:
        values, best = drawn(metric, table["value"]), drawn(metric, table["best"])
        label = parts.wrapped(f"best {metric.axis_words}", 20)
        metric_axis(axes, results, table["value"], is_labeled=False)
    axes.set_ylabel(label)
    rows_drawn = parts.some(table, MOST_DOTS)
    color = ROLE_COLORS["trial"]
    dots: dict[str, Any] = {"marker": "o", "markersize": 4, "markerfacecolor": parts.PAPER}
    for row in parts.tuples(rows_drawn):
        parts.mark(axes, row.end / scale, values[row.Index], str(row.trial), color=color, **dots)
    steps = best.ne(best.shift())
    x = [*(table["end"][steps] / scale), timeline.total_s / scale]
    y = [*best[steps], best.iloc[-1]]
    axes.plot(x, y, color=parts.INK, linewidth=1.6, drawstyle="steps-post", gid="envelope")
    label = "a run's result" + parts.of_all(MOST_DOTS, len(table))
    return [parts.key("best so far"), parts.key(label, color, ls="none", **dots)]


def _bars(axes: Axes, timeline: Spans, scale: float) -> list[Artist]:
    runs = timeline.runs[timeline.runs["lane"] < MOST_LANES]
    bars = parts.some(runs, MOST_RUN_BARS)
    keys: list[Artist] = []
    for role, role_runs in bars.groupby("role", sort=False):
        color = ROLE_COLORS[str(role)]
        hollow = {"facecolor": "none", "edgecolor": color}
        filled = {"facecolor": color, "edgecolor": parts.PAPER}
        for row in parts.tuples(role_runs):
            corner, width = (row.begin / scale, row.lane - 0.36), (row.end - row.begin) / scale
            style: dict[str, Any] = hollow if row.state == State.STOPPED else filled
            gid = str(row.trial)
            axes.add_patch(Rectangle(corner, width, 0.72, gid=gid, linewidth=0.7, **style))
        number = int((runs["role"] == role).sum())
        keys.append(Patch(color=color, label=f"{ROLES[str(role)]} ({number:,})"))
    if stopped := (runs["state"] == State.STOPPED).sum():
        label = f"hollow: stopped early ({stopped:,})"
        keys.append(Patch(facecolor="none", edgecolor=parts.INK, label=label))
    failed = runs[runs["state"] == State.FAILED]
    if len(failed):
        style = {"linestyle": "none", "marker": "x", "markersize": 6, "markeredgewidth": 1.6}
        axes.plot(failed["end"] / scale, failed["lane"], color=parts.INK, zorder=4, **style)
        keys.append(parts.key(f"failed ({len(failed):,})", **style))
    if len(bars) < len(runs):
        keys.append(parts.note(f"{len(runs):,} runs{parts.of_all(MOST_RUN_BARS, len(runs))}"))
    return keys


def _lanes(axes: Axes, timeline: Spans) -> None:
    names = timeline.lanes[:MOST_LANES]
    places = {name: [n for n, other in enumerate(names) if other == name] for name in names}
    middles = [sum(lanes) / len(lanes) for lanes in places.values()]
    axes.set_yticks(middles, [parts.plain(name) for name in places])
    axes.tick_params(axis="y", length=0, labelsize=parts.SMALL)
    axes.grid(visible=False, axis="y")
    for lanes in list(places.values())[1:]:
        axes.axhline(lanes[0] - 0.5, color=parts.QUIET, linewidth=0.7)
    axes.set_ylim(len(names) - 0.45, -0.55)
    if left_out := len(timeline.lanes) - len(names):
        axes.set_title(f"{left_out} more rows are not drawn", fontsize=parts.SMALL, loc="right")


PHASE_STYLE = {
    "queue": ("#DDDDDD", ""),
    "start": ("#999999", ""),
    "lost": ("#D55E00", "xx"),
    "setup": ("#56B4E9", ""),
    "compile": ("#0072B2", "///"),
    "train": ("#E69F00", ""),
    "eval": ("#009E73", ""),
    "checkpoint": ("#CC79A7", "\\\\\\"),
    "report": ("#000000", ""),
    "other": ("#F0E442", "--"),
}
"""Color and hatching of each phase; adjacent phases also differ when printed in black and white."""
PHASE_ORDER = (Phase.REFERENCE, Phase.SEARCH, Phase.CONFIRM, Phase.SCALING, Phase.COMPARE)
"""Order of the phases of a study."""


def ledger_figure(results: Study) -> Figure:
    """Draw the time that runs spend in each phase, with one bar per phase of the study and
    framework."""
    groups = list(results.trials.groupby(["phase", "framework"], sort=False, dropna=False))
    groups = sorted(groups, key=lambda group: PHASE_ORDER.index(group[0][0]))
    figure, axes = parts.new_figure(1.0 + 0.5 * len(groups))
    axes.set_xlabel("seconds summed over runs [s]")
    names = [
        parts.plain(f"{phase}, {framework}\n{counted(len(runs), 'run')}")
        for (phase, framework), runs in groups
    ]
    stack = []
    for phase, style in PHASE_STYLE.items():
        seconds = np.array([float(runs[f"{phase}_s"].sum()) for _, runs in groups])
        bars = seconds.clip(min=0)  # `other` may be slightly negative
        stack.append((f"{phase} {seconds.sum():,.1f} s", bars, style))
    keys, left = parts.stacked_bars(axes, names, stack, 0.62)
    for row, (_, runs) in enumerate(groups):
        wall = float(runs["wall_s"].sum())
        share = float(runs["train_s"].sum()) / wall if wall else 0.0
        parts.write(axes, left[row], row, f" {wall:,.0f} s, {100 * share:.0f} % train")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.65 * left.max() or 1.0)
    axes.locator_params(axis="x", nbins=6)
    parts.legend_below(figure, keys)
    return figure


def ledger_table(results: Study) -> pd.DataFrame:
    """Return the seconds and the share of each phase of the runs as a table for display."""
    table = ledger_totals(results.trials)
    titles = {"phase": "phase", "seconds": "seconds", "share": "share [%]"}
    return parts.in_words(table.assign(share=100 * table["share"]), titles)
