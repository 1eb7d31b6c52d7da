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

NEAR = 1.1
"""A configuration within so many times the seconds of the best is as good in practice."""
NEAR_SHARE = 0.1
"""Of a metric: within this part of what the best has gained on the median one."""
FAR = 30.0
"""Seconds so many times those of the best are at the edge of a figure."""


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

    def places(self, values: "pd.Series[float]") -> np.ndarray:
        """Return where values lie between the worst (0) and the best (1) of all."""
        every, at = self.known["outcome"].to_numpy(dtype=float), values.to_numpy(dtype=float)
        if self.is_seconds:
            every, at = np.log(every), np.log(at)
        low, high = every.min(), every.max()
        if high == low:
            return np.ones(len(at))
        place = (at - low) / (high - low)
        return np.asarray(place if self.sign > 0 else 1 - place)


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


def outcome_axis(axes: Axes, results: Study, found: Outcome) -> None:
    """Scale y for outcomes; seconds by their log."""
    if not found.is_seconds:
        values = found.known["outcome"] / (100 if results.metric.is_share else 1)
        metric_axis(axes, results, values, is_labelled=False)
        return
    values = found.known["outcome"]
    low, high = float(values.min()), float(values.max())
    axes.set(yscale="log", ylim=parts.window(low, min(high, FAR * low), margin=1.25))
    parts.plain_ticks(axes, "y")


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
SPLIT = ("framework", "num_workers")
"""What a panel has one of."""
MANY = 6
"""Optimizers that have a name; further ones are `other optimizers`."""


def batches_figure(results: Study) -> Figure:
    """The outcome against the global batch size, a panel for each framework and worker count.

    An optimizer is a colour and a marker; a line joins its best at each power of two. Hollow
    markers on a dashed line are predicted (~): such a split was never run. The words above a panel
    count the runs that reached the target.
    """
    found, rows, predicted = outcome(results), batch_rows(results), predicted_rows(results)
    every = pd.concat([rows, predicted], ignore_index=True)
    shown = every[every["outcome"].notna()]
    sizes = shown.groupby(["framework", "num_workers"]).size().sort_values(ascending=False)
    panels = sorted(sizes.index[:MOST_PANELS], key=lambda one: (one[1], one[0]))
    if not panels:
        figure, axes = parts.new_figure(parts.WIDTH, 2.6)
        return parts.say(figure, axes, parts.NOTHING)
    left_out = [split for split in rows.groupby(list(SPLIT)).groups if split not in panels]
    figure, grid = parts.panels(len(panels), PANEL, 0.5, sharex=True)
    names = list(every["optimizer"].value_counts().index)
    limit, drawn = int(rows["outcome"].notna().sum()), 0
    part = MOST_POINTS / max(limit, MOST_POINTS)
    for axes, (framework, workers) in zip(grid, panels, strict=False):
        axes.set_xscale("log", base=2)
        here = _of_split(rows, framework, workers)
        there = _of_split(predicted, framework, workers)
        drawn += _panel(axes, here, there, names, part, sign=found.sign)
        title = f"{framework}, {parts.plural(int(workers), 'worker')}"
        if found.is_seconds:
            title += f"\n{here['outcome'].notna().sum()} of {len(here)} reached the target"
        axes.set_title(parts.plain(title), fontsize=parts.SMALL, color=parts.INK, loc="left")
    _axes(figure, grid, results, found, every)
    keys = _keys(names, found, has_predicted=len(predicted) > 0)
    if drawn < limit:
        keys.append(parts.dot(f"{drawn:,} of {limit:,} runs drawn", parts.QUIET))
    if left_out:
        figure.suptitle(_left_out(rows, left_out), fontsize=parts.SMALL, color=parts.INK)
    parts.legend_below(figure, keys)
    return figure


def batch_rows(results: Study) -> pd.DataFrame:
    """Return the measured: trial, framework, num_workers, optimizer, batch, outcome, is_confirmed.

    `batch` is the global batch size, `outcome` as in `figures.outcome`.
    """
    rows = outcome(results).rows
    batches = results.trials.set_index("trial")["global_batch_size"].reindex(rows["trial"])
    columns = ["trial", "framework", "num_workers", "optimizer"]
    found = rows[columns].assign(batch=batches.to_numpy(), outcome=rows["outcome"])
    found["is_confirmed"] = rows["is_confirmed"]
    return found.dropna(subset=["batch", "num_workers"])


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
    seen = set(zip(*_split(batch_rows(results)), strict=True))
    is_new = [one not in seen for one in zip(*_split(found), strict=True)]
    return found[np.array(is_new, dtype=bool)]


def _split(rows: pd.DataFrame) -> list[list[Any]]:
    return [rows[key].tolist() for key in ("trial", "framework", "num_workers", "batch")]


