"""What a command prints at the end of a study: tables of its runs, the summary and the next
steps."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from raybench.report.answer import summary_of
from raybench.report.confidence import failed_line, ledger_line, next_steps
from raybench.report.console import (
    DISTURBED,
    MARK,
    MARK_SAYS,
    CellFormat,
    has_marks,
    print_frame,
    say,
    say_pairs,
    say_wrapped,
    texts,
    value_form,
)
from raybench.report.pairs import answer_lines as pair_lines
from raybench.report.pairs import comparison_of
from raybench.report.words import target_in_words
from raybench.results.analyses import failures, ledger_totals
from raybench.results.place import place_in_words
from raybench.results.ranking import confirmed, ranked_runs
from raybench.results.store import PAGE_FILE
from raybench.results.study import Study
from raybench.results.verdict import verdict_of
from raybench.spec.text import counted
from raybench.stats.record import Role, State

MOST_CAUSES_PRINTED = 8
"""Maximum number of causes of failures that are printed; `trials.csv` lists all failures."""
MOST_SEARCH_ROWS, MOST_CONFIRMED_ROWS = {True: 4, False: 10}, {True: 5, False: 12}
"""Maximum number of rows in the tables of search runs and of confirmation runs, keyed by whether
the output is brief."""
CONFIGURATION_NOTE = (
    "configuration: framework, workers x batch per worker, optimizer, learning rate"
)
TRIAL_FORMS: dict[str, CellFormat] = {"trial": "{trial}", "configuration": "{config}"}
CONFIRMATION_FORMS: dict[str, CellFormat] = TRIAL_FORMS | {
    "reached": "{hits} of {runs}",
    "expected s": "{expected_s:s}{mark}",
    "90 % interval": "{expected_low_s:s} - {expected_high_s:s}",
    "worker-s": "{cost:s}{mark}",
    "alone s": "{alone_s:s}{mark}",
}
SEARCH_FORMS: dict[str, CellFormat] = {"search s": "{search_s:s}"}
LEDGER_FORMS = {"phase": "{phase}", "seconds": "{seconds:.2f}", "share": "{share:.0%}"}
FAILURE_FORMS = {name: f"{{{name}}}" for name in ("failure", "runs", "for example")}
Printed = tuple[pd.DataFrame, str, str]
"""Tuple (table of strings, title, lines below the table)."""


def show(
    console: Console, results: Study, *, plots: Sequence[Path] = (), verbose: bool = False
) -> None:
    """Print the tables of a study, then its summary, next steps and folder.

    Args:
        console: Where to print.
        results: A search, a single training run, or a comparison of pairs.
        plots: Pictures that were written. They are listed at the end if there is no page, or with
            `verbose`.
        verbose: Whether to print all tables with all columns, not only the most important ones.
    """
    if (pairs := comparison_of(results)) is not None:
        for line in pair_lines(pairs):
            say(console, line)
    elif results.trials.empty:
        summary = summary_of(results)
        for line in (*summary.lines, *summary.caveats):
            say_wrapped(console, line)
    else:
        _show_tables(console, results, is_brief=not verbose)
        _show_summary(console, results, verbose=verbose)
    if plots and (verbose or not (results.folder / PAGE_FILE).is_file()):
        say(console, f"plots: {', '.join(map(str, plots))}")
    say(console, f"results: {place_in_words(results.place, results.folder)}")


def _show_summary(console: Console, results: Study, *, verbose: bool) -> None:
    summary = summary_of(results)
    for paragraph in (
        *([] if verbose or results.is_imported else [ledger_line(results), *failed_line(results)]),
        *summary.caveats,
        *([f"Confidence: {summary.confidence}"] if summary.confidence else []),
    ):
        say_wrapped(console, paragraph)
    for paragraph in summary.lines:
        console.print()
        say_wrapped(console, f"Answer: {paragraph}", style="bold")
    steps = [(step.what, step.do) for step in next_steps(results, verdict_of(results))]
    if not verbose:
        steps.append(("all tables", results.command("report", results.place, "--verbose")))
    if steps:
        console.print()
        say_pairs(console, steps)


def _show_tables(console: Console, results: Study, *, is_brief: bool) -> None:
    """Print the tables, from single runs to confirmed configurations."""
    if not is_brief:
        _show_failures(console, failures(results.trials))
    printed = _search_table(results, is_brief=is_brief)
    if not is_brief:
        ledger = texts(ledger_totals(results.trials), LEDGER_FORMS)
        printed.append((ledger, "Seconds by phase (all runs)", ""))
    printed += _confirmed_table(results, is_brief=is_brief)
    for cells, title, below in printed:
        print_frame(console, cells, title, below=below, is_explained=not is_brief)
    if is_brief and any(has_marks(cells) for cells, *_ in printed):
        say(console, MARK_SAYS)


def _show_failures(console: Console, causes: pd.DataFrame) -> None:
    if causes.empty:
        return
    print_frame(
        console, texts(causes.head(MOST_CAUSES_PRINTED), FAILURE_FORMS), "Failed runs, by cause"
    )
    others = causes.iloc[MOST_CAUSES_PRINTED:]
    if len(others):
        say(console, f"and {others['runs'].sum()} of {len(others)} other causes: see trials.csv")
        console.print()


def _search_table(results: Study, *, is_brief: bool) -> list[Printed]:
    trials, metric = results.trials, results.metric
    has_value = trials[metric.best_column].notna()
    best, number = (
        ranked_runs(trials[has_value]).head(MOST_SEARCH_ROWS[is_brief]),
        len(ranked_runs(trials)),
    )
    if best.empty:
        return []
    forms = TRIAL_FORMS if is_brief else TRIAL_FORMS | {"global batch": "{global_batch_size}"}
    forms = forms | _layout_columns(best)
    forms |= {"s to target": "{crossed_s:s}{mark}", "worker-s": "{cost:s}{mark}"}
    forms[f"best {metric.words}"] = value_form(metric, metric.best_column)
    if not is_brief:
        forms |= {"samples/s": "{samples_per_s:,.0f}", "train s": "{train_s:s}"}
    forms["total s"] = "{wall_s:s}"
    rows = best.assign(cost=best["num_workers"] * best["crossed_s"], mark=_marks(best))
    superlative = "fastest" if best["crossed_s"].notna().any() and results.is_timed else "best"
    selection = f"{len(best)} {superlative} of {number:,} trials" if number > 1 else "the trial"
    aim = f" to {target_in_words(results)}" if results.is_timed else ""
    # The best of several single runs are partly luck.
    title = (
        f"Search: {selection}{aim} ({'one run each, so optimistic' if number > 1 else 'one run'})"
    )
    below = "" if results.is_imported else CONFIGURATION_NOTE
    return [(texts(_with_marks(rows, results), forms), title, below)]


def _layout_columns(runs: pd.DataFrame) -> dict[str, CellFormat]:
    """Return columns for the number of hosts and for the GPUs, each only if runs differ in it.

    Failed runs are ignored, since they may never have had workers.
    """
    trained = runs[runs["state"] != State.FAILED]
    columns: dict[str, CellFormat] = {}
    if len(set(trained["num_nodes"].dropna())) > 1:
        columns["hosts"] = "{num_nodes}"
    if len(set(trained["accelerators"].fillna(""))) > 1:
        columns["GPUs"] = "{accelerators}"
    return columns


def _confirmed_table(results: Study, *, is_brief: bool) -> list[Printed]:
    """Return the table of the configurations that were trained again with new seeds.

    It shows their seconds to the target or, without a target, their metric values.
    """
    table, metric = confirmed(results), results.metric
    rows = table.head(MOST_CONFIRMED_ROWS[is_brief])
    if rows.empty:
        return []
    tested = {f"test {metric.words}": value_form(metric, metric.test_column)}
    if results.is_timed:
        forms = CONFIRMATION_FORMS if is_brief else CONFIRMATION_FORMS | SEARCH_FORMS | tested
    else:
        ends = (f"interval_{end}_{metric.name}" for end in ("low", "high"))
        forms = TRIAL_FORMS | {
            "finished": "{new_hits} of {new_runs}",
            f"median {metric.words}": value_form(metric, f"median_{metric.name}"),
            "90 % interval": value_form(metric, *ends),
            f"search {metric.words}": value_form(metric, f"search_{metric.name}"),
            **tested,
        }
    is_alone = rows["is_alone"].astype(bool)
    rows = rows.assign(
        cost=rows["expected_s"] * rows["num_workers"],
        alone_s=rows["printed_s"].where(is_alone),
        mark=_marks(rows),
    )
    selection = counted(len(table), "configuration")
    selection = selection if len(rows) == len(table) else f"best {len(rows)} of {len(table)}"
    has_race = (results.trials["role"] == Role.RACE).any()
    alone_clause = "; winner also ran alone" if has_race else "; each run was alone"
    seeds = "search run plus new seeds" if results.is_timed else "new seeds"
    title = f"Confirmation: {selection} ({seeds}){alone_clause if is_alone.any() else ''}"
    return [(texts(_with_marks(rows, results), forms), title, "")]


def _marks(table: pd.DataFrame) -> list[str]:
    """Return the suffix for the times of each row: MARK if the time is interpolated, else a space.

    All suffixes are "" if no time is interpolated.
    """
    are_marked = table["is_interpolated"].eq(True).fillna(False)
    return ["" if not are_marked.any() else MARK if is_marked else " " for is_marked in are_marked]


def _with_marks(rows: pd.DataFrame, results: Study) -> pd.DataFrame:
    """Return rows with `tensorflow` abbreviated, and with a mark on trials that have a disturbed
    run."""
    trials = results.trials[results.trials["is_disturbed"].eq(True).fillna(False)]
    is_disturbed = rows["trial"].isin({*trials["trial"], *trials["source"].dropna()})
    names = rows["trial"].where(~is_disturbed, rows["trial"] + DISTURBED)
    brief = rows["config"].astype(object).str.replace(r"^tensorflow ", "tf ", regex=True)
    return rows.assign(trial=names, config=brief)
