"""The tables of a study's screen, each with a title that says how much it is worth."""

from dataclasses import dataclass

import pandas as pd
from rich.console import Console

from raybench.results.console import say
from raybench.results.load import StudyResults
from raybench.results.paragraphs import say_wrapped
from raybench.results.printed import (
    MARK_SAYS,
    brief,
    has_marks,
    marks_of_confirmed,
    marks_of_runs,
    of_confirmed,
    of_race,
    of_runs,
    print_frame,
    with_alone,
)
from raybench.results.tables import (
    BATCH_STATISTICS,
    best_per_framework,
    failures,
    ledger_totals,
    predictions,
    ranked,
    slow_down,
    top,
)
from raybench.results.words import counted, target_in_words

LABEL = "configuration: framework, workers x samples a step each, optimizer, rate"
MOST_CAUSES = 8
"""Causes of failures that are printed; `trials.csv` holds all of them."""
MOST_RACED = 12
"""Contenders of a race that are printed."""
CONFIRMED = "Confirmed: new seeds, one run at a time (the time to plan with)"
RACE = "Race: {again}, new seeds, side by side"
RACE_AND_SEARCH = "Race: {again}, the search's run and new seeds"
PREDICTED = (
    "~ no run: seconds from the trial's learning curve and measured step times. What was predicted "
    "to be faster than all was run, as trials like 0012.torch2 (trial 0012 on 2 PyTorch workers)."
)


@dataclass(frozen=True)
class Amount:
    """How much of a study is printed."""

    runs: int
    """Rows of the table of single runs."""
    raced: int
    """Rows of the table of the race."""
    is_brief: bool = True
    """Whether what is no part of the answer is left out."""


WHOLE = Amount(runs=10, raced=MOST_RACED, is_brief=False)


def show_tables(console: Console, results: StudyResults, amount: Amount) -> None:
    """Print what ran, from single runs to confirmed ones."""
    if not amount.is_brief:
        _show_failures(console, failures(results.trials))
    marked = _show_runs(console, results, amount)
    if not amount.is_brief:
        _show_predicted(console, results)
        print_frame(console, ledger_totals(results.trials), "Where the seconds went (all runs)")
    marked |= _show_race(console, results, amount)
    marked |= _show_alone(console, results, amount)
    if marked and amount.is_brief:
        say(console, MARK_SAYS)
    if not amount.is_brief:
        _show_neighbours(console, results)


def _show_runs(console: Console, results: StudyResults, amount: Amount) -> bool:
    """Print the best single runs; return whether times are marked."""
    trials, metric = results.trials, results.metric
    best = top(trials, number=amount.runs, metric=metric)
    if best.empty:
        return False
    number = len(ranked(trials))
    which = f"best {len(best)} of {number:,} trials" if number > 1 else "the trial"
    aim = f" to {target_in_words(results)}" if results.is_timed else ""
    title = f"Search: {which}{aim}, one run each (luck is in it)"
    marks = marks_of_runs(best, trials)
    table = of_runs(best, trials, metric=metric, is_brief=amount.is_brief)
    print_frame(
        console,
        table,
        title,
        below=LABEL,
        metric=metric,
        marked=marks,
        is_explained=not amount.is_brief,
    )
    if not amount.is_brief:
        each = best_per_framework(trials, metric=metric)
        table, own = of_runs(each, trials, metric=metric), marks_of_runs(each, trials)
        print_frame(
            console, table, "Best of each framework, one run each", metric=metric, marked=own
        )
    return has_marks(marks)


def _show_predicted(console: Console, results: StudyResults) -> None:
    predicted = predictions(results)
    if predicted.empty:
        return
    predicted["configuration"] = brief(predicted["configuration"])
    title = "Not run: predicted (~) from a trial's curve and the step times"
    print_frame(console, predicted, title, below=PREDICTED)
    if results.trials["batch_statistics"].eq(True).any():
        say_wrapped(console, BATCH_STATISTICS)
        console.print()


def _show_race(console: Console, results: StudyResults, amount: Amount) -> bool:
    """Print the race of a study with a target, where there was one."""
    table = results.confirmed
    if not has_race(results) or table.empty:
        return False
    rows = table.head(amount.raced)
    more = len(table) - len(rows)
    below = f"and {more} more: raybench.load(...).confirmed has them" if more > 0 else ""
    title = RACE_AND_SEARCH.format(again=_again(len(table), len(rows)))
    marks, cells = marks_of_confirmed(rows), of_race(rows, results.trials)
    if amount.is_brief:  # the winner's runs alone stand beside it
        cells, below = with_alone(cells, rows), ""
        title = f"{title}; then the winner alone" if rows["is_alone"].any() else title
    explained = not amount.is_brief
    print_frame(console, cells, title, below=below, marked=marks, is_explained=explained)
    return has_marks(marks)


def has_race(results: StudyResults) -> bool:
    """Return whether a study with a target has had one."""
    return results.is_timed and bool((results.trials["role"] == "race").any())


def _again(number: int, printed: int) -> str:
    """Return `first 5 of 14`, or `5 configurations`."""
    if printed < number:
        return f"first {printed} of {number}"
    return counted(number, "configuration")


def _show_alone(console: Console, results: StudyResults, amount: Amount) -> bool:
    """Print what ran alone; of a study without a target the race, where nothing did."""
    if has_race(results) and amount.is_brief:
        return False  # the race's table has them
    table, metric, is_timed = results.confirmed, results.metric, results.is_timed
    alone = table[table["is_alone"].astype(bool)]
    rows = table.head(amount.raced) if alone.empty and not is_timed else alone.head(amount.raced)
    if rows.empty:
        return False
    title = CONFIRMED
    if alone.empty:
        title = RACE.format(again=_again(len(table), len(rows)))
    cells = of_confirmed(rows, is_timed=is_timed, metric=metric)
    marks = marks_of_confirmed(rows) if is_timed else {}
    explained = not amount.is_brief
    print_frame(console, cells, title, metric=metric, marked=marks, is_explained=explained)
    return has_marks(marks)


def _show_failures(console: Console, broken: pd.DataFrame) -> None:
    if broken.empty:
        return
    print_frame(console, broken.head(MOST_CAUSES), "Failed runs, by cause")
    more = broken.iloc[MOST_CAUSES:]
    if len(more):
        say(console, f"and {more['runs'].sum()} of {len(more)} other causes: see trials.csv")
        console.print()


def _show_neighbours(console: Console, results: StudyResults) -> None:
    """Say how much trials that ran at the same time slowed each other down."""
    disturbed = slow_down(results.trials)
    if disturbed is None:
        return
    sentinel = results.trials["config"][results.trials["role"] == "sentinel"].iloc[0]
    say_wrapped(
        console,
        f"Concurrent trials: {sentinel} took {_longer(disturbed)} per sample beside "
        "another trial than alone (one run each); confirmed times are of runs alone.",
    )
    console.print()


def _longer(share: float) -> str:
    """Say a slow-down; what is below half a percent, or a speed-up by chance, is none."""
    return f"{100 * share:.0f} % longer" if share >= 0.005 else "no longer"
