"""Prints a study's verdict and tables."""

import pandas as pd
from rich.console import Console

from raybench.core.study import TIME
from raybench.results.load import StudyResults
from raybench.results.sensitivity import sensitivity_lines, target_warning
from raybench.results.tables import (
    BATCH_STATISTICS,
    best_per_framework,
    failures,
    ledger_totals,
    narrow,
    predictions,
    slow_down,
    to_rich,
    top,
)
from raybench.results.verdict import Verdict, confirmed, judge


def show(console: Console, results: StudyResults) -> None:
    """Print tables first and the verdict last, where the eye ends."""
    trials = results.trials
    if trials.empty:
        console.print("no run has finished.", highlight=False)
        return
    broken = failures(trials)
    if len(broken):
        console.print(to_rich(broken, "Failed runs"), "")
    best = narrow(top(trials), trials)
    console.print(to_rich(best, "Best ten of the search, one run each"))
    console.print("configuration: framework, workers x batch per worker, optimizer, rate\n")
    each = narrow(best_per_framework(trials), trials)
    console.print(to_rich(each, "Best of each framework, one run each"), "")
    predicted = predictions(results)
    if len(predicted):
        predicted["configuration"] = predicted["configuration"].str.replace("tensorflow", "tf")
        title = "Not run: predicted (~) from a trial's curve and the step times"
        console.print(to_rich(predicted, title), "")
        if trials["batch_statistics"].eq(True).any():
            console.print(f"{BATCH_STATISTICS}\n", highlight=False, soft_wrap=True)
    console.print(to_rich(ledger_totals(trials), "Where the seconds went (all runs)"), "")
    table = confirmed(results)
    if len(table):
        console.print(to_rich(_readable(table), "Confirmed: new seeds, one run at a time"), "")
    disturbed = slow_down(trials)
    if disturbed is not None:
        sentinel = trials.set_index("trial")["config"]["sentinel-alone"]
        console.print(
            f"Concurrent trials: {sentinel} took {_longer(disturbed)} per sample beside "
            "another trial than alone (one run each); confirmed times are of runs alone.\n",
            highlight=False,
            soft_wrap=True,
        )
    for line in verdict_lines(results, judge(results)):
        console.print(line, highlight=False, soft_wrap=True)
    warning = target_warning(results)
    for line in [*sensitivity_lines(results), *([warning] if warning else [])]:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"results: {results.folder}", highlight=False, soft_wrap=True)


def _longer(share: float) -> str:
    """Say a slow-down; what is below half a percent, or a speed-up by chance, is none."""
    return f"{100 * share:.0f} % longer" if share >= 0.005 else "no longer"


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "trial": table["trial"],
            "configuration": table["config"].str.replace("tensorflow", "tf"),
            "reached": [f"{r.hits} of {r.runs}" for r in table.itertuples()],
            "median s": table["median_s"],
            "range s": [f"{r.low_s:.2f} - {r.high_s:.2f}" for r in table.itertuples()],
            "worker s": table["worker_seconds"],
            "in search s": table["search_s"],
            "test accuracy": table["test_accuracy"],
        }
    )


def verdict_lines(results: StudyResults, verdict: Verdict | None) -> list[str]:
    """Return the outcome in one or two sentences."""
    if verdict is None:
        best = results.trials["best_accuracy"].max()
        reached = "nothing was measured" if best != best else f"the best was {100 * best:.1f} %"
        return [f"No run reached the target of {_target(results)}: {reached}."]
    by_trial = results.trials.set_index("trial").to_dict("index")
    if results.study["study"]["objective"]["kind"] != TIME:
        row = by_trial[verdict.fastest]
        return [
            f"Most accurate: {row['config']} (trial {verdict.fastest}) with "
            f"{100 * row['best_accuracy']:.1f} % within {row['train_s']:.2f} s of training; "
            "unconfirmed: one search trial."
        ]
    lines = []
    winners = [("Fastest", verdict.fastest), ("Cheapest", verdict.cheapest)]
    if verdict.fastest == verdict.cheapest:
        winners = [("Fastest and cheapest", verdict.fastest)]
    for what, trial in winners:
        seconds, proof = _seconds(results, verdict, trial)
        workers = int(by_trial[trial]["num_workers"])
        lines.append(
            f"{what}: {by_trial[trial]['config']} (trial {trial}) reaches "
            f"{_target(results)} after {seconds:.2f} s, {workers * seconds:.2f} worker-seconds"
            f"{_cost(results, workers * seconds)}; {proof}."
        )
    if len(verdict.ties) > 1:
        lines.append(f"Not told apart from the fastest: trials {', '.join(verdict.ties[1:])}.")
    return lines


def _seconds(results: StudyResults, verdict: Verdict, trial: str) -> tuple[float, str]:
    if not verdict.is_confirmed:
        found = results.trials.set_index("trial").to_dict("index")[trial]["time_to_target_s"]
        return float(found), "unconfirmed: one search trial"
    row = confirmed(results).set_index("trial").to_dict("index")[trial]
    return float(row["median_s"]), f"confirmed by {row['hits']} of {row['runs']} new seeds"


def _cost(results: StudyResults, worker_seconds: float) -> str:
    price = results.study["study"].get("price")
    if price is None:
        return ""
    return f" or {worker_seconds / 3600 * price:.3g} at {price:g} per worker-hour"


def _target(results: StudyResults) -> str:
    return "no target" if results.target is None else f"{100 * results.target:g} %"
