"""Which configurations won: medians of confirmed runs, the tie set, the two winners."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.core.record import MACHINE_FAULTS
from raybench.core.study import TIME
from raybench.core.text import clean
from raybench.results.load import StudyResults
from raybench.results.tables import ranked

TIE = 0.05
"""Configurations whose medians are this close are not told apart."""
TIE_ACCURACY = 0.005
"""So are those whose median accuracies are: half a point."""


@dataclass(frozen=True)
class Verdict:
    """The fastest and the cheapest configuration of a study."""

    fastest: str
    """Trial with the least train seconds to the target."""
    cheapest: str
    """Trial with the least worker-seconds to the target."""
    is_confirmed: bool
    """Whether both stand on repeated runs; otherwise on one search trial each."""
    ties: tuple[str, ...]
    """Trials that cannot be told from the fastest, itself included."""


def is_timed(results: StudyResults) -> bool:
    """Whether the study is judged by the time to a target, not by accuracy at a budget."""
    return results.target is not None and results.study["study"]["objective"]["kind"] == TIME


def confirmed(results: StudyResults) -> pd.DataFrame:
    """Return one row per confirmed configuration, best first.

    Columns: trial, config, num_workers, runs, hits, median_s, low_s, high_s (train seconds
    to the target; a miss counts as infinite), worker_seconds_to_target, search_s (what the
    search had measured), median_accuracy, low_accuracy, high_accuracy, search_accuracy (best on
    validation; 0 of a run that failed), test_accuracy.

    Order: the share of runs that reached the target, then median_s; with accuracy_at_budget
    (where `hits` are the runs that did not fail) median_accuracy.
    """
    trials, timed = results.trials, is_timed(results)
    # A run that was cut off says nothing: it had no chance to reach the target. Nor does one
    # whose workers the machine lost.
    says = (trials["state"] != "stopped") & ~trials["failure"].isin(MACHINE_FAULTS)
    runs = trials[(trials["phase"] == "confirm") & says].copy()
    runs["source"] = [name.partition("-")[0] for name in runs["trial"]]
    searched = trials.set_index("trial")
    rows = []
    for source, group in runs.groupby("source", sort=False):
        if source not in searched.index:
            continue  # its search run was lost: nothing says what was confirmed
        times = group["time_to_target_s"].fillna(float("inf"))
        is_failed = group["state"] == "failed"
        accuracies = group["best_accuracy"].fillna(0.0).mask(is_failed, 0.0)
        hits = (times < float("inf")) if timed else ~is_failed
        origin: Any = searched.loc[source]
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
                "median_accuracy": float(accuracies.median()),
                "low_accuracy": float(accuracies.min()),
                "high_accuracy": float(accuracies.max()),
                "search_accuracy": origin["best_accuracy"],
                "test_accuracy": group["test_accuracy"].mean(),
            }
        )
    table = pd.DataFrame(rows, columns=list(CONFIRMED_COLUMNS))
    return _sorted(table, "median_s") if timed else _by_accuracy(table)


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
    "median_accuracy",
    "low_accuracy",
    "high_accuracy",
    "search_accuracy",
    "test_accuracy",
)


def judge(results: StudyResults) -> Verdict | None:
    """Name the winners; None if no run reached the target.

    With objective accuracy_at_budget both are the most accurate configuration.
    """
    table = confirmed(results)
    if not is_timed(results):
        return _most_accurate(results, table[table["hits"] > 0])
    everything = table
    table = table[table["median_s"] < float("inf")]
    if len(table):
        fastest = table.iloc[0]
        near = (table["median_s"] <= fastest["median_s"] * (1 + TIE)) | (
            table["low_s"] <= fastest["high_s"]
        )
        cheapest = _sorted(table, "worker_seconds_to_target", "num_workers").iloc[0]
        return Verdict(fastest["trial"], cheapest["trial"], True, tuple(table["trial"][near]))
    runs = ranked(results.trials)
    # What was confirmed by now was refuted.
    runs = runs[runs["time_to_target_s"].notna() & ~runs["trial"].isin(everything["trial"])]
    if runs.empty:
        return None
    cost = (runs["num_workers"] * runs["time_to_target_s"]).sort_values(kind="stable")
    best = str(runs.iloc[0]["trial"])
    return Verdict(best, str(runs.loc[cost.index[0], "trial"]), False, (best,))


def _most_accurate(results: StudyResults, table: pd.DataFrame) -> Verdict | None:
    if len(table):
        first = table.iloc[0]
        near = (table["median_accuracy"] >= first["median_accuracy"] - TIE_ACCURACY) | (
            table["high_accuracy"] >= first["low_accuracy"]
        )
        return Verdict(first["trial"], first["trial"], True, tuple(table["trial"][near]))
    runs = ranked(results.trials)
    runs = runs[runs["best_accuracy"].notna()]
    if runs.empty:
        return None
    best = str(runs.iloc[0]["trial"])
    return Verdict(best, best, False, (best,))


def _sorted(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Order by the share of hits: a fast median does not make up for a miss; then `columns`."""
    order = table.assign(missed=1.0 - table["hits"] / table["runs"])
    order = order.sort_values(["missed", *columns], kind="stable", ignore_index=True)
    return order.drop(columns="missed")


def _by_accuracy(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values("median_accuracy", ascending=False, kind="stable", ignore_index=True)


def spec_comment(results: StudyResults, trial: str, verdict: Verdict, what: str) -> str:
    """Return the comment that stands above the spec in best.yaml and cheapest.yaml."""
    row: Any = results.trials[results.trials["trial"] == trial].iloc[0]
    lines = [f"{what} of {clean(results.folder.name)}: trial {trial}, {row['config']}"]
    if verdict.is_confirmed:
        found: Any = confirmed(results).set_index("trial").loc[trial]
        lines.append(_proof(results, found) + f", test accuracy {found['test_accuracy']:.4f}")
    elif row["time_to_target_s"] != row["time_to_target_s"] or not is_timed(results):
        lines.append(
            f"unconfirmed: accuracy {row['best_accuracy']:.4f} after {row['train_s']:.3f} s in "
            "one search trial"
        )
    else:
        lines.append(
            f"unconfirmed: target after {row['time_to_target_s']:.3f} s in one search trial"
        )
    lines.append("run it again: python -m raybench.train THIS_FILE")
    return "\n".join(lines)


def _proof(results: StudyResults, found: Any) -> str:
    if is_timed(results):
        return (
            f"confirmed: target after {found['median_s']:.3f} s (median of {found['runs']} new "
            f"seeds, {found['low_s']:.3f} to {found['high_s']:.3f}), reached by "
            f"{found['hits']} of {found['runs']}"
        )
    return (
        f"confirmed: accuracy {found['median_accuracy']:.4f} at the budget (median of "
        f"{found['runs']} new seeds, {found['low_accuracy']:.4f} to {found['high_accuracy']:.4f})"
    )
