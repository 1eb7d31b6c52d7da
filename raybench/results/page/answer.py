"""The answer of a study as the page opens with it: one sentence, then what it stands on."""

from collections.abc import Sequence
from dataclasses import dataclass

from raybench.results.answer import in_words
from raybench.results.how_sure import PAGE, Step, how_sure_lines, next_steps
from raybench.results.load import StudyResults
from raybench.results.page.html import Html, isolated, join, text
from raybench.results.page.links import trial_link, trial_links
from raybench.results.page.state import unfinished
from raybench.results.remarks import edge_lines, effort_words, sensitivity_lines, target_warning
from raybench.results.verdict import Verdict, judge, judge_each
from raybench.results.words import (
    by_the_wall,
    confirmed_row,
    duration,
    price_of,
    target_in_words,
    target_sentence,
    unranked_lines,
    value_words,
    verdict_lines,
)

MOST_TIES = 5
"""Statistically tied trials that are named."""


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


def search_answer(results: StudyResults, study: str) -> Answer:
    """Return the answer of a search; `study` is the part of the page that its links lead to."""
    verdict = judge(results)
    facts = [*_winners(results, verdict, study), ("Target", text(target_sentence(results)))]
    facts.append(("What the study took", text(effort_words(results))))
    warning = target_warning(results)
    mind = [
        *([sentence] if (sentence := unfinished(results)) else []),
        *unranked_lines(results),
        *edge_lines(results, verdict),
        *([warning] if warning else []),
        *map(str, results.study.get("notes", [])),
    ]
    if results.trials.empty:
        return Answer("No run has finished yet, so there is no answer.", facts, mind)
    headline = verdict_lines(results, None)[0] if verdict is None else _headline(results, verdict)
    details = [
        *(verdict_lines(results, verdict) if verdict else ()),
        *how_sure_lines(results, verdict),
        *sensitivity_lines(results),
    ]
    steps = [step for step in next_steps(results, verdict) if not step.do.endswith(PAGE)]
    return Answer(headline, facts, mind, details, steps)


def _headline(results: StudyResults, verdict: Verdict) -> str:
    metric = results.metric
    name = in_words(results, results.specs[verdict.fastest])
    sure = "" if verdict.is_confirmed else " (one run, not confirmed)"
    if not results.is_timed:
        value, _ = _value(results, verdict)
        budget = results.study["study"]["objective"].get("max_train_seconds")
        within = "" if budget is None else f" within {duration(budget)} of training"
        best = metric.superlative
        return f"{best[0].upper()}{best[1:]}{within}: {name} reaches {value}{sure}."
    seconds, hits = _seconds(results, verdict.fastest, verdict)
    both = "fastest and cheapest" if verdict.cheapest == verdict.fastest else "fastest"
    kinds = judge_each(results)
    on = f" on {next(iter(kinds)) or 'no GPU'}" if len(kinds) > 1 else ""
    return (
        f"The {both} way found to {target_in_words(results)}{on} is {name}: "
        f"{duration(seconds)} of training{hits}{by_the_wall(results, verdict.fastest, seconds)}"
        f"{sure}."
    )


def _winners(results: StudyResults, verdict: Verdict | None, study: str) -> list[tuple[str, Html]]:
    """Return the facts of the winners, and how sure they are."""
    if verdict is None:
        return []
    if not results.is_timed:
        value, range_ = _value(results, verdict)
        words = [_name(results, verdict.fastest, study), text(f"{value}{range_}")]
        best = results.metric.superlative
        return [
            (f"{best[0].upper()}{best[1:]}", join(words, ": ")),
            ("How sure", _how_sure(results, verdict, study)),
        ]
    facts = []
    for what, trial in (("Fastest", verdict.fastest), ("Cheapest", verdict.cheapest)):
        facts.append((what, _winner(results, verdict, trial, study)))
    if verdict.fastest == verdict.cheapest:
        facts = [("Fastest and cheapest", facts[0][1])]
    return [*facts, ("How sure", _how_sure(results, verdict, study))]


