"""What a study's configurations are judged by in a figure: seconds to the target, or the metric."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from raybench.results.figures import parts
from raybench.results.figures.metric_axis import drawn, metric_axis
from raybench.results.load import StudyResults
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
    """`StudyResults.configurations`, best first, and `outcome`: seconds, or the metric as figures
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


def outcome(results: StudyResults) -> Outcome:
    """Return what the configurations of a study are judged by.

    Expected seconds to the target where one is asked for and was reached, else the best value of
    the metric; confirmed configurations with what was confirmed.
    """
    rows, metric = results.configurations, results.metric
    is_seconds = bool(results.is_timed and rows["expected_s"].notna().any())
    if is_seconds:
        found = rows["expected_s"].astype(float)
        words, sign = "seconds to the target [s]", -1
    else:
        found = drawn(metric, rows[metric.best_column].astype(float))
        words, sign = parts.plain(f"best {metric.axis_words}"), metric.sign
    finite = found.where(np.isfinite(found))
    return Outcome(rows.assign(outcome=finite), is_seconds, words, sign)


def outcome_axis(axes: Axes, results: StudyResults, found: Outcome) -> None:
    """Scale y for outcomes; seconds by their log."""
    if not found.is_seconds:
        values = found.known["outcome"] / (100 if results.metric.is_share else 1)
        metric_axis(axes, results, values, is_labelled=False)
        return
    values = found.known["outcome"]
    low, high = float(values.min()), float(values.max())
    axes.set(yscale="log", ylim=parts.window(low, min(high, FAR * low), margin=1.25))
    parts.plain_ticks(axes, "y")


def plateau(results: StudyResults, found: Outcome) -> set[str]:
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
