"""When learning curves reach a target: any target, and the one asked for and a point either side.

Trials end when they reach their study's own target, so few of them tell anything of a harder one.
"""

import numpy as np
import pandas as pd

from raybench.core.crossing import LONG_PERIOD
from raybench.core.metric import Metric
from raybench.core.score import small_difference
from raybench.results.analyses.frames import need

ONE_POINT = 0.01
"""Of a share; of other metrics it is 1 % of the gap to chance (`small_difference`)."""


def time_to_target(
    curves: pd.DataFrame,
    metric: Metric,
    target: float,
    *,
    hold: int = 1,
    chance: float | None = None,
) -> pd.DataFrame:
    """Return when each trial of `curves` reached a target, in their order.

    Columns: trial, seconds (of training; missing where it never did), is_interpolated. The first
    of `hold` evaluations in a row at the target counts, and where evaluations are far apart a
    time between it and the one before (`core.crossing`; `chance` is what is reached at 0 s).
    """
    need(curves, "curves", ("trial", metric.name), known=("train_s",))
    codes, names = pd.factorize(curves["trial"])
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    seconds = curves["train_s"].to_numpy(dtype=float)[order]
    values = curves[metric.name].to_numpy(dtype=float)[order]
    at = _first_held(codes, metric.sign * values >= metric.sign * target, hold)
    is_start = np.diff(codes, prepend=-1)[at] != 0
    before_s = np.where(is_start, 0.0, seconds[at - 1])
    before = np.where(is_start, np.nan if chance is None else chance, values[at - 1])
    period, way, rest = seconds[at] - before_s, values[at] - before, target - before
    is_between = (period > LONG_PERIOD * seconds[at]) & np.isfinite(way) & (way * rest > 0)
    share = np.ones(len(at))
    share[is_between] = np.minimum(rest[is_between] / way[is_between], 1.0)
    table = pd.DataFrame({"trial": names, "seconds": np.nan, "is_interpolated": False})
    table.loc[codes[at], "seconds"] = before_s + period * share
    table.loc[codes[at], "is_interpolated"] = is_between
    return table


def around_target(
    curves: pd.DataFrame,
    metric: Metric,
    target: float,
    *,
    hold: int = 1,
    chance: float | None = None,
    points: float = ONE_POINT,
) -> pd.DataFrame:
    """Return which trial reaches first the target, an easier and a harder one, easiest first.

    They are `points` of a share apart (0.01: one point), of other metrics 1 % of the gap to
    chance. Columns: target, trial, seconds (both missing where none reaches it), reached (trials
    that do), trials. A winner that changes with the target hangs on it.
    """
    step = metric.sign * small_difference(metric, target, chance, points=points)
    rows = []
    for one in (target - step, target, target + step):
        if metric.is_share and one > 1:
            continue
        times = time_to_target(curves, metric, one, hold=hold, chance=chance)
        known = times.dropna(subset=["seconds"])
        first = known.nsmallest(1, "seconds")
        rows.append(
            {
                "target": one,
                "trial": first["trial"].iloc[0] if len(first) else None,
                "seconds": first["seconds"].iloc[0] if len(first) else np.nan,
                "reached": len(known),
                "trials": len(times),
            }
        )
    return pd.DataFrame(rows)


def _first_held(codes: np.ndarray, reached: np.ndarray, hold: int) -> np.ndarray:
    """Return where each trial first begins `hold` evaluations in a row at the target."""
    held = reached.copy()
    for later in range(1, hold):
        held[-later:] = False
        held[:-later] &= reached[later:] & (codes[later:] == codes[:-later])
    at = np.flatnonzero(held)
    return at[np.unique(codes[at], return_index=True)[1]]
