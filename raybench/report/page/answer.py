"""The answer of a study as the page opens with it: one sentence, then what it stands on."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.report.answer import between, in_words, tried_words, verdict_lines
from raybench.report.how_sure import PAGE, Step, how_sure_lines, next_steps
from raybench.report.live.replay import driver_of, owner_of
from raybench.report.page.html import Html, isolated, join, text, trial_link, trial_links
from raybench.report.remarks import (
    disturbed_line,
    edge_lines,
    effort_words,
    sensitivity_lines,
    target_warning,
)
from raybench.report.scaling_printed import other_lines, outlier_lines, scaling_headline
from raybench.report.scaling_printed import scaling_answer as answer_lines
from raybench.report.words import (
    MOST_NAMED,
    by_the_wall,
    counted,
    duration,
    price_of,
    target_in_words,
    target_sentence,
    unranked_lines,
    value_words,
    within_budget,
)
from raybench.results.load import StudyResults
from raybench.results.verdict import VerdictFacts, Winner, facts_of
from raybench.stats.record import RunRecord


@dataclass(frozen=True)
class Answer:
    """What the page opens with."""

    headline: str
    """The answer in a sentence."""
    facts: Sequence[tuple[str, Html]] = ()
    """What a decision needs, by names: fastest, cheapest, how sure, target, cost."""
    mind: Sequence[str] = ()
    """What limits the answer: the study goes on, the winner lies at the end of a range."""
    details: Sequence[str] = ()
    """The verdict as the terminal has it."""
    steps: Sequence[Step] = ()
    """What to do next."""


SINGLE = "run"
"""Key of `study.yaml` that says that a folder holds one run."""


def answer_of(results: StudyResults, study: str) -> Answer:
    """Return the answer of a study of any kind."""
    if results.is_scaling:
        return scaling_answer(results)
    if results.study["study"].get(SINGLE):
        return single_answer(results)
    return search_answer(results, study)


def search_answer(results: StudyResults, study: str) -> Answer:
    """Return the answer of a search; `study` is the part of the page that its links lead to."""
    verdict = results.verdict
    known = None if verdict is None else facts_of(results, verdict)
    facts = [] if known is None else _winners(results, known, study)
    facts.append(("Target", text(target_sentence(results))))
    facts.append(("What the study took", text(effort_words(results))))
    warning = target_warning(results)
    mind = [
        *([sentence] if (sentence := unfinished(results)) else []),
        *disturbed_line(results),
        *unranked_lines(results),
        *edge_lines(results, verdict),
        *([warning] if warning else []),
        *map(str, results.study.get("notes", [])),
    ]
    if results.trials.empty:
        return Answer("No run has finished yet, so there is no answer.", facts, mind)
    headline = verdict_lines(results, None)[0] if known is None else _headline(results, known)
    details = [
        *(verdict_lines(results, verdict) if verdict else ()),
        *how_sure_lines(results, verdict),
        *sensitivity_lines(results),
    ]
    steps = [step for step in next_steps(results, verdict) if not step.do.endswith(PAGE)]
    return Answer(headline, facts, mind, details, steps)


def _headline(results: StudyResults, facts: VerdictFacts) -> str:
    fastest = facts.fastest
    name = in_words(results, fastest.spec)
    sure = "" if facts.is_confirmed else " (one run, not confirmed)"
    if not results.is_timed:
        budget = results.study["study"]["objective"].get("max_train_seconds")
        within = "" if budget is None else f" {within_budget(budget)}"
        reached = f"{name} reaches {_value(results, facts)}{sure}"
        return f"{_superlative(results)}{within} of {tried_words(results)}: {reached}."
    both = "fastest and cheapest" if facts.is_one else "fastest"
    kinds = list(results.verdicts)
    on = f" on {kinds[0] or 'no GPU'}" if len(kinds) > 1 else ""
    wall = by_the_wall(results, fastest.trial, fastest.seconds)
    return (
        f"The {both} way found to {target_in_words(results)}{on} is {name}: "
        f"{duration(fastest.seconds)} of training{_misses(fastest)}{wall}{sure}, of "
        f"{tried_words(results)}."
    )


def _superlative(results: StudyResults) -> str:
    best = results.metric.superlative
    return best[0].upper() + best[1:]


def _winners(results: StudyResults, facts: VerdictFacts, study: str) -> list[tuple[str, Html]]:
    """Return the facts of the winners, and how sure they are."""
    sure = ("How sure", _how_sure(results, facts, study))
    if not results.is_timed:
        ends = facts.fastest.ends
        range_ = "" if ends is None else f" (90 %: {between(results.metric, ends)})"
        words = text(f"{_value(results, facts)}{range_}")
        best = join([_name(results, facts.fastest, study), words], ": ")
        return [(_superlative(results), best), sure]
    found = [("Fastest", facts.fastest), ("Cheapest", facts.cheapest)]
    if facts.is_one:
        found = [("Fastest and cheapest", facts.fastest)]
    return [*((what, _winner(results, one, study)) for what, one in found), sure]


def _winner(results: StudyResults, one: Winner, study: str) -> Html:
    interval = f" (90 % interval: {' to '.join(map(_digits, one.ends_s))})" if one.hits else ""
    words = f"{duration(one.seconds)}{interval}{_misses(one)}"
    price = price_of(results, one.cost, one.trial)
    cost = text(f"{words}; {_digits(one.cost)} worker-seconds{price}")
    return join([_name(results, one, study), cost], ": ")


def _name(results: StudyResults, one: Winner, study: str) -> Html:
    link = trial_link(results, one.trial, study)
    return join([isolated(one.label), text(" ("), link, text(")")], "")


def _how_sure(results: StudyResults, facts: VerdictFacts, study: str) -> Html:
    if not facts.is_confirmed:
        return text("Not confirmed: every configuration ran once, and the best may be a lucky run.")
    one = facts.fastest
    how = "each alone on the machine" if one.how_run == "run alone" else "beside other runs"
    seeds = "1 run with a new seed" if one.runs == 1 else f"{one.runs} runs with new seeds"
    words = f"Confirmed by {seeds}, {how}."
    if results.is_timed:
        words = f"Confirmed: {one.hits} of {seeds} reached the target, {how}."
    parts = [text(words)]
    if ties := facts.tied:
        more = len(ties) - MOST_NAMED
        tail = f" and {more} more" if more > 0 else ""
        links = trial_links(results, ties[:MOST_NAMED], study)
        parts.append(join([text(" Statistically tied with it: "), links, text(f"{tail}.")], ""))
    elif len(results.repeated) > 1:
        parts.append(text(" None that ran again is statistically tied with it."))
    if facts.once:
        number = len(facts.once)
        who = "1 other that ran once" if number == 1 else f"{number} others that ran once"
        parts.append(text(f" {who} cannot be excluded."))
    return join(parts, "")


def _misses(one: Winner) -> str:
    """Say of a winner's seconds what misses do to them."""
    if one.runs and not one.hits:
        return ", in the search alone: no new seed reached it"
    if one.hits < one.runs:
        return f", what misses cost counted ({one.hits} of {one.runs} runs reached it)"
    return ""


