"""The answer of a study as the page opens with it: one sentence, then what it stands on."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from raybench.report.answer import answer_of as sentences
from raybench.report.answer import between, in_words, tried_words, verdict_lines
from raybench.report.how_sure import PAGE, Step, how_sure_lines, next_steps
from raybench.report.live.replay import driver_of, owner_of
from raybench.report.page.tables import own, trial_link
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
    digits,
    duration,
    price_of,
    target_in_words,
    target_sentence,
    unranked_lines,
    value_words,
    within_budget,
)
from raybench.results.ranking import repeated
from raybench.results.study import Study
from raybench.results.verdict import VerdictFacts, Winner, facts_of, judge, judge_each
from raybench.scaling.cells import scaling_cells

NOTHING = "{} yet, so there is no answer."


@dataclass(frozen=True)
class Answer:
    """What the page opens with."""

    headline: str
    """The answer in a sentence."""
    facts: Sequence[tuple[str, str]] = ()
    """What a decision needs, by names: fastest, cheapest, how sure, target, cost. Markup has
    links."""
    mind: Sequence[str] = ()
    """What limits the answer: the study goes on, the winner lies at the end of a range."""
    details: Sequence[str] = ()
    """The verdict as the terminal has it."""
    steps: Sequence[Step] = ()
    """What to do next."""


def answer_of(results: Study, study: str) -> Answer:
    """Return the answer of a study of any kind; `study` begins the ids that its links lead to."""
    if results.is_scaling:
        return _scaling_answer(results)
    if results.study["study"].get("run"):  # the folder holds one run
        return _single_answer(results)
    return _search_answer(results, study)


def _search_answer(results: Study, study: str) -> Answer:
    verdict = judge(results)
    known = None if verdict is None else facts_of(results, verdict)
    facts = [] if known is None else _winners(results, known, study)
    facts.append(("Target", target_sentence(results)))
    facts.append(("What the study took", effort_words(results)))
    mind = [
        *unfinished(results),
        *disturbed_line(results),
        *unranked_lines(results),
        *edge_lines(results, verdict),
        *filter(None, [target_warning(results)]),
        *map(str, results.study.get("notes", [])),
    ]
    if results.trials.empty:
        return Answer(NOTHING.format("No run has finished"), facts, mind)
    headline = verdict_lines(results, None)[0] if known is None else _headline(results, known)
    details = [
        *(verdict_lines(results, verdict) if verdict else ()),
        *how_sure_lines(results, verdict),
        *sensitivity_lines(results),
    ]
    steps = [step for step in next_steps(results, verdict) if not step.do.endswith(PAGE)]
    return Answer(headline, facts, mind, details, steps)


def _headline(results: Study, facts: VerdictFacts) -> str:
    fastest, tried = facts.fastest, tried_words(results)
    name = in_words(results, fastest.spec)
    sure = "" if facts.is_confirmed else " (one run, not confirmed)"
    if not results.is_timed:
        budget = results.study["study"]["objective"].get("max_train_seconds")
        within = "" if budget is None else f" {within_budget(budget)}"
        reached = f"{name} reaches {_value(results, facts)}{sure}"
        return f"{_superlative(results)}{within} of {tried}: {reached}."
    both = "fastest and cheapest" if facts.is_one else "fastest"
    kinds = list(judge_each(results))
    on = f" on {kinds[0] or 'no GPU'}" if len(kinds) > 1 else ""
    wall = by_the_wall(results, fastest.trial, fastest.seconds)
    within = f" ({wall})" if wall else ""
    seconds = f"{duration(fastest.seconds)} of training{_misses(fastest)}{within}{sure}"
    aim = target_in_words(results)
    return f"The {both} way found to {aim}{on} is {name}: {seconds}, of {tried}."


def _superlative(results: Study) -> str:
    best = results.metric.superlative
    return best[0].upper() + best[1:]


def _winners(results: Study, facts: VerdictFacts, study: str) -> list[tuple[str, str]]:
    """Return the facts of the winners, and how sure they are."""
    sure = ("How sure", _how_sure(results, facts, study))
    fastest = facts.fastest
    if not results.is_timed:
        ends = fastest.ends
        range_ = "" if ends is None else f" (90 %: {between(results.metric, ends)})"
        said = f"{_value(results, facts)}{range_}"
        return [(_superlative(results), _named(results, fastest, study, said)), sure]
    winners = [("Fastest", fastest), ("Cheapest", facts.cheapest)]
    if facts.is_one:
        winners = [("Fastest and cheapest", fastest)]
    found = []
    for what, one in winners:
        interval = f" (90 % interval: {' to '.join(map(digits, one.ends_s))})" if one.hits else ""
        cost = f"{digits(one.cost)} worker-seconds{price_of(results, one.cost, one.trial)}"
        said = f"{duration(one.seconds)}{interval}{_misses(one)}; {cost}"
        found.append((what, _named(results, one, study, said)))
    return [*found, sure]


def _named(results: Study, one: Winner, study: str, said: str) -> Markup:
    link = trial_link(results, one.trial, study)
    return Markup("{} ({}): {}").format(own(one.label), link, said)


def _how_sure(results: Study, facts: VerdictFacts, study: str) -> str:
    if not facts.is_confirmed:
        return "Not confirmed: every configuration ran once, and the best may be a lucky run."
    one = facts.fastest
    hits = f"{one.hits} of " if results.is_timed else ""
    found = own(f"Confirmed by {hits}{one.seeds}, {one.how_run}.")
    if ties := facts.tied:
        more = len(ties) - MOST_NAMED
        links = [trial_link(results, trial, study, "") for trial in ties[:MOST_NAMED]]
        tail = f" and {more} more." if more > 0 else "."
        found += Markup(" Statistically tied with it: {}{}").format(Markup(", ").join(links), tail)
    elif len(repeated(results)) > 1:
        found += " None that ran again is statistically tied with it."
    if number := len(facts.once):
        found += f" {counted(number, 'other')} that ran once cannot be excluded."
    return found


def _misses(one: Winner) -> str:
    """Say of a winner's seconds what misses do to them."""
    if one.runs and not one.hits:
        return ", in the search alone: no new seed reached it"
    if one.hits < one.runs:
        return f", what misses cost counted ({one.hits} of {one.runs} runs reached it)"
    if one.every_hit < one.every_run:
        return f", of all its runs {one.every_hit} of {one.every_run} reached it"
    return ""


