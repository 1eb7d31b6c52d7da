"""Seconds against worker-seconds: which configurations no other beats in both."""

import numpy as np
import pandas as pd

from raybench.results.analyses.frames import need


def pareto_front(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that no other beats in seconds and worker-seconds to the target.

    `trials` has the columns num_workers and time_to_target_s (missing or infinite: never
    reached, never on the front); worker_seconds_to_target is added. Where some of them are
    confirmed (is_confirmed), the front is theirs: a single run may be a lucky one. Fastest first.
    """
    need(trials, "trials", ("time_to_target_s",), known=("num_workers",))
    if "is_confirmed" in trials and trials["is_confirmed"].any():
        trials = trials[trials["is_confirmed"]]
    front = trials.assign(time_to_target_s=trials["time_to_target_s"].astype(float))
    front["worker_seconds_to_target"] = front["num_workers"] * front["time_to_target_s"]
    front = front[np.isfinite(front["time_to_target_s"])]
    costs = front[["time_to_target_s", "worker_seconds_to_target"]].to_numpy(dtype=float)
    kept: pd.DataFrame = front[not_dominated(costs)]
    return kept.sort_values("time_to_target_s", ignore_index=True)


def not_dominated(costs: np.ndarray) -> np.ndarray:
    """Return which rows of `costs` (n, 2) no other row undercuts: less in one, not more in any."""
    kept = np.zeros(len(costs), dtype=bool)
    order = np.lexsort((costs[:, 1], costs[:, 0]))
    least, last = np.inf, np.array([np.nan, np.nan])
    for row in order:  # the first cost only grows, so the second must fall
        if costs[row, 1] < least or (costs[row] == last).all():
            kept[row] = True
            least, last = costs[row, 1], costs[row]
    return kept
