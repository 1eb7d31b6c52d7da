"""The last screen of a study: what ran, the answer, what to do next."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from raybench.report import tables
from raybench.report.answer import summary_of
from raybench.report.console import say, say_pairs, say_wrapped
from raybench.report.how_sure import PAGE_FILE, next_steps
from raybench.report.pairs import answer_lines as pair_lines
from raybench.report.pairs import comparison_of
from raybench.report.remarks import failed_line, ledger_line, sensitivity_lines
from raybench.report.words import counted, target_in_words
from raybench.results.place import shown
from raybench.results.ranking import confirmed, ranked
from raybench.results.study import Study
from raybench.results.verdict import judge

LABEL = "configuration: framework, workers x samples a step each, optimizer, rate"
MOST_CAUSES = 8
"""Causes of failures that are printed; `trials.csv` holds all of them."""
CONFIRMED = "Confirmed: new seeds, one run at a time (the time to plan with)"
RACE = "Race: {again}, new seeds, side by side"
RACE_AND_SEARCH = "Race: {again}, the search's run and new seeds"
PREDICTED = (
    "~ predicted from the trial's learning curve and measured step times. What was predicted "
    "fastest of all was run, under names like 0012.torch2 (trial 0012 on 2 PyTorch workers)."
)


LEDGER = {"phase": "{phase}", "seconds": "{seconds:.2f}", "share": "{share:.0%}"}
PREDICTIONS = {"trial": "{trial}", "configuration": "{configuration}"}
PREDICTIONS |= {name: f"{{{name}:.2f}}" for name in ("seconds ~", "worker s ~")}
FAILURES = {name: f"{{{name}}}" for name in ("failure", "runs", "for example")}


MOST_RUNS, MOST_RACED = {True: 4, False: 10}, {True: 5, False: 12}
"""Rows of the tables of single runs and of the race, brief or not."""


def show_tables(console: Console, results: Study, *, is_brief: bool) -> None:
    """Print what ran, from single runs to confirmed ones; `is_brief`: what the answer needs."""
    if not is_brief:
        _show_failures(console, tables.failures(results.trials))
    printed = _of_runs(results, is_brief=is_brief)
    if not is_brief:
        printed += _predicted(results)
        ledger = tables.texts(tables.ledger_totals(results.trials), LEDGER)
        printed.append((ledger, "Where the seconds went (all runs)", ""))
    printed += _of_race(results, is_brief=is_brief)
    printed += _of_alone(results, is_brief=is_brief)
    for cells, title, below in printed:
        tables.print_frame(console, cells, title, below=below, is_explained=not is_brief)
    if is_brief and any(tables.has_marks(cells) for cells, *_ in printed):
        say(console, tables.MARK_SAYS)


Printed = tuple[pd.DataFrame, str, str]
"""A table of texts, its title, and what stands below it."""


def _of_runs(results: Study, *, is_brief: bool) -> list[Printed]:
    trials, metric = results.trials, results.metric
    begun = trials[trials[metric.best_column].notna() | (trials["state"] == "failed")]
    best, number = ranked(begun).head(MOST_RUNS[is_brief]), len(ranked(trials))
    if best.empty:
        return []
    which = f"best {len(best)} of {number:,} trials" if number > 1 else "the trial"
    aim = f" to {target_in_words(results)}" if results.is_timed else ""
    cells = tables.of_runs(best, results, is_brief=is_brief)
    return [(cells, f"Search: {which}{aim}, one run each (luck is in it)", LABEL)]


def _predicted(results: Study) -> list[Printed]:
    predicted = tables.predictions(results)
    if predicted.empty:
        return []
    predicted["configuration"] = tables.brief(predicted["configuration"])
    title = "Not run: predicted (~) from a trial's curve and the step times"
    is_rough = results.trials["batch_statistics"].eq(True).any()
    below = f"{PREDICTED}\n\n{tables.BATCH_STATISTICS}" if is_rough else PREDICTED
    return [(tables.texts(predicted, PREDICTIONS), title, below)]


def _of_race(results: Study, *, is_brief: bool) -> list[Printed]:
    """Return the race of a study with a target, where there was one."""
    table = confirmed(results)
    if not has_race(results) or table.empty:
        return []
    rows = table.head(MOST_RACED[is_brief])
    more = len(table) - len(rows)
    below = f"and {more} more: raybench.load(...).confirmed has them" if more > 0 else ""
    title = RACE_AND_SEARCH.format(again=_again(len(table), len(rows)))
    if is_brief:  # the winner's runs alone stand beside it
        below = ""
        title = f"{title}; then the winner alone" if rows["is_alone"].any() else title
    return [(tables.of_race(rows, results, has_alone=is_brief), title, below)]


def has_race(results: Study) -> bool:
    """Return whether a study with a target has had one."""
    return results.is_timed and bool((results.trials["role"] == "race").any())


def _again(number: int, printed: int) -> str:
    """Return `first 5 of 14`, or `5 configurations`."""
    if printed < number:
        return f"first {printed} of {number}"
    return counted(number, "configuration")


def _of_alone(results: Study, *, is_brief: bool) -> list[Printed]:
    """Return what ran alone; of a study without a target the race, where nothing did."""
    if has_race(results) and is_brief:
        return []  # the race's table has them
    table = confirmed(results)
    rows, title = table[table["is_alone"].astype(bool)].head(MOST_RACED[is_brief]), CONFIRMED
    if rows.empty and not results.is_timed:
        rows = table.head(MOST_RACED[is_brief])
        title = RACE.format(again=_again(len(table), len(rows)))
    return [(tables.of_confirmed(rows, results), title, "")] if len(rows) else []


def _show_failures(console: Console, broken: pd.DataFrame) -> None:
    if broken.empty:
        return
    tables.print_frame(
        console, tables.texts(broken.head(MOST_CAUSES), FAILURES), "Failed runs, by cause"
    )
    more = broken.iloc[MOST_CAUSES:]
    if len(more):
        say(console, f"and {more['runs'].sum()} of {len(more)} other causes: see trials.csv")
        console.print()


def show(
    console: Console, results: Study, *, plots: Sequence[Path] = (), verbose: bool = False
) -> None:
    """Print tables first and the answer last, where the eye ends; all of them with `verbose`.

    `plots` are the pictures that were written, named at the end. The console may be any: no
    text is read as markup. Of a comparison of pairs, what it has found.
    """
    if (pairs := comparison_of(results)) is not None:
        for line in pair_lines(pairs):
            say(console, line)
    elif results.trials.empty:
        found = summary_of(results)
        for line in (*found.lines, *found.caveats):
            say_wrapped(console, line)
    else:
        show_tables(console, results, is_brief=not verbose)
        _show_answer(console, results, verbose=verbose)
    if plots and (verbose or not (results.folder / PAGE_FILE).is_file()):
        say(console, f"plots: {', '.join(map(str, plots))}")
    say(console, f"results: {shown(results.place, results.folder)}")


def _show_answer(console: Console, results: Study, *, verbose: bool) -> None:
    """Print what stands behind the answer, the answer, and what to do next."""
    found = summary_of(results)
    for paragraph in (
        *([] if verbose else [ledger_line(results), *failed_line(results)]),
        *found.caveats,
        *(sensitivity_lines(results) if verbose else []),
        *([f"How sure: {found.confidence}"] if found.confidence else []),
    ):
        say_wrapped(console, paragraph)
    for paragraph in found.lines:
        console.print()
        say_wrapped(console, f"Answer: {paragraph}", style="bold")
    steps = [(step.what, step.do) for step in next_steps(results, judge(results))]
    if not verbose:
        steps.append(("all tables", results.command("report", results.place, "--verbose")))
    if steps:
        console.print()
        say_pairs(console, steps)