def _winner(results: StudyResults, verdict: Verdict, trial: str, study: str) -> Html:
    seconds, hits = _seconds(results, trial, verdict)
    cost = results.runs[trial].spec.num_workers * seconds
    words = f"{duration(seconds)}{_interval(results, trial, verdict)}{hits}"
    price = price_of(results, cost, trial)
    return join(
        [
            _name(results, trial, study),
            text(f"{words}; {_digits(cost)} worker-seconds{price}"),
        ],
        ": ",
    )


def _name(results: StudyResults, trial: str, study: str) -> Html:
    label = isolated(results.label(results.specs[trial]))
    return join([label, text(" ("), trial_link(results, trial, study), text(")")], "")


def _how_sure(results: StudyResults, verdict: Verdict, study: str) -> Html:
    if not verdict.is_confirmed:
        return text("Not confirmed: every configuration ran once, and the best may be a lucky run.")
    found = confirmed_row(results, verdict.fastest)
    how = "each alone on the machine" if found["is_alone"] else "beside other runs"
    seeds = (
        "1 run with a new seed"
        if found["new_runs"] == 1
        else (f"{found['new_runs']} runs with new seeds")
    )
    if results.is_timed:
        words = f"Confirmed: {found['new_hits']} of {seeds} reached the target, {how}."
    else:
        words = f"Confirmed by {seeds}, {how}."
    parts = [text(words)]
    ties = verdict.others()
    if ties:
        more = len(ties) - MOST_TIES
        tail = f" and {more} more" if more > 0 else ""
        links = trial_links(results, ties[:MOST_TIES], study)
        parts.append(join([text(" Statistically tied with it: "), links, text(f"{tail}.")], ""))
    elif len(results.repeated) > 1:
        parts.append(text(" None that ran again is statistically tied with it."))
    if verdict.once:
        number = len(verdict.once)
        who = "1 other that ran once" if number == 1 else f"{number} others that ran once"
        parts.append(text(f" {who} cannot be excluded."))
    return join(parts, "")


def _seconds(results: StudyResults, trial: str, verdict: Verdict) -> tuple[float, str]:
    """Return the seconds that are named of a winner, and what is to be said of misses."""
    if not verdict.is_confirmed:
        own = results.trials["crossed_s"][results.trials["trial"] == trial]
        return float(own.iloc[0]), ""
    found = confirmed_row(results, trial)
    if not found["new_hits"]:
        return float(found["search_s"]), ", in the search alone: no new seed reached it"
    if found["new_hits"] < found["new_runs"]:
        return float(found["printed_s"]), (
            f", what misses cost counted ({found['new_hits']} of {found['new_runs']} runs "
            "reached it)"
        )
    return float(found["printed_s"]), ""


def _interval(results: StudyResults, trial: str, verdict: Verdict) -> str:
    if not verdict.is_confirmed or not confirmed_row(results, trial)["new_hits"]:
        return ""
    found = confirmed_row(results, trial)
    low, high = (_digits(float(found[f"interval_{end}_s"])) for end in ("low", "high"))
    return f" (90 % interval: {low} to {high})"


def _digits(seconds: float) -> str:
    """Return seconds with the digits of `duration`, so that they read as the time beside them."""
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.3g}"


def _value(results: StudyResults, verdict: Verdict) -> tuple[str, str]:
    """Return the winner's value of the metric, and its interval, in words."""
    metric = results.metric
    if not verdict.is_confirmed:
        return f"{value_words(results, results.runs[verdict.fastest].best_value)}", ""
    found = confirmed_row(results, verdict.fastest)
    value, low, high = (
        metric.shown(float(found[f"{which}_{metric.name}"]))
        for which in ("median", "interval_low", "interval_high")
    )
    range_ = "" if "none" in (low, high) else f" (90 %: {low.removesuffix(' %')} to {high})"
    return f"validation {metric.words} {value}", range_
