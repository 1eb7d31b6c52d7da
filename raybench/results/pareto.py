"""What speed costs: configurations by seconds and worker-seconds to the target, and their front."""

import numpy as np
import pandas as pd

from raybench.results.load import StudyResults
from raybench.results.tables import ranked
from raybench.results.verdict import confirmed


def configurations(results: StudyResults) -> pd.DataFrame:
    """Return one row per configuration of the search that reached the target, fastest first.

    Columns: trial, config, framework, num_workers, time_to_target_s, low_s, high_s,
    worker_seconds_to_target, runs, is_confirmed. A confirmed configuration stands with the
    median of its confirm runs, never with the lucky run that the search picked it for; it is
    left out if that median is a miss. Any other stands with its one search run.
    """
    search = ranked(results.trials)[
        ["trial", "config", "framework", "num_workers", "time_to_target_s"]
    ]
    proof = confirmed(results).set_index("trial")[["runs", "median_s", "low_s", "high_s"]]
    table = search.join(proof, on="trial")
    single = table["time_to_target_s"].astype(float)
    is_confirmed = table["runs"].notna()
    table["time_to_target_s"] = table["median_s"].astype(float).where(is_confirmed, single)
    table["low_s"] = table["low_s"].astype(float).where(is_confirmed, single)
    table["high_s"] = table["high_s"].astype(float).where(is_confirmed, single)
    table["worker_seconds_to_target"] = table["num_workers"] * table["time_to_target_s"]
    table["runs"] = table["runs"].fillna(1).astype(int)
    table["is_confirmed"] = is_confirmed
    reached: pd.DataFrame = table[np.isfinite(table["time_to_target_s"])]
    return reached.drop(columns="median_s").sort_values("time_to_target_s", ignore_index=True)


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