def _digits(seconds: float) -> str:
    """Return seconds with the digits of `duration`, so that they read as the time beside them."""
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.3g}"


def _value(results: StudyResults, facts: VerdictFacts) -> str:
    """Return the winner's value of the metric."""
    one = facts.fastest
    value = one.value if facts.is_confirmed else results.runs[one.trial].best_value
    return value_words(results, value)


def unfinished(results: StudyResults) -> str | None:
    """Return a sentence where the study is still running, or was cut off; None where neither.

    A study below a URL has no lock in its copy: of it only what was cut off is told.
    """
    owner, number = owner_of(results.folder), counted(len(results.runs), "run")
    if owner and (owner.get("pid"), owner.get("host")) != (os.getpid(), platform.node()):
        if driver_of(owner) != "died":
            who = f"process {owner.get('pid')} on {owner.get('host')}"
            return f"The study is still running ({who}); this page has the {number} ended so far."
        return f"The study was cut off, with {number} ended: the same command continues it."
    if any(run.stop == "interrupted" for run in results.runs.values()):
        return "The study was interrupted, and its last runs cut off: the same command continues."
    return None


ENDED = {
    "target": "it had reached the target",
    "max_train_seconds": "its seconds of training were over",
    "epochs": "its epochs were done",
    "interrupted": "it was interrupted",
    "time_budget": "the time budget was over",
}
"""Why a run ended, by its `stop`."""


