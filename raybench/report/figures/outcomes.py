"""Figures that compare configurations: their outcomes over cost and over each searched key, and the
importance of the keys. An outcome is the seconds to the target, or the metric value."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from raybench.report.figures import parts
from raybench.report.figures.parts import drawn, metric_axis
from raybench.results.analyses import importance_of, pareto_front
from raybench.results.ranking import configurations
from raybench.results.study import Study
from raybench.results.verdict import reached_target, verdict_of
from raybench.spec.text import clean, counted, short, shorten

NEAR = 1.1
"""Maximum multiple of the best seconds at which a configuration counts as equally good."""
NEAR_SHARE = 0.1
"""Maximum distance from the best metric value at which a configuration counts as equally good, as a
fraction of the difference between the best and the median value."""


@dataclass(frozen=True)
class StudyOutcomes:
    """The configurations of a study with their outcomes (seconds to the target, or metric
    values)."""

    rows: pd.DataFrame
    """Rows of `ranking.configurations`, best first, with the additional column `outcome`, which is
    NaN if the target was missed."""
    is_seconds: bool
    label: str
    """Label of the axis of outcomes, with the unit."""
    sign: int
    """1 if larger outcomes are better, otherwise -1."""

    @property
    def with_outcome(self) -> pd.DataFrame:
        """The rows of configurations that have an outcome."""
        return self.rows[self.rows["outcome"].notna()]

    @property
    def missed(self) -> pd.DataFrame:
        """The rows of configurations without an outcome."""
        return self.rows[self.rows["outcome"].isna()]


def outcome(results: Study) -> StudyOutcomes:
    """Return the outcomes of a study.

    These are the expected seconds to the target if any configuration reached it, otherwise the best
    values of the metric. The outcome of a confirmed configuration is that of its repeated runs.
    """
    rows, metric = configurations(results), results.metric
    is_seconds = bool(results.is_timed and rows["expected_s"].notna().any())
    if is_seconds:
        outcomes = rows["expected_s"].astype(float)
        label, sign = "seconds to the target [s]", -1
    else:
        outcomes = drawn(metric, rows[metric.best_column].astype(float))
        label, sign = parts.plain(f"best {metric.axis_words}"), metric.sign
    finite = outcomes.where(np.isfinite(outcomes))
    return StudyOutcomes(rows.assign(outcome=finite), is_seconds, label, sign)


def outcome_axis(axes: Axes, results: Study, outcomes: StudyOutcomes) -> None:
    """Set the scale of a y axis for outcomes; an axis of seconds is logarithmic."""
    values = outcomes.with_outcome["outcome"]
    if not outcomes.is_seconds:
        values = values / (100 if results.metric.is_share else 1)
        metric_axis(axes, results, values, is_labeled=False)
        return
    low, high = float(values.min()), float(values.max())
    parts.log_axis(axes, "y", low, min(high, parts.FAR * low), margin=1.25)


def plateau(results: Study, outcomes: StudyOutcomes) -> set[str]:
    """Return the names of the trials that are as good as the best: statistically tied with it, or
    close to it (see NEAR and NEAR_SHARE)."""
    verdict, rows = verdict_of(results), outcomes.with_outcome
    if rows.empty:
        return set()
    values = rows.set_index("trial")["outcome"]
    best = float(values.iloc[0])
    if outcomes.is_seconds:
        is_near = values <= NEAR * best
    else:
        reach = NEAR_SHARE * abs(best - float(values.median()))
        is_near = outcomes.sign * values >= outcomes.sign * best - reach
    ties = () if verdict is None else verdict.ties
    return {*values.index[is_near], *(trial for trial in ties if trial in values.index)}


MOST_IMPORTANCES = 12
"""Maximum number of keys in the figure."""


def importance_figure(results: Study) -> Figure:
    """Draw the importance of each searched key for the score, the highest first.

    The thin line is the range of the importance over five subsets of the runs; if it reaches 0, the
    key may not matter.
    """
    table = importance_of(results).head(MOST_IMPORTANCES)
    figure, axes = parts.new_figure(0.9 + 0.34 * max(len(table), 2))
    shares, places = 100 * table["importance"], np.arange(len(table))
    low, high = 100 * table["low"], 100 * table["high"]
    axes.barh(places, shares, height=0.55, color=parts.COLORS[0])
    axes.hlines(places, low, high, color=parts.INK, linewidth=1.2)
    right = np.maximum(high, shares)
    for place, share in enumerate(shares):
        parts.write(axes, right[place], place, f" {share:.0f} %")
    axes.set_yticks(places, [parts.wrapped(str(key), 30) for key in table["key"]])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    end = 1.15 * max(right.max(), 1.0)
    ticks = [tick for tick in MaxNLocator(6).tick_values(0, end) if tick < 0.94 * end]
    axes.set(xlim=(0, end), xticks=ticks)
    axes.set_xlabel("importance [%]")
    runs = counted(int(table["runs"].iloc[0]), "run")
    title = f"by {runs}; the keys explain {100 * table['explained'].iloc[0]:.0f} % of unseen runs"
    figure.suptitle(title, x=0.01, ha="left", fontsize=parts.TEXT, color=parts.INK)
    return figure


def importance_table(results: Study) -> pd.DataFrame:
    """Return the importance of each searched key as a table for display."""
    table = importance_of(results)
    titles = {"importance": "share [%]", "low": "from [%]", "high": "to [%]"}
    table = table.assign(**{key: 100 * table[key] for key in titles})
    return parts.in_words(table, {"key": "key"} | titles)


def keys_by_importance(results: Study) -> list[str]:
    """Return the searched keys with more than one value, the most important first."""
    rows = configurations(results)
    varied = [key for key in results.searched if key in rows and len(rows[key].unique()) > 1]
    by_importance = list(importance_of(results)["key"])
    return sorted(
        varied,
        key=lambda key: by_importance.index(key) if key in by_importance else len(by_importance),
    )


LOG_VALUES_FROM = 20.0
"""Minimum ratio of the largest to the smallest value at which an axis is logarithmic."""
MOST_DISTINCT = 6
"""Maximum number of distinct values of a numeric key that are drawn as categories."""
MOST_NAMES = 8
"""Maximum number of categories on an axis; rare categories are merged."""
NULL_NAME = "null"
"""Name for a value that is null or missing."""
LONGEST_LABEL = 16
"""Maximum length of the label of a category, in characters."""


def values_of(key: str, rows: pd.DataFrame) -> tuple["pd.Series[float]", list[str]]:
    """Return positions on an axis for the values of a key.

    If the key has more than MOST_DISTINCT distinct numbers, the positions are the numbers. All
    other values are categories at the positions 0, 1, ...; a random offset is added so that points
    do not overlap.

    Args:
        key: The key, which is a column.
        rows: Configurations.

    Returns:
        - Position of each row.
        - Names of the categories; [] if the positions are the numbers.
    """
    column = rows[key]
    texts, ordered = names_of(column), []
    if _is_of_numbers(column):
        numbers = column.astype("Float64").astype("float64")
        distinct = sorted(set(numbers[np.isfinite(numbers)]))
        if len(distinct) > MOST_DISTINCT:
            return numbers, []
        ordered = [parts.number(value) for value in distinct]
    ordered += sorted({*texts} - {*ordered})
    frequent = [name for name, _ in Counter(texts).most_common()]
    if is_many := len(frequent) > MOST_NAMES:
        frequent = frequent[: MOST_NAMES - 1]
    names = [name for name in dict.fromkeys((*ordered, *frequent)) if name in frequent]
    names += ["others"] * is_many
    codes = [names.index(text) if text in frequent else len(names) - 1 for text in texts]
    # The random numbers have a fixed seed, so that a figure can be reproduced.
    scatter = np.random.default_rng(0).uniform(-0.28, 0.28, len(codes))
    return pd.Series(codes + scatter, index=rows.index), names


def _is_of_numbers(column: "pd.Series[Any]") -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def names_of(column: "pd.Series[Any]") -> list[str]:
    """Return the name of each value in a column, for axes and tables."""
    name = parts.number if _is_of_numbers(column) else _value_name
    return [NULL_NAME if pd.isna(value) else name(value) for value in column]


def _value_name(value: object) -> str:
    """Return the name of a bool or a string."""
    return clean(value) if isinstance(value, str) else short(bool(value))


MOST_KEYS, MOST_SLICED = 8, 500
"""Maximum number of panels, and maximum total number of points."""
SHADE_STYLE: dict[str, Any] = {"color": "#009E73", "alpha": 0.16, "linewidth": 4}
SHAPES = {"torch": "o", "tensorflow": "s"}


def slices_figure(results: Study) -> Figure:
    """Draw the outcome over the values of each searched key, the most important keys first.

    A point is a configuration, and a cross at the upper edge is a configuration that missed the
    target. The shaded range contains the values of the configurations that are as good as the best
    (`plateau`).
    """
    outcomes, keys = outcome(results), keys_by_importance(results)
    keys_drawn = keys[:MOST_KEYS]
    figure, grid = parts.panels(len(keys_drawn), 1.9, 0.3, columns=2, sharey=True)
    near_trials = plateau(results, outcomes)
    best = outcomes.with_outcome.head(1)
    rows = parts.some(outcomes.rows, max(MOST_SLICED // len(keys_drawn), 60))
    rows = pd.concat([best, rows]).drop_duplicates("trial")
    for axes, key in zip(grid, keys_drawn, strict=False):
        _panel(axes, outcomes, key, rows, near_trials)
        parts.head(axes, parts.wrapped(key, 36), parts.TEXT)
    outcome_axis(grid[0], results, outcomes)
    parts.y_title(figure, outcomes.label)
    legend = _slice_keys(outcomes, rows, near_trials)
    if len(keys) > len(keys_drawn):
        legend.append(parts.note(f"the first {len(keys_drawn)} of {len(keys)} keys"))
    parts.legend_below(figure, legend)
    return figure


def plateaus(results: Study) -> pd.DataFrame:
    """Return the best value of each key, and the range of values that are equally good.

    Columns: key, best, from, to. If the values of a key are drawn as categories, `from` lists all
    equally good values, and `to` is empty.
    """
    outcomes = outcome(results)
    rows = outcomes.with_outcome[outcomes.with_outcome["trial"].isin(plateau(results, outcomes))]
    table = []
    for key in keys_by_importance(results) if len(rows) else []:
        names = names_of(rows[key])
        if values_of(key, outcomes.rows)[1]:
            table.append((key, names[0], ", ".join(sorted({*names})), ""))
        else:
            table.append((key, rows[key].iloc[0], rows[key].min(), rows[key].max()))
    return pd.DataFrame(table, columns=["key", "best", "from", "to"])


def slices_table(results: Study) -> pd.DataFrame:
    """Return `plateaus` as a table for display."""
    names = {"best": "best value", "from": "as good from", "to": "as good up to"}
    return plateaus(results).rename(columns=names)


def _panel(
    axes: Axes, outcomes: StudyOutcomes, key: str, rows: pd.DataFrame, near_trials: set[str]
) -> None:
    places, names = values_of(key, outcomes.rows)
    good = places[outcomes.rows["trial"].isin(near_trials)].dropna()
    if names:
        _names_axis(axes, names, good)
    else:
        _numbers_axis(axes, places.dropna(), good)
    for row in parts.tuples(rows[rows["outcome"].notna()]):
        style: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0.5, "zorder": 3}
        style |= {"marker": SHAPES.get(row.framework, "^"), "markeredgecolor": parts.PAPER}
        color = parts.color_of(row.framework)
        parts.mark(axes, places[row.Index], row.outcome, str(row.trial), color=color, **style)
    missed = rows[rows["outcome"].isna()]
    if outcomes.is_seconds and len(missed):
        top = axes.get_xaxis_transform()
        style = {"color": parts.QUIET, "markersize": 5, "linestyle": "none", "zorder": 2}
        axes.plot(places[missed.index], np.full(len(missed), 0.97), "x", transform=top, **style)
    best: Any = outcomes.with_outcome.iloc[0]
    style = {"markersize": 12, "markeredgecolor": parts.PAPER, "zorder": 6}
    axes.plot(places[best.name], best["outcome"], "*", color=parts.INK, **style)


def _names_axis(axes: Axes, names: list[str], good: "pd.Series[float]") -> None:
    labels = [parts.plain(shorten(name, LONGEST_LABEL)) for name in names]
    axes.set_xlim(-0.55, len(names) - 0.45)
    axes.set_xticks(range(len(names)), labels)
    axes.grid(visible=False, axis="x")
    if max(map(len, labels)) * len(labels) > 34:  # horizontal labels would overlap
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
    for place in sorted(set(good.round())):
        axes.axvspan(place - 0.5, place + 0.5, zorder=0, **SHADE_STYLE)


def _numbers_axis(axes: Axes, values: "pd.Series[float]", good: "pd.Series[float]") -> None:
    low, high = values.min(), values.max()
    is_log = low > 0 and high >= LOG_VALUES_FROM * low
    if is_log:
        axes.set_xscale("log")
    room = (high / low) ** 0.05 if is_log else 0.05 * (high - low)
    axes.set_xlim(*((low / room, high * room) if is_log else (low - room, high + room)))
    if len(good):
        axes.axvspan(good.min(), good.max(), zorder=0, **SHADE_STYLE)
    if is_log:
        parts.plain_ticks(axes, "x", is_narrow=True)
    else:
        is_whole = bool((values == values.round()).all())
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=is_whole))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: parts.number(value)))


def _slice_keys(outcomes: StudyOutcomes, rows: pd.DataFrame, near_trials: set[str]) -> list[Artist]:
    keys: list[Artist] = [
        parts.dot(parts.plain(name), parts.color_of(name), marker=SHAPES.get(name, "^"))
        for name in sorted(set(rows["framework"].astype(str)))
    ]
    keys.append(parts.key("best", marker="*", markersize=11, linestyle="none"))
    if len(near_trials) > 1:
        keys.append(
            Patch(label=f"as good: {counted(len(near_trials), 'configuration')}", **SHADE_STYLE)
        )
    if outcomes.is_seconds and len(outcomes.missed):
        label = f"upper edge: missed the target ({len(outcomes.missed):,})"
        keys.append(parts.key(label, parts.QUIET, marker="x", linestyle="none"))
    if len(rows) < len(outcomes.rows):
        label = counted(len(outcomes.rows), "configuration")
        keys.append(parts.note(label + parts.of_all(len(rows), len(outcomes.rows))))
    return keys


MOST_ON_FRONT = 5
"""Maximum number of points of the Pareto front that are listed above the figure."""
MOST_ONCE = 200
"""Maximum number of configurations with a single run that are drawn; the best are selected."""


def pareto_figure(results: Study) -> Figure:
    """Draw expected seconds to the target over worker-seconds to the target.

    The points of each worker count lie on a diagonal.
    """
    points = reached_target(results)
    points = points.assign(x=points["worker_seconds_to_target"], y=points["time_to_target_s"])
    figure, axes = parts.new_figure(4.0)
    axes.set_xlabel("worker-seconds to the target [s]  (right: more expensive)")
    axes.set_ylabel("expected seconds to the target [s]")
    front = pareto_front(points)
    # The axes span the points and the intervals of those on the front.
    ends = pd.concat([front["low_s"], front["high_s"]])
    costs = ends * pd.concat([front["num_workers"]] * 2)
    for which, intervals in (("x", costs), ("y", ends)):
        values = pd.concat([points[which], intervals]).dropna()
        parts.log_axis(axes, which, values.min(), values.max())
    num_drawn = _points(axes, points, set(front["trial"]))
    with_interval = front[front["is_confirmed"] & np.isfinite(front["high_s"])]
    for row in parts.tuples(with_interval):
        interval = np.array([row.low_s, row.high_s])
        style: dict[str, Any] = {"color": parts.color_of(row.framework), "alpha": 0.25}
        axes.plot(interval * row.num_workers, interval, linewidth=6, zorder=1, **style)
    _diagonals(axes, sorted(set(points["num_workers"])))
    _front(axes, front.iloc[::-1], worst=axes.get_ylim()[1])
    _name_front(figure, axes, front)
    once_label = "search (one run)" + parts.of_all(num_drawn, len(points))
    handles = [*parts.frameworks(points["framework"]), *parts.workers(points["num_workers"])]
    if not points["is_confirmed"].all():
        handles.append(parts.dot(once_label, is_filled=False))
    runs = points["runs"][points["is_confirmed"]]
    if len(runs):
        numbers = " to ".join(dict.fromkeys(f"{end:.0f}" for end in (runs.min(), runs.max())))
        handles.append(parts.dot(f"confirmed (expected, {numbers} runs)"))
    handles.append(parts.key("Pareto front", linewidth=1.4))
    if len(with_interval):
        handles.append(Patch(label="90 % interval", **style))
    parts.legend_below(figure, handles, max_columns=2)
    return figure


def pareto_table(results: Study) -> pd.DataFrame:
    """Return the time and cost of the configurations that reached the target, as a table for
    display."""
    rows = reached_target(results)
    rows = rows.assign(is_front=rows["trial"].isin(pareto_front(rows)["trial"]))
    titles = parts.TRIAL_WORDS | {
        "num_workers": "workers",
        "time_to_target_s": "expected seconds",
        "low_s": "from [s]",
        "high_s": "to [s] (90 %)",
        "worker_seconds_to_target": "worker-seconds",
        "runs": "runs",
        "is_front": "on the Pareto front",
    }
    return parts.in_words(rows, titles)


def _points(axes: Axes, points: pd.DataFrame, front: set[str]) -> int:
    """Draw the configurations as points; return the number of points.

    At most MOST_ONCE configurations that ran only once are drawn.
    """
    is_named = points["is_confirmed"] | points["trial"].isin(front)
    points_drawn = pd.concat([points[is_named], parts.some(points[~is_named], MOST_ONCE)])
    for row in parts.tuples(points_drawn):
        color = parts.color_of(row.framework)
        style: dict[str, Any] = {"marker": parts.marker_of(row.num_workers)}
        if row.is_confirmed:
            style |= {"ms": 8, "mfc": color, "mec": parts.PAPER, "mew": 1, "zorder": 4}
        else:
            style |= {"ms": 6.5, "mfc": parts.PAPER, "mec": color, "mew": 1.6, "zorder": 3}
        parts.mark(axes, row.x, row.y, str(row.trial), **style)
    return len(points_drawn)


def _diagonals(axes: Axes, counts: Sequence[int]) -> None:
    """Draw the diagonal of each worker count."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for count in counts:
        ends = [count * low, count * high]
        axes.plot(ends, [low, high], color=parts.QUIET, linewidth=0.8, zorder=0)
        label = f"{count}\n{'worker' if count == 1 else 'workers'}"
        if left < count * high <= right:
            parts.write(axes, count * high, high, label, ha="center", va="bottom")
        elif count * low < right:
            parts.write(axes, right, right / count, f" {label}")


