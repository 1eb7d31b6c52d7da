"""The study over its wall-clock: the best so far, what ran beside what, when which phase; and where
the seconds of its runs went."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from raybench.report.figures import parts
from raybench.report.figures.parts import drawn, metric_axis
from raybench.results.study import Study
from raybench.stats.clock import OTHER, PHASES

SLACK_S = 1.0
"""Records tell the second in which a run finished, not when in it."""
LEAST_PAUSE_S, PAUSE_SHARE = 30.0, 0.1
"""Nothing ran for so long, and so much of all other time: the study was interrupted there."""


@dataclass(frozen=True)
class Spans:
    """The runs of a study over its wall-clock, interruptions left out."""

    runs: pd.DataFrame
    """trial, role, state, is_hit, group (words), lane (0, 1, ...), begin, end: seconds since the
    first run began, that is since it had workers. By lane, then by begin."""
    lanes: list[str]
    """The group that each lane is of."""
    pauses: dict[float, float]
    """Where the study was interrupted, and for how many seconds."""
    total_s: float


def spans(results: Study) -> Spans:
    """Return when each run had its workers, in rows (lanes) that no two runs share at a time.

    A run had workers from `finished_at - wall_s + queue_s` on. Records do not name worker groups;
    a lane holds runs of one framework and worker count that followed each other, as the runs of a
    group do, so there are as many lanes as groups were at work at once.
    """
    trials = results.trials
    known = trials["finished_at"].notna() & trials["wall_s"].notna()
    runs = trials[known]
    end = runs["finished_at"].astype("int64") / 1e6
    begin = end - (runs["wall_s"] - runs["queue_s"].fillna(0.0)).clip(lower=0.0)
    workers = runs["num_workers"].map(lambda count: f"{count:.0f} worker{'s' * (count != 1)}")
    table = pd.DataFrame(
        {
            "trial": runs["trial"],
            "role": runs["role"],
            "state": runs["state"],
            "is_hit": runs["time_to_target_s"].notna(),
            "group": runs["framework"].astype(str) + ", " + workers,
            "begin": begin - begin.min() if len(begin) else begin,
            "end": end - begin.min() if len(begin) else end,
        }
    )
    table, pauses = _without_pauses(table)
    lanes, names = _packed(table)
    table = table.assign(lane=lanes).sort_values(["lane", "begin"], ignore_index=True)
    return Spans(table, names, pauses, float(table["end"].max()) if len(table) else 0.0)


def _without_pauses(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[float, float]]:
    if table.empty:
        return table, {}
    ordered = table.sort_values("begin")
    gaps = (ordered["begin"] - ordered["end"].cummax().shift()).clip(lower=0.0).fillna(0.0)
    busy_s = float(ordered["end"].max() - gaps.sum())
    gaps = gaps.where(gaps > max(LEAST_PAUSE_S, PAUSE_SHARE * busy_s), 0.0)
    cut = gaps.cumsum()
    at = (ordered["begin"] - cut)[gaps > 0]
    pauses = dict(zip(at, gaps[gaps > 0], strict=True))
    return table.assign(begin=table["begin"] - cut, end=table["end"] - cut), pauses


def _packed(table: pd.DataFrame) -> tuple["pd.Series[int]", list[str]]:
    """Return the lane of each run, and the group of each lane: the first that is free."""
    lane = pd.Series(0, index=table.index)
    names: list[str] = []
    for group in sorted(set(table["group"])):
        free: list[float] = []
        own = table[table["group"] == group].sort_values(["begin", "end"])
        for index, begin, end in zip(own.index, own["begin"], own["end"], strict=True):
            are_free = (n for n, until in enumerate(free) if until <= begin + SLACK_S)
            place = next(are_free, len(free))
            free[place : place + 1] = [end]
            lane[index] = len(names) + place
        names += [group] * len(free)
    return lane, names


def phases(runs: pd.DataFrame) -> pd.DataFrame:
    """Return when each role of `Spans.runs` was at work: role, runs, begin, end; by begin."""
    found = runs.groupby("role").agg(
        runs=("trial", "size"), begin=("begin", "min"), end=("end", "max")
    )
    return found.reset_index().sort_values("begin", ignore_index=True)


def best_so_far(results: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the search's runs as they ended: end [s], trial, value, best.

    `value` is the seconds to the target where some run reached it, else the metric's best; `best`
    is the best of all up to then.
    """
    table = results.trials.set_index("trial")
    ended = runs[runs["role"].isin(("trial", "placement_check"))].sort_values("end", kind="stable")
    own = table.loc[ended["trial"]]
    is_seconds = results.is_timed and own["crossed_s"].notna().any()
    value = own["crossed_s"] if is_seconds else own[results.metric.best_column]
    found = pd.DataFrame(
        {"end": ended["end"].to_numpy(), "trial": own.index, "value": value.to_numpy(dtype=float)}
    )
    found = found.dropna(subset=["value"]).reset_index(drop=True)
    is_more = not is_seconds and results.metric.direction == "max"
    found["best"] = found["value"].cummax() if is_more else found["value"].cummin()
    return found


