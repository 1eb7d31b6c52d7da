"""The orders of a study: its runs by score, its confirmed configurations, and both in one table."""

from typing import Any

import numpy as np
import pandas as pd

from raybench.core.metric import Metric
from raybench.core.record import MACHINE_FAULTS
from raybench.results.label import BASE_KEYS
from raybench.results.load import StudyResults
from raybench.results.trials import searched_columns

CONFIRMED_COLUMNS = (
    "trial",
    "config",
    "num_workers",
    "runs",
    "hits",
    "median_s",
    "low_s",
    "high_s",
    "worker_seconds_to_target",
    "search_s",
)
"""Columns of `confirmed` before those of the metric."""
OF_METRIC = ("median", "low", "high", "search", "test")
"""The others: `median_accuracy`, ..., `test_accuracy`."""


def ranked(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the search that did not fail, best score first.

    Left out are those laid out unlike others of their size (`results.topology`). Runs on several
    models of GPU are all there: `kinds` tells them apart.
    """
    chosen = trials[(trials["phase"] == "search") & (trials["state"] != "failed")]
    chosen = chosen[chosen["unranked"].isna()]
    return chosen.sort_values("score", kind="stable")


def kinds(trials: pd.DataFrame) -> list[str]:
    """Return the models of GPU that runs of the search were on, that of the best run first.

    "" stands for none; runs are compared only within one of them.
    """
    return list(dict.fromkeys(kind_of(ranked(trials))))


def kind_of(trials: pd.DataFrame) -> pd.Series:
    """Return the models of every run's GPUs; "" without."""
    return trials["accelerators"].fillna("")


def confirmed(results: StudyResults) -> pd.DataFrame:
    """Return one row per confirmed configuration, best first: see `StudyResults.confirmed`.

    Columns: trial, config, num_workers, runs, hits, median_s, low_s, high_s (train seconds
    to the target; a miss counts as infinite), worker_seconds_to_target, search_s (what the
    search had measured), median_accuracy, low_accuracy (the least), high_accuracy,
    search_accuracy (best on validation), test_accuracy; of another metric by its name. A run that
    failed counts as the worst: with accuracy 0, of metrics that are no shares with infinity.

    Order: the share of runs that reached the target, then median_s; with best_at_budget
    (where `hits` are the runs that did not fail) median_accuracy.
    """
    trials, metric = results.trials, results.metric
    # A run that was cut off says nothing: it had no chance to reach the target. Nor does one
    # whose workers the machine lost.
    says = (trials["state"] != "stopped") & ~trials["failure"].isin(MACHINE_FAULTS)
    says &= trials["unranked"].isna()
    searched = trials.set_index("trial")
    rows = []
    for source, group in trials[(trials["role"] == "confirm") & says].groupby("source", sort=False):
        if source not in searched.index:
            continue  # its search run was lost: nothing says what was confirmed
        origin: Any = searched.loc[source]
        same = (kind_of(group) == (origin["accelerators"] or "")) | (group["state"] == "failed")
        group = group[same]
        if group.empty:
            continue  # other models of GPU than the search's run had
        times = group["time_to_target_s"].fillna(float("inf"))
        is_failed = group["state"] == "failed"
        worst = worst_value(metric)
        values = group[metric.best_column].fillna(worst).mask(is_failed, worst)
        hits = (times < float("inf")) if results.is_timed else ~is_failed
        rows.append(
            {
                "trial": source,
                "config": origin["config"],
                "num_workers": int(origin["num_workers"]),
                "runs": len(group),
                "hits": int(hits.sum()),
                "median_s": float(times.median()),
                "low_s": float(times.min()),
                "high_s": float(times.max()),
                "worker_seconds_to_target": float(times.median()) * int(origin["num_workers"]),
                "search_s": origin["time_to_target_s"],
                f"median_{metric.name}": float(values.median()),
                f"low_{metric.name}": float(values.min()),
                f"high_{metric.name}": float(values.max()),
                f"search_{metric.name}": origin[metric.best_column],
                metric.test_column: group[metric.test_column].mean(),
            }
        )
    columns = [*CONFIRMED_COLUMNS, *(f"{one}_{metric.name}" for one in OF_METRIC)]
    table = pd.DataFrame(rows, columns=columns)
    if results.is_timed:
        return by_hits(table, "median_s")
    return table.sort_values(
        f"median_{metric.name}",
        ascending=metric.direction == "min",
        kind="stable",
        ignore_index=True,
    )


def worst_value(metric: Metric) -> float:
    """Return what a run counts with that has failed, or measured nothing."""
    return 0.0 if metric.is_share else -metric.sign * float("inf")


def by_hits(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Order by the share of hits: a fast median does not make up for a miss; then `columns`."""
    order = table.assign(missed=1.0 - table["hits"] / table["runs"])
    order = order.sort_values(["missed", *columns], kind="stable", ignore_index=True)
    return order.drop(columns="missed")


def ranking(results: StudyResults) -> pd.DataFrame:
    """Return one row per run of the search, the confirmed first, each part best first.

    Columns: trial, config, is_confirmed, runs, hits, time_to_target_s, low_s, high_s,
    worker_seconds_to_target, best_accuracy (or another metric's), then the searched keys
    (framework, num_workers, ...).
    A confirmed configuration stands with the medians, the fastest and the slowest of its confirm
    runs, never with the lucky run that the search picked it for; any other with its one search
    run. Seconds are missing where the target was not reached: by the median run, for `high_s` by
    every run.
    """
    search = ranked(results.trials).set_index("trial")
    proof = results.confirmed.set_index("trial").reindex(search.index)
    is_confirmed, single = proof["runs"].notna(), search["time_to_target_s"]
    # Where no target is asked for, a run that did not fail is a hit: as in `confirmed`.
    is_hit = single.notna() | (not results.is_timed)
    found = {
        "config": search["config"],
        "is_confirmed": is_confirmed,
        "runs": proof["runs"].fillna(1).astype(int),
        "hits": proof["hits"].where(is_confirmed, is_hit).astype(int),
    }
    for name, of in (("time_to_target_s", "median_s"), ("low_s", "low_s"), ("high_s", "high_s")):
        seconds = proof[of].astype(float).where(is_confirmed, single)
        found[name] = seconds.where(np.isfinite(seconds))
    found["worker_seconds_to_target"] = search["num_workers"] * found["time_to_target_s"]
    metric = results.metric
    median = proof[f"median_{metric.name}"].astype(float)
    found[metric.best_column] = median.where(is_confirmed, search[metric.best_column])
    found |= {key: search[key] for key in (*BASE_KEYS, *searched_columns(results.trials))}
    place = {trial: number for number, trial in enumerate(results.confirmed["trial"])}
    order = sorted(search.index, key=lambda trial: place.get(trial, len(place)))
    return pd.DataFrame(found).loc[order].reset_index()
