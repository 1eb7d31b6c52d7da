"""The verdict of a study in sentences."""

import math
from collections.abc import Sequence
from typing import Any

from raybench.core.metric import ACCURACY, Metric
from raybench.core.text import clean
from raybench.results.load import StudyResults
from raybench.results.verdict import Verdict, judge_each

MOST_NAMED = 5
"""Trials named in a sentence."""


def verdict_lines(results: StudyResults, verdict: Verdict | None) -> list[str]:
    """Return the outcome in one or two sentences."""
    if verdict is None:
        return [_nothing(results)]
    each = judge_each(results)
    if len(each) > 1:
        head = "Several models of GPU, each ranked by itself:"
        return [head, *(_on(kind, results, one) for kind, one in each.items())]
    lines = _timed(results, verdict) if results.is_timed else [_best(results, verdict)]
    return [*lines, *_not_told_apart(results, verdict)]


def _not_told_apart(results: StudyResults, verdict: Verdict) -> list[str]:
    """Name those that ran again, and count those that ran once."""
    if not verdict.is_confirmed:
        return []
    sentences, others, once = [], verdict.ties[1:], len(verdict.once)
    if others:
        what = "fastest" if results.is_timed else results.metric.superlative
        sentences.append(f"Not told apart from the {what}: {named_trials(others)}.")
    if once:
        who = "1 other trial" if once == 1 else f"{once} other trials"
        sentences.append(f"{who} ran once and cannot be excluded.")
    return [" ".join(sentences)] if sentences else []


