"""What each number of workers brought in a search: the best of it, and what that costs."""

from typing import Any

import numpy as np
import pandas as pd

from raybench.core.metric import Metric
from raybench.results.analyses.frames import need

COSTS, RATIOS = ("seconds", "worker_seconds"), ("times_as_fast", "times_the_cost")
COLUMNS = ("num_workers", "tried", "reached", "trial", "config", "is_confirmed", *COSTS, *RATIOS)


def by_workers(configurations: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the best configuration of each number of workers, fewest first.

    `configurations` is `StudyResults.configurations`, best first: a confirmed one goes before those
    that ran once, whose seconds flatter.

    | column | holds |
    |---|---|
    | num_workers, tried, reached | how many configurations had so many; those that hit |
    | trial, config, is_confirmed | the best of them |
    | seconds, worker_seconds | what it takes to the target; missing where none of them hit |
    | times_as_fast, times_the_cost | over the fewest workers that hit |
    | best_accuracy | or another metric's |
    """
    columns = ("hits", "time_to_target_s", "worker_seconds_to_target", metric.best_column)
    need(configurations, "configurations", columns, known=("num_workers",))
    rows: list[dict[str, Any]] = []
    for number, group in configurations.groupby("num_workers"):
        hit = group[group["time_to_target_s"].notna()]
        best = (hit if len(hit) else group).iloc[0]
        row = {
            "num_workers": number,
            "tried": len(group),
            "reached": int((group["hits"] > 0).sum()),
        }
        row |= {name: best[name] for name in ("trial", "config", "is_confirmed")}
        row["seconds"] = float(best["time_to_target_s"])
        row["worker_seconds"] = float(best["worker_seconds_to_target"])
        rows.append(row | {metric.best_column: float(best[metric.best_column])})
    names = [*COLUMNS, metric.best_column]
    table = pd.DataFrame(rows, columns=[name for name in names if name not in RATIOS])
    hit = table[table["seconds"].notna()].head(1)
    seconds, cost = (hit[name].iloc[0] if len(hit) else np.nan for name in COSTS)
    ratios = seconds / table["seconds"], table["worker_seconds"] / cost
    return table.assign(**dict(zip(RATIOS, ratios, strict=True)))[names]