def single_answer(results: StudyResults) -> Answer:
    """Return what the run has reached."""
    open_ = unfinished(results)
    mind = [open_] if open_ else []
    if not results.runs:
        return Answer("The run has not ended yet, so there is no answer.", (), mind)
    run = next(reversed(results.runs.values()))
    best = value_words(results, run.best_value) + (" at best" if results.is_timed else "")
    facts = [
        ("Configuration", isolated(f"{in_words(results, run.spec)}, seed {run.spec.seed}")),
        ("Reached", text(f"{best}{_test(results, run)}.")),
        ("Target", text(target_sentence(results))),
        ("What it took", _single_cost(results, run)),
    ]
    if run.stop is not None:
        facts.append(("Ended as", text(f"{ENDED.get(run.stop, run.stop)}.")))
    return Answer(_single_headline(results, run), facts, mind)


def _single_headline(results: StudyResults, run: RunRecord) -> str:
    trained = f"{duration(run.ledger['train'])} of training"
    if run.failure is not None:
        return f"The run failed ({run.failure}): {run.message or 'no message'}"
    if run.time_to_target_s is not None and results.is_timed:
        after = f"after {duration(run.time_to_target_s)} of training"
        return f"The run reached {target_in_words(results)} {after}."
    best = value_words(results, run.best_value)
    if results.is_timed:
        missed = f"The run did not reach {target_in_words(results)} within {trained}"
        return f"{missed}: its best was {best}."
    return f"The run reached {best} within {trained}."


def _test(results: StudyResults, run: RunRecord) -> str:
    if run.test_value is None:
        return ""
    return f", {results.metric.shown(run.test_value)} on the test set"


def _single_cost(results: StudyResults, run: RunRecord) -> Html:
    cost = run.spec.num_workers * run.ledger["train"]
    price = price_of(results, cost, run.trial)
    return text(
        f"{duration(run.ledger['train'])} of training, {cost:.3g} worker-seconds{price}; "
        f"{duration(run.wall_s)} in all."
    )


KINDS = {
    "weak": "weak scaling: each worker keeps its batch",
    "strong": "strong scaling: all together keep the batch",
}
MOST_SERIES = 6
"""Series that have a fact of their own; the table has all."""


def scaling_answer(results: StudyResults) -> Answer:
    """Return what the study says of more workers."""
    open_ = unfinished(results)
    mind = [*([open_] if open_ else []), *map(str, results.study.get("notes", []))]
    effort = ("What the study took", text(effort_words(results)))
    if results.trials.empty:
        return Answer("No run has finished yet, so there is no answer.", [effort], mind)
    cells = results.scaling
    mind += [*outlier_lines(results), *other_lines(cells)]
    ended = cells[cells["n"] > 0]
    if ended.empty:
        number = len(results.trials)
        failed = "the run" if number == 1 else f"all {number} runs"
        return Answer(f"No result: {failed} failed.", [effort], mind)
    gains = ended[ended["speedup"].notna() & (ended["num_workers"] > 1)]
    if gains.empty:
        fastest = _most(ended, "samples_per_s")
        return Answer(
            f"{_where(fastest)} trains {fastest['samples_per_s']:,.0f} samples a second; how it "
            "scales is not told, for that takes one worker and several.",
            [effort],
            mind,
        )
    return Answer(
        scaling_headline(cells), [*_scaling_facts(gains), effort], mind, answer_lines(cells)
    )


def _most(cells: pd.DataFrame, column: str) -> dict[Any, Any]:
    """Return the row with the most of a column."""
    return cells.sort_values(column, ascending=False, kind="stable").to_dict("records")[0]


def _scaling_facts(gains: pd.DataFrame) -> list[tuple[str, Html]]:
    """Return the largest gain of each series and kind of scaling, in words."""
    facts = []
    for (series, scaling), rows in gains.groupby(["series", "scaling"], sort=False):
        row = _most(rows, "speedup")
        ends = row["speedup_low"], row["speedup_high"]
        spread = "" if pd.isna(ends[0]) else f" (repeats: {ends[0]:.2f} to {ends[1]:.2f})"
        words = (
            f"{row['speedup']:.2f} times one worker{spread} on {row['num_workers']} workers, batch "
            f"{row['batch_size_per_worker']} each: {row['samples_per_s']:,.0f} samples/s, "
            f"efficiency {100 * row['efficiency']:.0f} %"
        )
        facts.append((f"{series}, {KINDS.get(str(scaling), scaling)}", isolated(words)))
    return facts[:MOST_SERIES]


def _where(row: Any) -> str:
    number = int(row["num_workers"])
    workers = "1 worker" if number == 1 else f"{number} workers"
    return f"{row['series']} on {workers}"