def _value(results: Study, facts: VerdictFacts) -> str:
    """Return the winner's value of the metric."""
    one = facts.fastest
    value = one.value if facts.is_confirmed else results.runs[one.trial].best_value
    return value_words(results, value)


def unfinished(results: Study) -> list[str]:
    """Return a sentence where the study is still running, or was cut off; [] where neither.

    A study below a URL has no lock in its copy: of it only what was cut off is known.
    """
    owner, number = owner_of(results.folder), counted(len(results.runs), "run")
    if owner and (owner.get("pid"), owner.get("host")) != (os.getpid(), platform.node()):
        if driver_of(owner) != "died":
            who = f"process {owner.get('pid')} on {owner.get('host')}"
            return [f"The study is still running ({who}); this page has the {number} ended so far."]
        return [f"The study was cut off, with {number} ended: the same command continues it."]
    if any(run.stop == "interrupted" for run in results.runs.values()):
        return ["The study was interrupted, and its last runs cut off: the same command continues."]
    return []


ENDED = {
    "target": "it had reached the target",
    "max_train_seconds": "its seconds of training were over",
    "epochs": "its epochs were done",
    "interrupted": "it was interrupted",
    "time_budget": "the time budget was over",
}
"""Why a run ended, by its `stop`."""


def _single_answer(results: Study) -> Answer:
    """Return what the run has reached."""
    mind = unfinished(results)
    if not results.runs:
        return Answer(NOTHING.format("The run has not ended"), (), mind)
    run = next(iter(results.runs.values()))
    best, trained = value_words(results, run.best_value), duration(run.ledger["train"])
    tested = run.test_value
    test = "" if tested is None else f", {results.metric.shown(tested)} on the test set"
    cost = run.spec.num_workers * run.ledger["train"]
    costs = f"{cost:.3g} worker-seconds{price_of(results, cost, run.trial)}"
    facts = [
        ("Configuration", f"{in_words(results, run.spec)}, seed {run.spec.seed}"),
        ("Reached", f"{best}{' at best' if results.is_timed else ''}{test}."),
        ("Target", target_sentence(results)),
        ("What it took", f"{trained} of training, {costs}; {duration(run.wall_s)} in all."),
    ]
    if run.stop is not None:
        facts.append(("Ended as", f"{ENDED.get(run.stop, run.stop)}."))
    return Answer(sentences(results)[0], facts, mind)


KINDS = {
    "weak": "weak scaling: each worker keeps its batch",
    "strong": "strong scaling: all together keep the batch",
}
MOST_SERIES = 6
"""Series that have a fact of their own; the table has all."""


def _scaling_answer(results: Study) -> Answer:
    """Return what the study says of more workers."""
    mind = [*unfinished(results), *map(str, results.study.get("notes", []))]
    effort = ("What the study took", effort_words(results))
    if results.trials.empty:
        return Answer(NOTHING.format("No run has finished"), [effort], mind)
    cells = scaling_cells(results)
    mind += [*outlier_lines(results), *other_lines(cells)]
    ended = cells[cells["n"] > 0]
    gains = ended[ended["speedup"].notna() & (ended["num_workers"] > 1)]
    if len(gains):
        facts = [*_scaling_facts(gains), effort]
        return Answer(scaling_headline(cells), facts, mind, answer_lines(cells))
    headline, number = sentences(results)[0], len(results.trials)
    if ended.empty:
        headline = f"No result: {'the run' if number == 1 else f'all {number} runs'} failed."
    else:
        headline += " How it scales is not known: that takes one worker and several."
    return Answer(headline, [effort], mind)


def _scaling_facts(gains: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the largest gain of each series and kind of scaling, in words."""
    facts = []
    for (series, scaling), rows in gains.groupby(["series", "scaling"], sort=False):
        row = rows.nlargest(1, "speedup").to_dict("records")[0]
        ends = row["speedup_low"], row["speedup_high"]
        spread = "" if pd.isna(ends[0]) else f" (repeats: {ends[0]:.2f} to {ends[1]:.2f})"
        words = (
            f"{row['speedup']:.2f} times one worker{spread} on {row['num_workers']} workers, batch "
            f"{row['batch_size_per_worker']} each: {row['samples_per_s']:,.0f} samples/s, "
            f"efficiency {100 * row['efficiency']:.0f} %"
        )
        facts.append((f"{series}, {KINDS.get(str(scaling), scaling)}", words))
    return facts[:MOST_SERIES]
