"""What a figure judges configurations by (seconds to the target, or the metric), and what the batch
size does to it: by optimizer and worker count."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raybench.report.figures import parts
from raybench.report.figures.parts import drawn, metric_axis
from raybench.results.ranking import configurations
from raybench.results.study import Study
from raybench.results.verdict import judge
from raybench.spec.text import counted

NEAR = 1.1
"""A configuration within so many times the seconds of the best is as good in practice."""
NEAR_SHARE = 0.1
"""Of a metric: within this part of what the best has gained on the median one."""


@dataclass(frozen=True)
class Outcome:
    """The configurations of a study and how well each did."""

    rows: pd.DataFrame
    """`Study.configurations`, best first, and `outcome`: seconds, or the metric as figures
    have it; NaN of one that missed the target."""
    is_seconds: bool
    words: str
    """Of the axis, with the unit."""
    sign: int
    """1 where more is better."""

    @property
    def known(self) -> pd.DataFrame:
        """The rows with an outcome."""
        return self.rows[self.rows["outcome"].notna()]

    @property
    def missed(self) -> pd.DataFrame:
        """The others."""
        return self.rows[self.rows["outcome"].isna()]


def outcome(results: Study) -> Outcome:
    """Return what the configurations of a study are judged by.

    Expected seconds to the target where one is asked for and was reached, else the best value of
    the metric; confirmed configurations with what was confirmed.
    """
    rows, metric = configurations(results), results.metric
    is_seconds = bool(results.is_timed and rows["expected_s"].notna().any())
    if is_seconds:
        found = rows["expected_s"].astype(float)
        words, sign = "seconds to the target [s]", -1
    else:
        found = drawn(metric, rows[metric.best_column].astype(float))
        words, sign = parts.plain(f"best {metric.axis_words}"), metric.sign
    finite = found.where(np.isfinite(found))
    return Outcome(rows.assign(outcome=finite), is_seconds, words, sign)


def outcome_axis(
    axes: Axes, results: Study, found: Outcome, values: "pd.Series[float] | None" = None
) -> None:
    """Scale y for outcomes, of `values` where others than measured ones are drawn; seconds by
    their log."""
    values = found.known["outcome"] if values is None else values
    if not found.is_seconds:
        values = values / (100 if results.metric.is_share else 1)
        metric_axis(axes, results, values, is_labelled=False)
        return
    low, high = float(values.min()), float(values.max())
    parts.log_axis(axes, "y", low, min(high, parts.FAR * low), margin=1.25)


def plateau(results: Study, found: Outcome) -> set[str]:
    """Return the trials that are as good as the best: tied with it, or within a tenth.

    Of seconds a tenth of the best's; of a metric a tenth of what the best has on the median.
    """
    verdict, known = judge(results), found.known
    if known.empty:
        return set()
    values = known.set_index("trial")["outcome"]
    best = float(values.iloc[0])
    if found.is_seconds:
        near = values <= NEAR * best
    else:
        reach = NEAR_SHARE * abs(best - float(values.median()))
        near = found.sign * values >= found.sign * best - reach
    ties = () if verdict is None else verdict.ties
    return {*values.index[near], *(trial for trial in ties if trial in values.index)}


MOST_PANELS = 8
MOST_POINTS = 250
"""Measured configurations, or predictions, that are drawn, from the best to the worst."""
PANEL = 2.2
"""Inches of a panel's height."""
SPLIT = ["framework", "num_workers"]
"""What a panel has one of."""
MANY = 6
"""Optimizers that have a name; further ones are `other optimizers`."""
PREDICTED: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 0.8}
PREDICTED |= {"markerfacecolor": parts.PAPER}
CONFIRMED: dict[str, Any] = {"markersize": 7.5, "markeredgecolor": parts.INK, "mew": 1.2}
ONCE: dict[str, Any] = {"markersize": 5, "markeredgecolor": parts.PAPER, "markeredgewidth": 0.6}


def batches_figure(results: Study) -> Figure:
    """The outcome against the global batch size, a panel for each framework and worker count.

    An optimizer is a colour and a marker; a line joins its best at each power of two. Hollow
    markers on a dashed line are predicted (~): such a split was never run. The words above a panel
    count the runs that reached the target.
    """
    found, rows, predicted = outcome(results), batch_rows(results), predicted_rows(results)
    every = pd.concat([rows, predicted], ignore_index=True)
    known = every[every["outcome"].notna()]
    sizes = known.groupby(SPLIT).size().sort_values(ascending=False)
    splits = sorted(sizes.index[:MOST_PANELS], key=lambda one: (one[1], one[0]))
    figure, grid = parts.panels(len(splits), PANEL, 0.5, columns=2, sharex=True, sharey=True)
    names = list(every["optimizer"].value_counts().index)
    number, drawn = int(rows["outcome"].notna().sum()), 0
    part = MOST_POINTS / max(number, MOST_POINTS)
    for axes, split in zip(grid, splits, strict=False):
        here, there = (
            table[(table["framework"] == split[0]) & (table["num_workers"] == split[1])]
            for table in (rows, predicted)
        )
        drawn += _measured(axes, here, names, part, sign=found.sign)
        _predicted(axes, there, names)
        title = parts.plain(f"{split[0]}, {counted(int(split[1]), 'worker')}")
        if found.is_seconds:
            title += f"\n{here['outcome'].count()} of {len(here)} reached the target"
        parts.head(axes, title)
    _batch_axis(grid, known)
    outcome_axis(grid[0], results, found, known["outcome"])
    parts.y_title(figure, found.words)
    groups: Any = rows.groupby(SPLIT)["outcome"]
    left_out = [
        f"{split[0]}, {counted(int(split[1]), 'worker')} ({own.count()} of {len(own)} reached)"
        for split, own in groups
        if split not in splits
    ]
    if left_out:
        more = f" and {len(left_out) - 4} more" if len(left_out) > 4 else ""
        words = parts.wrapped(f"not drawn: {'; '.join(left_out[:4])}{more}", parts.ROOM)
        figure.suptitle(words, fontsize=parts.SMALL, color=parts.INK)
    keys = _keys(names, found, has_predicted=len(predicted) > 0)
    if drawn < number:
        keys.append(parts.dot(f"{drawn:,} of {number:,} runs drawn", parts.QUIET))
    parts.legend_below(figure, keys)
    return figure


