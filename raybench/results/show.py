"""The last screen of a study: what ran, the answer, what to do next."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from raybench.results.answer import answer_lines
from raybench.results.console import say
from raybench.results.edges import edge_lines
from raybench.results.how_sure import how_sure_lines
from raybench.results.load import StudyResults
from raybench.results.next_steps import PAGE, Step, again, next_steps
from raybench.results.paragraphs import say_pairs, say_wrapped
from raybench.results.place import shown
from raybench.results.ranking import ranked
from raybench.results.sensitivity import sensitivity_lines, target_warning
from raybench.results.show_tables import WHOLE, Amount, show_tables
from raybench.results.spent import disturbed_line, failed_line, ledger_line
from raybench.results.verdict import Verdict, judge
from raybench.results.words import unranked_lines
from raybench.results.words import verdict_lines as verdict_lines

SCREEN = 40
"""Lines of the default screen, as far as what must be said leaves that to be chosen."""
ROWS = [Amount(runs, runs + more) for runs in range(2, 11) for more in (0, 1)]
"""Rows of the default screen's tables, fewest first: the most that fit are printed."""


@dataclass(frozen=True)
class _Said:
    """What is said beside the tables, in paragraphs."""

    answer: list[str]
    details: list[str]
    notes: list[str]
    steps: list[Step]


def show(
    console: Console, results: StudyResults, *, plots: Sequence[Path] = (), verbose: bool = False
) -> None:
    """Print tables first and the answer last, where the eye ends; all of them with `verbose`.

    `plots` are the pictures that were written, named at the end. The console may be any: no
    text is read as markup.
    """
    said = _said(results, verbose=verbose)
    amount = WHOLE if verbose else _amount(console, results, said, plots)
    _print(console, results, said, amount, plots)


def _amount(console: Console, results: StudyResults, said: _Said, plots: Sequence[Path]) -> Amount:
    """Return the most that leaves the screen SCREEN lines, or the least there is."""
    most_runs, most_raced = len(ranked(results.trials)), len(results.confirmed)
    lines = _lines_of(ROWS[0], console, results, said, plots)
    for amount in reversed(ROWS[1:]):
        # A row is a line, unless its configuration takes several.
        more = min(amount.runs, most_runs) - min(ROWS[0].runs, most_runs)
        more += min(amount.raced, most_raced) - min(ROWS[0].raced, most_raced)
        if lines + more > SCREEN:
            continue
        if _lines_of(amount, console, results, said, plots) <= SCREEN:
            return amount
    return ROWS[0]


def _lines_of(
    amount: Amount,
    console: Console,
    results: StudyResults,
    said: _Said,
    plots: Sequence[Path],
) -> int:
    with console.capture() as screen:
        _print(console, results, said, amount, plots)
    return _num_lines(screen.get(), console.width)


def _num_lines(text: str, width: int) -> int:
    """Return the lines that a terminal shows: one that is longer than it takes several."""
    plain = Text.from_ansi(text).plain.splitlines()
    return sum(max(1, math.ceil(cell_len(line) / width)) for line in plain)


def _said(results: StudyResults, *, verbose: bool) -> _Said:
    notes = [str(note) for note in results.study.get("notes", [])]
    if results.trials.empty:
        return _Said([], ["no run has finished."], notes, [])
    verdict = judge(results)
    warning, answer = target_warning(results), answer_lines(results, verdict)
    details = [
        *([] if verbose else [ledger_line(results), *failed_line(results)]),
        *disturbed_line(results),
        *(line for line in verdict_lines(results, verdict) if line not in answer),
        *unranked_lines(results),
        *how_sure_lines(results, verdict),
        *edge_lines(results, verdict),
        *(sensitivity_lines(results) if verbose else []),
        *([warning] if warning else []),
    ]
    return _Said(answer, details, notes, _steps(results, verdict, verbose))


def _steps(results: StudyResults, verdict: Verdict | None, verbose: bool) -> list[Step]:
    steps = next_steps(results, verdict)
    if not verbose:
        steps.append(Step("all tables", again(results, "report", results.place, "--verbose")))
        steps.append(Step("what a word means", again(results, "explain", "WORD")))
    return steps


def _print(
    console: Console, results: StudyResults, said: _Said, amount: Amount, plots: Sequence[Path]
) -> None:
    if not results.trials.empty:
        show_tables(console, results, amount)
    for paragraph in (*said.details, *said.notes):
        say_wrapped(console, paragraph)
    for paragraph in said.answer:
        console.print()
        say_wrapped(console, f"Answer: {paragraph}", style="bold")
    if said.steps:
        console.print()
        say_pairs(console, [(step.what, step.do) for step in said.steps])
    if plots and not (amount.is_brief and (results.folder / PAGE).is_file()):
        say(console, f"plots: {', '.join(map(str, plots))}")
    say(console, f"results: {shown(results.place, results.folder)}")
