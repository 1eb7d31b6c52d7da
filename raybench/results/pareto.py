"""What speed costs: configurations by seconds and worker-seconds to the target, and their front."""

import numpy as np
import pandas as pd

from raybench.results.load import StudyResults
from raybench.results.verdict import judge


def configurations(results: StudyResults) -> pd.DataFrame:
    """Return the rows of `results.configurations` that reached the target, fastest first.

    A confirmed configuration is left out if its median is a miss. Where runs were on several
    models of GPU, those on the winner's alone.
    """
    table = results.configurations
    if (verdict := judge(results)) is not None:
        kind = results.runs[verdict.fastest].accelerators
        table = table[[results.runs[trial].accelerators == kind for trial in table["trial"]]]
    reached = table[table["time_to_target_s"].notna()]
    return reached.sort_values("time_to_target_s", kind="stable", ignore_index=True)


def pareto_front(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that no other beats in seconds and worker-seconds to the target.

    `trials` has the columns num_workers and time_to_target_s (missing or infinite: never
    reached, never on the front); worker_seconds_to_target is added. Fastest first.
    """
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