def _panel(
    axes: Axes,
    here: pd.DataFrame,
    there: pd.DataFrame,
    names: list[str],
    part: float,
    *,
    sign: int,
) -> int:
    """Draw a panel, of very many runs `part` and the best; return how many. `sign`: Outcome's."""
    drawn = 0
    known = here[here["outcome"].notna()]
    for optimizer, own in known.groupby("optimizer", sort=False):
        number, shape = _style(names, str(optimizer))
        powers = own.groupby(np.log2(own["batch"]).round())["outcome"]
        best = own.loc[(powers.idxmax() if sign > 0 else powers.idxmin())].sort_values("batch")
        shown = own.iloc[parts.spread(range(len(own)), max(int(len(own) * part), 1))]
        shown = pd.concat([shown, best]).drop_duplicates("trial")
        drawn += len(shown)
        for row in parts.tuples(shown):
            parts.mark(
                axes,
                row.batch,
                row.outcome,
                str(row.trial),
                color=number,
                marker=shape,
                markersize=7.5 if row.is_confirmed else 5,
                markeredgecolor=parts.INK if row.is_confirmed else parts.PAPER,
                markeredgewidth=1.2 if row.is_confirmed else 0.6,
                zorder=4 if row.is_confirmed else 3,
            )
        axes.plot(best["batch"], best["outcome"], color=number, linewidth=1.1, alpha=0.6, zorder=2)
    for _, split in there.groupby("trial", sort=False):
        own = split.sort_values("batch")
        number, shape = _style(names, str(own["optimizer"].iloc[0]))
        axes.plot(
            own["batch"],
            own["outcome"],
            color=number,
            marker=shape,
            markersize=5.5,
            markerfacecolor=parts.PAPER,
            linestyle=(0, (3, 2)),
            linewidth=0.8,
            zorder=2.5,
            gid=str(own["trial"].iloc[0]),
        )
    return drawn


def _style(names: list[str], optimizer: str) -> tuple[str, str]:
    place = names.index(optimizer)
    if place >= MANY:
        return parts.QUIET, "h"
    return parts.colour(place), parts.marker(place)


def _left_out(rows: pd.DataFrame, splits: list[Any]) -> str:
    """Return what is said of splits without a panel."""
    words = []
    for framework, workers in splits[:4]:
        own = _of_split(rows, framework, workers)["outcome"].notna()
        split = f"{framework}, {parts.plural(int(workers), 'worker')}"
        words.append(f"{split} ({own.sum()} of {len(own)} reached)")
    more = f" and {len(splits) - 4} more" if len(splits) > 4 else ""
    return parts.wrapped(f"not drawn: {'; '.join(words)}{more}", parts.ROOM)


def _of_split(rows: pd.DataFrame, framework: object, workers: float) -> pd.DataFrame:
    return rows[(rows["framework"] == framework) & (rows["num_workers"] == workers)]


def _axes(figure: Figure, grid: Any, results: Study, found: Outcome, every: pd.DataFrame) -> None:
    known = every[every["outcome"].notna()]
    if known.empty:
        known = every
    low, high = known["batch"].min(), known["batch"].max()
    grid[0].set_xlim(low / 1.5, high * 1.5)
    powers = np.arange(np.floor(np.log2(low)), np.ceil(np.log2(high)) + 1)
    powers = powers[:: max(-(-len(powers) // 6), 1)]
    grid[0].set_xticks(2.0**powers, [f"{2.0**power:.0f}" for power in powers])
    if len(found.known):
        outcome_axis(grid[0], results, found)
        if found.is_seconds:
            values = known["outcome"]
            grid[0].set_ylim(parts.window(values.min(), min(values.max(), 30 * values.min())))
            parts.plain_ticks(grid[0], "y")
    for axes in grid:
        if axes.get_subplotspec().is_last_row() and axes.axison:
            axes.set_xlabel("global batch size [samples]")
    figure.supylabel(found.words, fontsize=parts.TEXT, color=parts.INK)


def _keys(names: list[str], found: Outcome, *, has_predicted: bool) -> list[Artist]:
    keys: list[Artist] = [
        parts.dot(parts.plain(name), parts.colour(place), marker=parts.marker(place))
        for place, name in enumerate(names[:MANY])
    ]
    if len(names) > MANY:
        keys.append(parts.dot("other optimizers", parts.QUIET, marker="h"))
    if found.rows["is_confirmed"].any():
        edge = {"markeredgecolor": parts.INK, "markeredgewidth": 1.2, "markersize": 7.5}
        keys.append(parts.key("confirmed", parts.QUIET, linestyle="none", marker="o", **edge))
    if has_predicted:
        style: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 0.8, "marker": "o"}
        keys.append(parts.key("~ predicted, never run", markerfacecolor=parts.PAPER, **style))
    return keys
