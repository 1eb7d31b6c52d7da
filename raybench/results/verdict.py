"""Which configurations won: medians of confirmed runs, the tie set, the two winners."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.core.study import TIME
from raybench.results.load import StudyResults
from raybench.results.tables import ranked

TIE = 0.05
"""Configurations whose medians are this close are not told apart."""


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


def confirmed(results: StudyResults) -> pd.DataFrame:
    """Return one row per confirmed configuration, fastest first.

    Columns: trial, config, num_workers, runs, hits, median_s, low_s, high_s (train seconds
    to the target; a miss counts as infinite), worker_seconds, search_s (what the search had
    measured), test_accuracy.
    """
    trials = results.trials
    # A run that was cut off says nothing: it had no chance to reach the target.
    runs = trials[(trials["phase"] == "confirm") & (trials["state"] != "stopped")].copy()
    runs["source"] = [name.partition("-")[0] for name in runs["trial"]]
    rows = []
    for source, group in runs.groupby("source", sort=False):
        times = group["time_to_target_s"].fillna(float("inf"))
        origin = trials[trials["trial"] == source].iloc[0]
        rows.append(
            {
                "trial": source,
                "config": origin["config"],
                "num_workers": origin["num_workers"],
                "runs": len(group),
                "hits": int((times < float("inf")).sum()),
                "median_s": float(times.median()),
                "low_s": float(times.min()),
                "high_s": float(times.max()),
                "worker_seconds": float(times.median()) * int(origin["num_workers"]),
                "search_s": origin["time_to_target_s"],
                "test_accuracy": group["test_accuracy"].mean(),
            }
        )
    columns = ["trial", "config", "num_workers", "runs", "hits", "median_s", "low_s", "high_s"]
    columns += ["worker_seconds", "search_s", "test_accuracy"]
    return pd.DataFrame(rows, columns=columns).sort_values("median_s", ignore_index=True)


def judge(results: StudyResults) -> Verdict | None:
    """Name the winners; None if no run reached the target.

    With objective accuracy_at_budget both are the most accurate run.
    """
    if results.target is None or results.study["study"]["objective"]["kind"] != TIME:
        runs = ranked(results.trials)
        best = None if runs.empty else str(runs.iloc[0]["trial"])
        return None if best is None else Verdict(best, best, False, (best,))
    everything = confirmed(results)
    table = everything[everything["median_s"] < float("inf")]
    if len(table):
        fastest = table.iloc[0]
        near = (table["median_s"] <= fastest["median_s"] * (1 + TIE)) | (
            table["low_s"] <= fastest["high_s"]
        )
        cheapest = table.sort_values(["worker_seconds", "num_workers"], kind="stable").iloc[0]
        return Verdict(fastest["trial"], cheapest["trial"], True, tuple(table["trial"][near]))
    runs = ranked(results.trials)
    # What was confirmed by now was refuted.
    runs = runs[runs["time_to_target_s"].notna() & ~runs["trial"].isin(everything["trial"])]
    if runs.empty:
        return None
    cost = (runs["num_workers"] * runs["time_to_target_s"]).sort_values(kind="stable")
    best = str(runs.iloc[0]["trial"])
    return Verdict(best, str(runs.loc[cost.index[0], "trial"]), False, (best,))


def spec_comment(results: StudyResults, trial: str, verdict: Verdict, what: str) -> str:
    """Return the comment that stands above the spec in best.yaml and cheapest.yaml."""
    row: Any = results.trials[results.trials["trial"] == trial].iloc[0]
    lines = [f"{what} of {results.folder.name}: trial {trial}, {row['config']}"]
    if verdict.is_confirmed:
        found: Any = confirmed(results).set_index("trial").loc[trial]
        lines.append(
            f"confirmed: target after {found['median_s']:.3f} s (median of {found['runs']} new "
            f"seeds, {found['low_s']:.3f} to {found['high_s']:.3f}), reached by "
            f"{found['hits']} of {found['runs']}, test accuracy {found['test_accuracy']:.4f}"
        )
    elif row["time_to_target_s"] != row["time_to_target_s"]:
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
