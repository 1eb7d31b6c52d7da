"""All configurations of a study in one table: confirmed ones apart from single runs."""

import numpy as np
import pandas as pd

from raybench.results.label import BASE_KEYS
from raybench.results.load import StudyResults
from raybench.results.tables import ranked
from raybench.results.trials import searched_columns
from raybench.results.verdict import confirmed


def ranking(results: StudyResults) -> pd.DataFrame:
    """Return one row per configuration of the search, the confirmed first, each part best first.

    Columns: trial, config, is_confirmed, runs, hits, time_to_target_s, low_s, high_s,
    worker_seconds_to_target, best_accuracy, then the searched keys (framework, num_workers, ...).
    A confirmed configuration stands with the medians, the fastest and the slowest of its confirm
    runs, never with the lucky run that the search picked it for; any other with its one search
    run. Seconds are missing where the target was not reached (by the median run).
    """
    trials = results.trials
    keys = [*BASE_KEYS, *searched_columns(trials)]
    search = ranked(trials)[["trial", "config", "time_to_target_s", "best_accuracy", *keys]]
    proof = confirmed(results).set_index("trial")
    table = search.join(
        proof[["runs", "hits", "median_s", "low_s", "high_s", "median_accuracy"]], on="trial"
    )
    is_confirmed = table["runs"].notna()
    single = table["time_to_target_s"]
    for name, source in (
        ("low_s", "low_s"),
        ("high_s", "high_s"),
        ("time_to_target_s", "median_s"),
    ):
        seconds = table[source].astype(float).where(is_confirmed, single)
        table[name] = seconds.where(np.isfinite(seconds))
    table["best_accuracy"] = table["median_accuracy"].where(is_confirmed, table["best_accuracy"])
    table["hits"] = table["hits"].where(is_confirmed, single.notna()).astype(int)
    table["runs"] = table["runs"].fillna(1).astype(int)
    table["worker_seconds_to_target"] = table["num_workers"] * table["time_to_target_s"]
    table["is_confirmed"] = is_confirmed
    is_first = dict.fromkeys([*proof.index, *search["trial"]])
    order = [trial for trial in is_first if trial in set(search["trial"])]
    table = table.set_index("trial").loc[order].reset_index()
    first = ["trial", "config", "is_confirmed", "runs", "hits", "time_to_target_s", "low_s"]
    first += ["high_s", "worker_seconds_to_target", "best_accuracy"]
    return table[[*first, *keys]]