def named_trials(trials: Sequence[str]) -> str:
    """Return `trial 0003`, `trials 0003, 0004`, the first MOST_NAMED of more."""
    more = len(trials) - MOST_NAMED
    named = ", ".join(trials[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{'trial' if len(trials) == 1 else 'trials'} {named}"


def unranked_lines(results: StudyResults) -> list[str]:
    """Return a sentence for every reason for which trials of the search were not ranked."""
    trials = results.trials
    left_out = trials[(trials["phase"] == "search") & trials["unranked"].notna()]
    lines = []
    for reason, group in left_out.groupby("unranked", sort=False):
        lines.append(f"Not ranked, {reason}: {named_trials(list(group['trial']))}.")
    return lines


def spec_comment(results: StudyResults, trial: str, verdict: Verdict, what: str) -> str:
    """Return the comment that stands above the spec in best.yaml and cheapest.yaml."""
    run = results.runs[trial]
    name = f"{what} of {clean(results.name)}: trial {trial}, {results.label(run.spec)}"
    if verdict.is_confirmed:
        proof = _proof(results, trial)
    elif run.time_to_target_s is None or not results.is_timed:
        value = _number(results.metric, run.best_value)
        proof = (
            f"unconfirmed: {results.metric.words} {value} after {run.ledger['train']:.3f} s in one "
            "search trial"
        )
    else:
        seconds = _searched_s(results, trial)
        proof = f"unconfirmed: target after {seconds:.3f} s in one search trial"
    return f"{name}\n{proof}\nrun it again: python -m raybench.train THIS_FILE"


def _proof(results: StudyResults, trial: str) -> str:
    found, metric = _confirmed(results, trial), results.metric
    if not found["new_hits"]:
        return (
            f"not confirmed: target after {found['search_s']:.3f} s in one search trial, reached "
            f"by 0 of {found['new_runs']} new seeds {_how(found)}"
        )
    tested = ""
    if not math.isnan(found[metric.test_column]):
        tested = f", test {metric.words} {_number(metric, found[metric.test_column])}"
    seeds = f"{found['new_runs']} new seeds {_how(found)}"
    if results.is_timed:
        ends = f"90 %: {found['interval_low_s']:.3f} to {found['interval_high_s']:.3f}"
        hits = f"reached by {found['new_hits']} of {found['new_runs']}"
        if found["new_hits"] < found["new_runs"]:
            return (
                f"confirmed: expect {found['printed_s']:.3f} s to the target, what misses cost "
                f"counted ({seeds}, {ends}), {hits}{tested}"
            )
        return (
            f"confirmed: target after {found['median_s']:.3f} s (median of {seeds}, {ends}), "
            f"{hits}{tested}"
        )
    median, *around = (_number(metric, value) for value in _median_and_interval(metric, found))
    within = f", 90 %: {around[0]} to {around[1]}" if around else ""
    return f"confirmed: {metric.words} {median} at the budget (median of {seeds}{within}){tested}"


def _how(found: Any) -> str:
    """Say how the runs were made that a row of `confirmed` has its printed time of."""
    return "run alone" if found["is_alone"] else "run beside others"


def _median_and_interval(metric: Metric, found: Any) -> list[float]:
    """Return the median and the ends of the interval of a row of `confirmed`, where it has any."""
    median, *ends = (
        found[f"{which}_{metric.name}"] for which in ("median", "interval_low", "interval_high")
    )
    return [median, *ends] if all(map(math.isfinite, ends)) else [median]


def _number(metric: Metric, value: float | None) -> str:
    """Return a value as it stands in files: shares as fractions."""
    if value is None:
        return "not known"
    return f"{value:.4f}" if metric.is_share else f"{value:.6g}"


def _nothing(results: StudyResults) -> str:
    trials, metric = results.trials, results.metric
    best = metric.best(trials[metric.best_column])
    if len(trials) and (trials["state"] == "failed").all():
        number = len(trials)
        return f"No result: {'the run' if number == 1 else f'all {number} runs'} failed."
    reached = "nothing was measured" if best is None else f"the best was {metric.shown(best)}"
    if not results.is_timed:
        return f"No result: {reached}."
    once = trials["trial"][(trials["phase"] == "search") & trials["crossed_s"].notna()]
    if set(once) & set(results.repeated):
        return (
            f"No result: {named_trials(list(once))} reached the target of {_target(results)} in "
            "the search, but none that ran again did with new seeds; name a target that runs "
            "reach each time, or raise objective.max_train_seconds (with --fresh)."
        )
    if best is not None and results.target is not None and metric.reaches(best, results.target):
        reached += ", too late or not held"  # max_train_seconds, hold
    advice = "name one that runs reach, or raise objective.max_train_seconds (with --fresh)"
    return f"No run reached the target of {_target(results)}: {reached}; {advice}."


def _timed(results: StudyResults, verdict: Verdict) -> list[str]:
    winners = [("Fastest", verdict.fastest), ("Cheapest", verdict.cheapest)]
    if verdict.fastest == verdict.cheapest:
        winners = [("Fastest and cheapest", verdict.fastest)]
    return [f"{what}: {_reaches(results, trial, verdict)}" for what, trial in winners]


def _reaches(results: StudyResults, trial: str, verdict: Verdict) -> str:
    run = results.runs[trial]
    name = f"{results.label(run.spec)} (trial {trial})"
    if not verdict.is_confirmed:
        seconds = _searched_s(results, trial)
        row = results.trials[results.trials["trial"] == trial].iloc[0]
        mark = " (interpolated)" if bool(row["is_interpolated"]) else ""
        reaches = f"reaches {_target(results)} after {seconds:.2f} s{mark}"
        proof = "unconfirmed: one search trial"
    else:
        found = _confirmed(results, trial)
        seconds, hits, runs = float(found["printed_s"]), found["new_hits"], found["new_runs"]
        if not hits:
            return (
                f"{name} reached {_target(results)} after {found['search_s']:.2f} s in the search, "
                f"but in none of {runs} new seeds, {_how(found)}: not confirmed."
            )
        mark = ", interpolated" if found["is_interpolated"] else ""
        ends = f"90 %: {found['interval_low_s']:.2f} to {found['interval_high_s']:.2f}{mark}"
        reaches = f"reaches {_target(results)} after {seconds:.2f} s ({ends})"
        if hits < runs:
            reaches = (
                f"reaches {_target(results)} in {hits} of {runs} runs: expect {seconds:.2f} s "
                f"({ends}) counting what misses cost"
            )
        proof = f"confirmed by {hits} of {runs} new seeds, {_how(found)}"
        is_missed = hits < runs or found["hits"] < found["runs"]
        if (
            is_missed
            and results.repeated[trial].chosen_runs != results.repeated[trial].printed_runs
        ):
            proof += f"; chosen with {found['hits']} of {found['runs']}"
    cost = run.spec.num_workers * seconds
    return f"{name} {reaches}, {cost:.2f} worker-seconds{_price(results, cost)}; {proof}."


def _on(kind: str, results: StudyResults, verdict: Verdict) -> str:
    """Return the winner on one model of GPU."""
    line = (_timed(results, verdict) if results.is_timed else [_best(results, verdict)])[0]
    return f"{kind or 'no GPU'}: {line}"


def _best(results: StudyResults, verdict: Verdict) -> str:
    run, metric = results.runs[verdict.fastest], results.metric
    what = metric.superlative
    name = f"{what[0].upper()}{what[1:]}: {results.label(run.spec)} (trial {run.trial})"
    if not verdict.is_confirmed:
        return (
            f"{name} with {metric.shown(run.best_value)} within {run.ledger['train']:.2f} s of "
            "training; unconfirmed: one search trial."
        )
    found = _confirmed(results, run.trial)
    budget = results.study["study"]["objective"].get("max_train_seconds")
    within = "at the budget" if budget is None else f"within {budget:g} s of training"
    median, *ends = (metric.shown(value) for value in _median_and_interval(metric, found))
    interval = f", 90 %: {ends[0].removesuffix(' %')} to {ends[1]}" if ends else ""
    seeds = f"{found['new_runs']} new seeds {_how(found)}"
    return f"{name} reaches {median} {within} (median of {seeds}{interval}); confirmed."


def _confirmed(results: StudyResults, trial: str) -> Any:
    return results.confirmed.set_index("trial").loc[trial]


def _searched_s(results: StudyResults, trial: str) -> float:
    """Return the seconds to the target of one run of the search."""
    crossed = results.trials["crossed_s"][results.trials["trial"] == trial]
    return float(crossed.iloc[0])


def _price(results: StudyResults, worker_seconds: float) -> str:
    price = results.study["study"].get("price")
    if price is None:
        return ""
    return f" or {worker_seconds / 3600 * price:.3g} at {price:g} per worker-hour"


def _target(results: StudyResults) -> str:
    if results.target is None:
        return "no target"
    return target_words(results.metric, results.target)


def target_words(metric: Metric, target: float) -> str:
    """Return a target for a sentence: `95 %` of accuracy, `RMSE 0.4`."""
    number = f"{100 * target:g} %" if metric.is_share else f"{target:g}"
    return number if metric == ACCURACY else f"{metric.words} {number}"
