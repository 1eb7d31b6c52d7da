"""What speed costs: configurations by seconds and worker-seconds to the target, and their front."""

import numpy as np
import pandas as pd

from raybench.results.load import StudyResults
from raybench.results.verdict import judge


def configurations(results: StudyResults) -> pd.DataFrame:
    """Return the rows of `results.configurations` that reached the target, fastest first.

    Their seconds are what configurations are compared by, expected running times: so are
    time_to_target_s and worker_seconds_to_target here, low_s and high_s the 90 % interval of a
    confirmed one. None with best_at_budget. Where runs were on several models of GPU, those on the
    winner's alone.
    """
    table = results.configurations
    if (verdict := judge(results)) is not None:
        kind = results.runs[verdict.fastest].accelerators
        table = table[[results.runs[trial].accelerators == kind for trial in table["trial"]]]
    compared = {
        "time_to_target_s": table["expected_s"],
        "worker_seconds_to_target": table["num_workers"] * table["expected_s"],
        "low_s": table["expected_low_s"],
        "high_s": table["expected_high_s"],
    }
    is_reached = table["expected_s"].notna() & results.is_timed
    reached = table.assign(**compared)[is_reached]
    return reached.sort_values("time_to_target_s", kind="stable", ignore_index=True)


def pareto_front(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that no other beats in seconds and worker-seconds to the target.

    `trials` has the columns num_workers and time_to_target_s (missing or infinite: never
    reached, never on the front); worker_seconds_to_target is added. Where some of them are
    confirmed (is_confirmed), the front is theirs: a single run may be a lucky one. Fastest first.
    """
    if "is_confirmed" in trials and trials["is_confirmed"].any():
        trials = trials[trials["is_confirmed"]]
    front = trials.assign(time_to_target_s=trials["time_to_target_s"].astype(float))
    front["worker_seconds_to_target"] = front["num_workers"] * front["time_to_target_s"]
    front = front[np.isfinite(front["time_to_target_s"])]
    costs = front[["time_to_target_s", "worker_seconds_to_target"]].to_numpy(dtype=float)
    kept: pd.DataFrame = front[not_dominated(costs)]
    return kept.sort_values("time_to_target_s", ignore_index=True)


def not_dominated(costs: np.ndarray) -> np.ndarray:
    """Return which rows of `costs` no other row undercuts: less in one, not more in any."""
    no_more = (costs[:, None, :] <= costs[None, :, :]).all(axis=2)
    less = (costs[:, None, :] < costs[None, :, :]).any(axis=2)
    return np.asarray(~(no_more & less).any(axis=0))
