"""The winner of a study, and all that cannot be told from it, as a table."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from raybench.results.analyses import BEST, ONCE, TIED, WORSE
from raybench.results.repeated import repeat

if TYPE_CHECKING:
    from raybench.results.load import StudyResults

COLUMNS = (
    *("trial", "standing", "is_cheapest", "config", "num_workers", "is_confirmed"),
    *("runs", "hits", "seconds", "low_s", "high_s", "worker_seconds"),
)


def winners(results: "StudyResults") -> pd.DataFrame:
    """Return the winner and the configurations that cannot be told from it.

    | column | holds |
    |---|---|
    | trial, config, num_workers | the configuration |
    | standing | `best` (the fastest, or of the best value), `statistically tied` with it, or |
    |  | `ran once`: cannot be excluded either, but was never repeated; `worse` is a cheapest one |
    | is_cheapest | whether it costs the least: `Verdict.cheapest` |
    | is_confirmed, runs, hits | whether it ran again; the runs it is compared by; those that hit |
    | seconds, low_s, high_s | to the target: what is printed, and its 90 % interval if confirmed |
    | worker_seconds | num_workers x seconds |
    | best_accuracy, low_accuracy, high_accuracy | or another metric's; with best_at_budget the |
    |  | value and its 90 % interval |

    Empty where no run reached the target. By `results.verdict`, as the verdict in words.
    """
    metric = results.metric
    columns = [*COLUMNS, metric.best_column, f"low_{metric.name}", f"high_{metric.name}"]
    verdict = results.verdict
    if verdict is None:
        return pd.DataFrame(columns=columns)
    standing = dict.fromkeys(verdict.once, ONCE) | dict.fromkeys(verdict.ties, TIED)
    standing[verdict.fastest] = BEST
    standing.setdefault(verdict.cheapest, WORSE)
    order = [verdict.fastest, *(name for name in verdict.ties if name != verdict.fastest)]
    order += [name for name in (*verdict.once, verdict.cheapest) if name not in order]
    order = list(dict.fromkeys(order))
    table = results.configurations.set_index("trial").loc[order]
    proof = results.confirmed.set_index("trial").reindex(order)
    table = table.assign(
        standing=[standing[name] for name in order],
        is_cheapest=[results.is_timed and name == verdict.cheapest for name in order],
        seconds=table["time_to_target_s"] if results.is_timed else np.nan,
        low_s=proof["interval_low_s"].astype(float),
        high_s=proof["interval_high_s"].astype(float),
        worker_seconds=table["worker_seconds_to_target"] if results.is_timed else np.nan,
    )
    for end in ("low", "high"):
        table[f"{end}_{metric.name}"] = proof[f"interval_{end}_{metric.name}"].astype(float)
    return table.reset_index()[columns]


def repeats(results: "StudyResults") -> pd.DataFrame:
    """Return the runs by which configurations are compared: for `analyses.standings`.

    Columns: trial (the configuration), run (its name), seconds, is_hit. With best_at_budget
    `seconds` holds the value, less is better.
    """
    rows = []
    for trial, one in results.repeated.items():
        for name in one.chosen_runs:
            own = repeat(results, name)
            rows.append((trial, name, own.seconds, own.is_hit))
    return pd.DataFrame(rows, columns=["trial", "run", "seconds", "is_hit"])