def _front(axes: Axes, front: pd.DataFrame, *, worst: float) -> None:
    """Draw the Pareto front as steps, since nothing was measured between its points."""
    style: dict[str, Any] = {"color": parts.INK, "linewidth": 1.2, "zorder": 2}
    style["drawstyle"] = "steps-post"
    axes.plot(front["x"], front["y"], gid="front", **style)
    right, first, last = axes.get_xlim()[1], front.iloc[0], front.iloc[-1]
    axes.plot([first["x"]] * 2, [worst, first["y"]], **style)
    axes.plot([last["x"], right], [last["y"]] * 2, **style)


def _name_front(figure: Figure, axes: Axes, front: pd.DataFrame) -> None:
    """Number the points of the front, and list them above the figure."""
    handles, num_lines = [], 0
    for number, row in enumerate(parts.tuples(front), start=1):
        if len(front) > 1:
            style: dict[str, Any] = {"fontsize": parts.TEXT, "color": parts.INK, "ha": "right"}
            style |= {"va": "top", "textcoords": "offset points"}
            axes.annotate(str(number), (row.x, row.y), (-6, -6), **style)
        if number > MOST_ON_FRONT:
            continue
        text = f"{number}  " if len(front) > 1 else ""
        text += f"{row.trial}  {row.config}: {row.y:.3g} s, {row.x:.3g} worker-seconds"
        if row.is_confirmed and row.hits < row.runs:
            text += f" ({row.hits} of {row.runs} runs reached the target)"
        label = parts.wrapped(text, parts.ROOM - 6)
        num_lines += 1 + label.count("\n")
        color, marker = parts.color_of(row.framework), parts.marker_of(row.num_workers)
        handles.append(parts.dot(label, color, marker=marker, is_filled=row.is_confirmed))
    title = "on the Pareto front" + (
        f" (first {MOST_ON_FRONT})" if len(front) > MOST_ON_FRONT else ""
    )
    place: dict[str, Any] = {"loc": "outside upper left", "alignment": "left", "title": title}
    legend = figure.legend(handles=handles, title_fontsize=parts.SMALL, **place, **parts.LEGEND)
    legend.get_title().set_color(parts.INK)
    figure.set_figheight(figure.get_figheight() + parts.LINE * num_lines)
