"""Prints a study's verdict and tables."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from raybench.results.console import say
from raybench.results.edges import edge_lines
from raybench.results.how_sure import how_sure_lines
from raybench.results.load import StudyResults
from raybench.results.place import shown
from raybench.results.printed import (
    brief,
    marks_of_confirmed,
    marks_of_runs,
    of_confirmed,
    of_race,
    of_runs,
    print_frame,
)
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
MOST_RACED = 12
"""Contenders of a race that are printed."""
RACE = "Race: new seeds, beside other runs"
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
        verdict = judge(results)
        for line in [*verdict_lines(results, verdict), *unranked_lines(results)]:
            say(console, line)
        warning = target_warning(results)
        sure = [*how_sure_lines(results, verdict), *edge_lines(results, verdict)]
        for line in [*sure, *sensitivity_lines(results), *([warning] if warning else [])]:
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
        table, marks = of_runs(best, trials, metric=metric), marks_of_runs(best, trials)
        print_frame(console, table, title, below=LABEL, metric=metric, marked=marks)
        each = of_runs(best_per_framework(trials, metric=metric), trials, metric=metric)
        marks, title = marks_of_runs(each, trials), "Best of each framework, one run each"
        print_frame(console, each, title, metric=metric, marked=marks)
    predicted = predictions(results)
    if len(predicted):
        predicted["configuration"] = brief(predicted["configuration"])
        title = "Not run: predicted (~) from a trial's curve and the step times"
        print_frame(console, predicted, title)
        if trials["batch_statistics"].eq(True).any():
            say(console, BATCH_STATISTICS)
            console.print()
    print_frame(console, ledger_totals(trials), "Where the seconds went (all runs)")
    _show_repeated(console, results)
    disturbed = slow_down(trials)
    if disturbed is not None:
        sentinel = trials["config"][trials["role"] == "sentinel"].iloc[0]
        say(
            console,
            f"Concurrent trials: {sentinel} took {_longer(disturbed)} per sample beside "
            "another trial than alone (one run each); confirmed times are of runs alone.",
        )
        console.print()


def _show_repeated(console: Console, results: StudyResults) -> None:
    """Print the race, where there was one, and what ran alone."""
    table, metric = results.confirmed, results.metric
    is_raced = bool((results.trials["role"] == "race").any())
    if is_raced and results.is_timed:
        raced = of_race(table.head(MOST_RACED))
        more = len(table) - len(raced)
        below = f"and {more} more: raybench.load(...).confirmed has them" if more > 0 else ""
        marks = marks_of_confirmed(table.head(MOST_RACED))
        print_frame(console, raced, RACE, below=below, marked=marks)
    alone = table[table["is_alone"].astype(bool)]
    printed = table.head(MOST_RACED) if alone.empty and not results.is_timed else alone
    if len(printed):
        title = "Confirmed: new seeds, one run at a time"
        if alone.empty:
            title = RACE
        cells = of_confirmed(printed, is_timed=results.is_timed, metric=metric)
        marks = marks_of_confirmed(printed) if results.is_timed else {}
        print_frame(console, cells, title, metric=metric, marked=marks)


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