def batch_rows(results: Study) -> pd.DataFrame:
    """Return the measured: trial, framework, num_workers, optimizer, batch, outcome, is_confirmed.

    `batch` is the global batch size, `outcome` as in `figures.outcome`.
    """
    rows = outcome(results).rows
    batches = results.trials.set_index("trial")["global_batch_size"].reindex(rows["trial"])
    found = rows.assign(batch=batches.to_numpy())
    columns = ["trial", *SPLIT, "optimizer", "batch", "outcome", "is_confirmed"]
    return found[columns].dropna(subset=["batch", "num_workers"])


def predicted_rows(results: Study) -> pd.DataFrame:
    """Return what the step-time model says of splits that were not run, in the same columns.

    Empty where configurations are not judged by seconds.
    """
    table = results.predictions
    table = table[table["trial"].isin(list(results.specs))]
    if not outcome(results).is_seconds:
        table = table.head(0)
    specs = [results.specs[trial] for trial in table["trial"]]
    accumulate = np.array([spec.accumulate for spec in specs], dtype=int)
    found = table[["trial", "framework", "num_workers"]].assign(
        optimizer=[spec.optimizer for spec in specs],
        batch=table["num_workers"] * table["batch_size_per_worker"] * accumulate,
        outcome=table["time_to_target_s"],
        is_confirmed=False,
    )
    columns = ["trial", *SPLIT, "batch"]
    seen = set(batch_rows(results)[columns].itertuples(index=False, name=None))
    is_new = [one not in seen for one in found[columns].itertuples(index=False, name=None)]
    return found[np.array(is_new, dtype=bool)]


def _measured(axes: Axes, here: pd.DataFrame, names: list[str], part: float, *, sign: int) -> int:
    """Draw the runs of a panel, of very many `part` and the best; return how many."""
    drawn = 0
    for optimizer, own in here[here["outcome"].notna()].groupby("optimizer", sort=False):
        own_style = _style(names, optimizer)
        powers = (sign * own["outcome"]).groupby(np.log2(own["batch"]).round())
        best = own.loc[powers.idxmax()].sort_values("batch")
        shown = parts.some(own, max(int(len(own) * part), 1))
        shown = pd.concat([shown, best]).drop_duplicates("trial")
        drawn += len(shown)
        for row in parts.tuples(shown):
            style = CONFIRMED | {"zorder": 4} if row.is_confirmed else ONCE | {"zorder": 3}
            parts.mark(axes, row.batch, row.outcome, str(row.trial), **own_style, **style)
        line = {"color": own_style["color"], "linewidth": 1.1, "alpha": 0.6, "zorder": 2}
        axes.plot(best["batch"], best["outcome"], **line)
    return drawn


def _predicted(axes: Axes, there: pd.DataFrame, names: list[str]) -> None:
    for trial, split in there.groupby("trial", sort=False):
        own = split.sort_values("batch")
        style = PREDICTED | _style(names, own["optimizer"].iloc[0])
        axes.plot(own["batch"], own["outcome"], gid=str(trial), markersize=5.5, zorder=2.5, **style)


def _style(names: list[str], optimizer: object) -> dict[str, Any]:
    place = names.index(str(optimizer))
    is_named = place < MANY
    colour = parts.colour(place) if is_named else parts.QUIET
    return {"color": colour, "marker": parts.marker(place) if is_named else "h"}


def _batch_axis(grid: Any, known: pd.DataFrame) -> None:
    low, high = known["batch"].min(), known["batch"].max()
    powers = np.arange(np.floor(np.log2(low)), np.ceil(np.log2(high)) + 1)
    powers = powers[:: max(-(-len(powers) // 6), 1)]
    for axes in grid:
        axes.set_xscale("log", base=2)
        if axes.axison and axes.get_subplotspec().is_last_row():
            axes.set_xlabel("global batch size [samples]")
    grid[0].set_xlim(low / 1.5, high * 1.5)
    grid[0].set_xticks(2.0**powers, [f"{2.0**power:.0f}" for power in powers])


def _keys(names: list[str], found: Outcome, *, has_predicted: bool) -> list[Artist]:
    keys: list[Artist] = [
        parts.dot(parts.plain(name), parts.colour(place), marker=parts.marker(place))
        for place, name in enumerate(names[:MANY])
    ]
    if len(names) > MANY:
        keys.append(parts.dot("other optimizers", parts.QUIET, marker="h"))
    if found.rows["is_confirmed"].any():
        style = CONFIRMED | {"linestyle": "none", "marker": "o"}
        keys.append(parts.key("confirmed", parts.QUIET, **style))
    if has_predicted:
        keys.append(parts.key("~ predicted, never run", marker="o", **PREDICTED))
    return keys
