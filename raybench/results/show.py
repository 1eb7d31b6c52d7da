"""Prints a study's verdict and tables."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from raybench.results.console import say
from raybench.results.load import StudyResults
from raybench.results.place import shown
from raybench.results.printed import brief, of_confirmed, of_runs, print_frame
from raybench.results.sensitivity import sensitivity_lines, target_warning
from raybench.results.tables import (
    BATCH_STATISTICS,
    best_per_framework,
    failures,
    ledger_totals,
    predictions,
    slow_down,
    top,
)
from raybench.results.verdict import judge
from raybench.results.words import unranked_lines
from raybench.results.words import verdict_lines as verdict_lines

MOST_CAUSES = 8
"""Causes of failures that are printed; `trials.csv` holds all of them."""
LABEL = "configuration: framework, workers x batch per worker, optimizer, rate, other searched keys"


def show(console: Console, results: StudyResults, *, plots: Sequence[Path] = ()) -> None:
    """Print tables first and the verdict last, where the eye ends.

    `plots` are the pictures that were written, named at the end. The console may be any: no
    text is read as markup.
    """
    trials = results.trials
    if trials.empty:
        say(console, "no run has finished.")
    else:
        _show_tables(console, results)
        for line in [*verdict_lines(results, judge(results)), *unranked_lines(results)]:
            say(console, line)
        warning = target_warning(results)
        for line in [*sensitivity_lines(results), *([warning] if warning else [])]:
            say(console, line)
    for note in results.study.get("notes", []):
        say(console, str(note))
    if plots:
        say(console, f"plots: {', '.join(map(str, plots))}")
    say(console, f"results: {shown(results.place, results.folder)}")


def _show_tables(console: Console, results: StudyResults) -> None:
    trials, metric = results.trials, results.metric
    _show_failures(console, failures(trials))
    best = top(trials, metric=metric)
    if len(best):
        title = "Best ten of the search, one run each"
        table = of_runs(best, trials, metric=metric)
        print_frame(console, table, title, below=LABEL, metric=metric)
        each = of_runs(best_per_framework(trials, metric=metric), trials, metric=metric)
        print_frame(console, each, "Best of each framework, one run each", metric=metric)
    predicted = predictions(results)
    if len(predicted):
        predicted["configuration"] = brief(predicted["configuration"])
        title = "Not run: predicted (~) from a trial's curve and the step times"
        print_frame(console, predicted, title)
        if trials["batch_statistics"].eq(True).any():
            say(console, BATCH_STATISTICS)
            console.print()
    print_frame(console, ledger_totals(trials), "Where the seconds went (all runs)")
    if len(results.confirmed):
        printed = of_confirmed(results.confirmed, is_timed=results.is_timed, metric=metric)
        print_frame(console, printed, "Confirmed: new seeds, one run at a time", metric=metric)
    disturbed = slow_down(trials)
    if disturbed is not None:
        sentinel = trials["config"][trials["role"] == "sentinel"].iloc[0]
        say(
            console,
            f"Concurrent trials: {sentinel} took {_longer(disturbed)} per sample beside "
            "another trial than alone (one run each); confirmed times are of runs alone.",
        )
        console.print()


def _show_failures(console: Console, broken: pd.DataFrame) -> None:
    if broken.empty:
        return
    print_frame(console, broken.head(MOST_CAUSES), "Failed runs, by cause")
    more = broken.iloc[MOST_CAUSES:]
    if len(more):
        say(console, f"and {more['runs'].sum()} of {len(more)} other causes: see trials.csv")
        console.print()


def _longer(share: float) -> str:
    """Say a slow-down; what is below half a percent, or a speed-up by chance, is none."""
    return f"{100 * share:.0f} % longer" if share >= 0.005 else "no longer"