ROLE_STYLE = {
    "reference": ("#CC79A7", "reference: a default one, first"),
    "trial": ("#0072B2", "search"),
    "placement_check": ("#56B4E9", "placement check: was predicted"),
    "race": ("#E69F00", "race: best, new seeds"),
    "confirm": ("#009E73", "confirm: winners alone"),
    "scaling": ("#0072B2", "repeat of a cell"),
    "pair": ("#0072B2", "run of a pair"),
}
"""Colour and words of what a run is for."""
MOST_BARS, MOST_DOTS = 250, 250
"""Runs up to which each is a bar of its own; dots of the upper panel."""
MOST_MERGED = 700
"""Bars of more runs; those that follow each other are one where they are narrower than this."""
MOST_LANES = 24
FAR = 30.0
"""Seconds so many times those of the best are beyond the figure."""
UNITS = ((240.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (72 * 3600.0, 3600.0, "h"))


def timeline_figure(results: Study) -> Figure:
    """Best so far above, and below a row for each worker group with its runs as bars.

    A filled bar went on to its end, a hollow one was stopped early, a cross failed. Words between
    the panels say which phase ran when. Interruptions of the study are left out and marked.
    """
    found = spans(results)
    lanes = min(len(found.lanes), MOST_LANES)
    heights = [1.7, 0.22 * max(lanes, 3) + 0.2]
    size = (parts.WIDTH, sum(heights) + 0.7)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    if found.runs.empty:
        below.set_axis_off()
        return parts.say(figure, above, "no run tells when it finished")
    for axes in (above, below):
        parts.dress(axes)
    scale, unit = _unit(found.total_s)
    keys = [*_bars(below, found, scale), *_best(above, results, found, scale)]
    _bands(above, below, found, scale)
    _lanes(below, found)
    for at, seconds in found.pauses.items():
        for axes in (above, below):
            axes.axvline(at / scale, color=parts.INK, linewidth=0.9, linestyle=(0, (1, 2)))
        words = f" interrupted\n {_span(seconds)}"
        top: dict[str, Any] = {"transform": above.get_xaxis_transform(), "va": "top"}
        above.text(at / scale, 0.99, words, fontsize=parts.SMALL, color=parts.INK, **top)
    below.set_xlabel(f"wall-clock since the first run had workers [{unit}]")
    below.set_xlim(-0.01 * found.total_s / scale, 1.01 * found.total_s / scale)
    parts.legend_below(figure, keys, most=2)
    return figure


def _span(seconds: float) -> str:
    scale, unit = _unit(seconds)
    return f"{seconds / scale:.3g} {unit}"


def _unit(seconds: float) -> tuple[float, str]:
    found = ((scale, unit) for most, scale, unit in UNITS if seconds <= most)
    return next(found, (86400.0, "d"))


def _best(axes: Axes, results: Study, found: Spans, scale: float) -> list[Artist]:
    table = best_so_far(results, found.runs)
    metric = results.metric
    if table.empty:
        parts.say(axes.figure.figure, axes, "no run of the search has a result yet")
        return []
    is_seconds = results.is_timed and bool(results.trials["crossed_s"].notna().any())
    if is_seconds:
        values, best = table["value"], table["best"]
        words, least = "seconds to\nthe target [s]", float(best.min())
        high = min(float(values.max()), FAR * least)
        axes.set(yscale="log", ylim=parts.window(least, high, margin=1.2))
        parts.plain_ticks(axes, "y")
    else:
        values, best = drawn(metric, table["value"]), drawn(metric, table["best"])
        words = parts.wrapped(f"best {metric.axis_words}", 20)
        metric_axis(axes, results, table["value"], is_labelled=False)
    axes.set_ylabel(words)
    shown = parts.spread(range(len(table)), MOST_DOTS)
    colour = ROLE_STYLE["trial"][0]
    dots: dict[str, Any] = {"marker": "o", "markersize": 4, "markerfacecolor": parts.PAPER}
    for row in shown:
        x, gid = table["end"][row] / scale, str(table["trial"][row])
        parts.mark(axes, x, values[row], gid, color=colour, **dots)
    steps = best.ne(best.shift())
    x = [*(table["end"][steps] / scale), found.total_s / scale]
    y = [*best[steps], best.iloc[-1]]
    axes.plot(x, y, color=parts.INK, linewidth=1.6, drawstyle="steps-post", gid="envelope")
    words = "a run's result" + parts.of_all(len(shown), len(table), "runs")
    return [parts.key("best so far"), parts.key(words, colour, ls="none", **dots)]


def _bars(axes: Axes, found: Spans, scale: float) -> list[Artist]:
    runs = found.runs[found.runs["lane"] < MOST_LANES]
    is_many = len(runs) > MOST_BARS
    bars = _merged(runs, found) if is_many else runs.assign(number=1)
    keys: list[Artist] = []
    for role, own in bars.groupby("role", sort=False):
        colour, words = ROLE_STYLE[str(role)]
        for row in parts.tuples(own):
            is_hollow = row.state == "stopped"
            style: dict[str, Any] = {"facecolor": "none" if is_hollow else colour, "linewidth": 0.7}
            style |= {"edgecolor": colour if is_hollow else parts.PAPER}
            corner, width = (row.begin / scale, row.lane - 0.36), (row.end - row.begin) / scale
            gid = None if is_many else str(row.trial)
            axes.add_patch(Rectangle(corner, width, 0.72, gid=gid, **style))
        count = int(own["number"].sum())
        keys.append(Patch(facecolor=colour, edgecolor=colour, label=f"{words} ({count:,})"))
    if stopped := int((runs["state"] == "stopped").sum()):
        words = f"hollow: stopped early ({stopped:,})"
        keys.append(Patch(facecolor="none", edgecolor=parts.INK, label=words))
    failed = runs[runs["state"] == "failed"]
    if len(failed):
        some = failed.iloc[parts.spread(range(len(failed)), MOST_DOTS)]
        style = {"linestyle": "none", "marker": "x", "markersize": 6, "markeredgewidth": 1.6}
        axes.plot(some["end"] / scale, some["lane"], color=parts.INK, zorder=4, **style)
        keys.append(parts.key(f"failed ({len(failed):,})", **style))
    if is_many:
        keys.append(parts.key("short runs are drawn together", linestyle="none"))
    return keys


def _merged(runs: pd.DataFrame, found: Spans) -> pd.DataFrame:
    """Return bars of runs that follow each other in a lane, where each is too narrow to see."""
    least = found.total_s * min(len(found.lanes), MOST_LANES) / MOST_MERGED
    before = runs.shift()
    is_wide = (runs["end"] - runs["begin"]).combine(before["end"] - before["begin"], min) >= least
    is_own = (runs["lane"] != before["lane"]) | (runs["role"] != before["role"])
    is_own |= is_wide | (runs["begin"] - before["end"] >= least)
    bars = runs.groupby(is_own.cumsum())
    every = bars.agg({"role": "first", "lane": "first", "begin": "min", "end": "max"})
    is_stopped = (runs["state"] == "stopped").groupby(is_own.cumsum()).all()
    states = is_stopped.map({True: "stopped", False: "complete"})
    return every.assign(number=bars.size(), state=states)


def _bands(above: Axes, below: Axes, found: Spans, scale: float) -> None:
    """Shade every other phase, until the next one begins, and name those that are wide enough."""
    table = phases(found.runs)
    table["end"] = np.minimum(table["end"], table["begin"].shift(-1, fill_value=np.inf))
    for number, row in enumerate(parts.tuples(table)):
        begin, end = row.begin / scale, row.end / scale
        for axes in (above, below):
            if number % 2:
                axes.axvspan(begin, end, color=parts.GRID, zorder=0, linewidth=0)
        words = "search" if row.role == "trial" else str(row.role)
        is_wide = (row.end - row.begin) / found.total_s > 0.012 * (len(words) + 2)
        if is_wide:
            place: dict[str, Any] = {"transform": below.get_xaxis_transform(), "ha": "center"}
            style: dict[str, Any] = {"fontsize": parts.SMALL, "color": parts.INK}
            style["va"] = "bottom"
            below.text((begin + end) / 2, 1.02, words, **place, **style)


def _lanes(axes: Axes, found: Spans) -> None:
    names = found.lanes[:MOST_LANES]
    places = {name: [n for n, one in enumerate(names) if one == name] for name in names}
    middles = [sum(own) / len(own) for own in places.values()]
    axes.set_yticks(middles, [parts.plain(name) for name in places])
    axes.tick_params(axis="y", length=0, labelsize=parts.SMALL)
    axes.grid(visible=False, axis="y")
    for own in list(places.values())[1:]:
        axes.axhline(own[0] - 0.5, color=parts.QUIET, linewidth=0.7)
    axes.set_ylim(len(names) - 0.45, -0.55)
    if len(found.lanes) > len(names):
        left_out = len(found.lanes) - len(names)
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
"""Colour and hatching of each phase: adjacent ones differ in grey, too."""
ORDER = ("reference", "search", "confirm", "scaling", "compare")
"""In which a study comes to its phases."""
MOST_GROUPS = 12
"""Bars that a figure has room for."""


def ledger_figure(results: Study) -> Figure:
    """Where the seconds went: the ledger summed over the runs of each phase and framework."""
    groups = list(results.trials.groupby(["phase", "framework"], sort=False, dropna=False))
    groups = sorted(groups, key=lambda one: ORDER.index(one[0][0]))[:MOST_GROUPS]
    figure, axes = parts.new_figure(parts.WIDTH, 1.0 + 0.5 * max(len(groups), 1))
    axes.set_xlabel("seconds summed over runs [s]")
    if not groups:
        return parts.say(figure, axes, parts.NOTHING)
    names = [
        parts.plain(f"{phase}, {framework}") + f"\n{parts.plural(len(runs), 'run')}"
        for (phase, framework), runs in groups
    ]
    left, keys = np.zeros(len(groups)), []
    for phase in (*PHASES, OTHER):
        seconds = np.array([float(runs[f"{phase}_s"].sum()) for _, runs in groups])
        colour, hatch = PHASE_STYLE[phase]
        style: dict[str, Any] = {"facecolor": colour, "hatch": hatch}
        style |= {"edgecolor": parts.PAPER, "linewidth": 0}
        bars = seconds.clip(min=0)  # what no phase accounts for may be a little less than nothing
        axes.barh(names, bars, left=left, height=0.62, **style)
        keys.append(Patch(label=f"{phase} {seconds.sum():,.1f} s", **style))
        left += bars
    for row, (_, runs) in enumerate(groups):
        wall = float(runs["wall_s"].sum())
        share = float(runs["train_s"].sum()) / wall if wall else 0.0
        words = f" {wall:,.0f} s, {100 * share:.0f} % train"
        axes.text(left[row], row, words, va="center", fontsize=parts.SMALL, color=parts.INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.65 * left.max() or 1.0)
    axes.locator_params(axis="x", nbins=6)
    parts.legend_below(figure, keys)
    return figure
