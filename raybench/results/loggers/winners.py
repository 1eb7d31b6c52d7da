"""The winners of a study, as tools are told of them."""

import math

import pandas as pd

from raybench.results.load import StudyResults
from raybench.results.loggers.sink import Winner
from raybench.results.verdict import judge_each

CONFIRMED = {
    "time_to_target_s": "printed_s",
    "interval_low_s": "interval_low_s",
    "interval_high_s": "interval_high_s",
    "worker_seconds_to_target": "worker_seconds_to_target",
    "runs": "new_runs",
    "hits": "new_hits",
    "search_s": "search_s",
}
"""Figures of a winner, and the columns of `confirmed` that hold them."""


def winners_of(results: StudyResults) -> list[Winner]:
    """Return the fastest and the cheapest of every model of GPU; none of what is no search."""
    if results.is_scaling or results.study["study"].get("run"):
        return []
    found = []
    for kind, verdict in judge_each(results).items():
        where = f" on {kind}" if kind else ""
        best = "fastest" if results.is_timed else "best"
        trials = {best: verdict.fastest, "cheapest": verdict.cheapest}
        if not results.is_timed:
            del trials["cheapest"]
        for title, trial in trials.items():
            spec = results.runs[trial].spec
            found.append(
                Winner(
                    title=f"{title}{where}",
                    trial=trial,
                    config=results.label(spec),
                    is_confirmed=verdict.is_confirmed,
                    figures=_figures(results, trial, is_confirmed=verdict.is_confirmed),
                    spec=spec,
                )
            )
    return found


def _figures(results: StudyResults, trial: str, *, is_confirmed: bool) -> dict[str, float]:
    metric = results.metric
    table = results.confirmed if is_confirmed else results.trials
    row = table.set_index("trial").loc[trial].to_dict()
    if is_confirmed:
        found = {name: row.get(column) for name, column in CONFIRMED.items()}
        found |= {metric.name: row[f"median_{metric.name}"]}
        found |= {metric.test_column: row[metric.test_column]}
    else:
        seconds = row["crossed_s"] if results.is_timed else math.nan
        found = {"time_to_target_s": seconds, "runs": 1, "hits": int(pd.notna(seconds))}
        found |= {"worker_seconds_to_target": seconds * row["num_workers"]}
        found |= {metric.name: row[metric.best_column]}
    return {
        name: float(value)
        for name, value in found.items()
        if pd.notna(value) and math.isfinite(value)
    }
