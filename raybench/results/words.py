"""The verdict of a study in sentences."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pandas as pd

from raybench.core.metric import ACCURACY, Metric
from raybench.core.record import RunRecord
from raybench.core.standing import held_per_trained
from raybench.results.load import StudyResults
from raybench.results.verdict import Verdict, guessing_lines, judge_each, optimism_lines

MOST_NAMED = 5
"""Trials named in a sentence."""


def counted(number: int, noun: str) -> str:
    """Return `1 run`, `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return seconds for people: `0.59 s`, `12.3 s`, `4.2 min`, `3.1 h`."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.3g} s"


def verdict_lines(results: StudyResults, verdict: Verdict | None) -> list[str]:
    """Return the outcome in one or two sentences."""
    if verdict is None:
        return guessing_lines(results) or [_nothing(results)]
    each = judge_each(results)
    if len(each) > 1:
        head = "Several models of GPU, each ranked by itself:"
        return [head, *(_on(kind, results, one) for kind, one in each.items())]
    lines = _timed(results, verdict) if results.is_timed else [_best(results, verdict)]
    return [*lines, *_tied(results, verdict), *optimism_lines(results, verdict)]


def _tied(results: StudyResults, verdict: Verdict) -> list[str]:
    """Name those that ran again, and count those that ran once."""
    if not verdict.is_confirmed:
        return []
    what = "fastest" if results.is_timed else results.metric.superlative
    others, cheap = verdict.others(), verdict.others(is_cheapest=True)
    sentences, once = [], len({*verdict.once, *verdict.cheapest_once})
    if (verdict.fastest, set(others)) == (verdict.cheapest, set(cheap)):
        what, cheap = "winner", ()
    for which, tied in ((what, others), ("cheapest", cheap)):
        if tied:
            sentences.append(f"Statistically tied with the {which}: {named_trials(tied)}.")
    if once:
        sentences.append(f"{counted(once, 'other trial')} ran once and cannot be excluded.")
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


def how_run(found: Any) -> str:
    """Say how the runs were made that a row of `confirmed` has its printed time of."""
    return "run alone" if found["is_alone"] else "run beside others"


def median_and_interval(metric: Metric, found: Any) -> list[float]:
    """Return the median and the ends of the interval of a row of `confirmed`, where it has any."""
    median, *ends = (
        found[f"{which}_{metric.name}"] for which in ("median", "interval_low", "interval_high")
    )
    return [median, *ends] if all(map(math.isfinite, ends)) else [median]


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
            f"No result: {named_trials(list(once))} reached the target of {target_of(results)} in "
            "the search, but none that ran again did with new seeds; name a target that runs "
            "reach each time, or raise objective.max_train_seconds (with --fresh)."
        )
    return " ".join([_missed(results, reached), *_start_up(results)])


def _missed(results: StudyResults, reached: str) -> str:
    """Say why nothing reached the target, and what follows from it."""
    aim, by_reference = target_of(results), _reference_s(results)
    trials = results.trials[results.trials["role"] == "trial"]
    who = f"No run reached the target of {aim}"
    if by_reference is not None:
        who = f"No trial reached the target of {aim}, a reference run did, after "
        who += f"{by_reference:.3g} s of training"
        best = results.metric.best(trials[results.metric.best_column])
        reached = f"the best of the trials was {results.metric.shown(best)}"
    if ended := cut_by_budget(results):
        return f"{who}: {ended}; with a longer --time-budget the same command goes on from there."
    advice = "name one that runs reach, or raise objective.max_train_seconds (with --fresh)"
    return f"{who}: {reached}{_too_late(results)}; {advice}."


def _too_late(results: StudyResults) -> str:
    """Say of runs that were at the target once why that did not count."""
    metric, target = results.metric, results.target
    if target is None:
        return ""
    there = [one for one in _trials(results) if _is_there(one.best_value, metric, target)]
    if not there:
        return ""
    if results.hold > 1 and any(one.ledger["train"] <= _most_s(one) for one in there):
        return f", but never in {results.hold} evaluations in a row (objective.hold)"
    return f", but not within {_most_s(there[0]):g} s of training (objective.max_train_seconds)"


def _is_there(value: float | None, metric: Metric, target: float) -> bool:
    return value is not None and metric.reaches(value, target)


def _most_s(run: RunRecord) -> float:
    return run.spec.objective.max_train_seconds


def _trials(results: StudyResults) -> list[RunRecord]:
    return [one for one in results.runs.values() if one.role == "trial"]


def _reference_s(results: StudyResults) -> float | None:
    """Return the least seconds in which a reference run reached the target; None if none did."""
    runs = results.trials[results.trials["role"] == "reference"]
    found = runs["crossed_s"].min()
    return None if math.isnan(found) else float(found)


def cut_by_budget(results: StudyResults) -> str:
    """Say where the time budget ended the search before its trials were done; "" where not."""
    search = results.study["study"].get("search") or {}
    budget, asked, done = search.get("time_budget_s"), search.get("trials"), _trials(results)
    is_cut = any(one.stop == "time_budget" for one in results.runs.values())
    if budget is None or not (is_cut or (isinstance(asked, int) and not done)):
        return ""
    of = f" of {asked:,}" if isinstance(asked, int) else ""
    return f"the time budget of {budget:g} s ended the search after {len(done)}{of} trials"


def _start_up(results: StudyResults) -> list[str]:
    """Say where most of a spent budget went to what comes before training, and what would do."""
    trials = results.trials
    if not cut_by_budget(results):
        return []
    ready, trained = trials[["start_s", "setup_s", "compile_s"]].sum(axis=1), trials["train_s"]
    if ready.sum() <= trained.sum():
        return []
    reference = trials[trials["role"] == "reference"]
    known = [float(seconds) for seconds in trials["crossed_s"].dropna()]
    needed = max(ready) + (min(known) if known else max(map(_most_s, results.runs.values())))
    needed += span_s(reference) or 0.0
    return [
        f"Starting workers, set-up and compiling took {ready.sum():.3g} s of these runs, training "
        f"{trained.sum():.3g} s; a first answer needs about {float(f'{needed:.2g}'):g} s here."
    ]


def span_s(trials: pd.DataFrame) -> float | None:
    """Return the seconds from the first run's begin to the last one's end; None if not known."""
    ended = trials["finished_at"].dropna()
    if ended.empty:
        return None
    begun = (ended - pd.to_timedelta(trials["wall_s"].loc[ended.index], unit="s")).min()
    return float((ended.max() - begun).total_seconds())


def _timed(results: StudyResults, verdict: Verdict) -> list[str]:
    billed = as_billed(results)
    winners = [("Fastest", verdict.fastest), (f"Cheapest{billed}", verdict.cheapest)]
    if verdict.fastest == verdict.cheapest:
        winners = [(f"Fastest and cheapest{billed}", verdict.fastest)]
    lines = [f"{what}: {_reaches(results, trial, verdict)}" for what, trial in winners]
    return [*lines, *_other_way_round(results, verdict)]


def _other_way_round(results: StudyResults, verdict: Verdict) -> list[str]:
    """Say why the fastest takes longer, or the cheapest costs more, where it is printed so.

    They are chosen by the race, and printed by runs alone, which had no part in that.
    """
    if not verdict.is_confirmed or verdict.fastest == verdict.cheapest:
        return []
    fastest, cheapest = (
        confirmed_row(results, trial) for trial in (verdict.fastest, verdict.cheapest)
    )
    lines = []
    if fastest["printed_s"] > cheapest["printed_s"]:
        lines.append(
            f"The race chose the fastest, by {fastest['expected_s']:.2f} s against "
            f"{cheapest['expected_s']:.2f} s; in the runs printed above, which chose nothing, "
            "chance turned it round."
        )
    name = "worker_seconds_to_target"
    if cheapest[name] > fastest[name] and not as_billed(results):
        costs = [float(row["expected_s"] * row["num_workers"]) for row in (cheapest, fastest)]
        lines.append(
            f"The race chose the cheapest, by {costs[0]:.2f} worker-seconds against "
            f"{costs[1]:.2f}; in the runs printed above, which chose nothing, chance turned it "
            "round."
        )
    return lines


def _reaches(results: StudyResults, trial: str, verdict: Verdict) -> str:
    run = results.runs[trial]
    name = f"{results.label(run.spec)} (trial {trial})"
    if not verdict.is_confirmed:
        seconds = searched_s(results, trial)
        mark = searched_mark(results, trial)
        reaches = f"reaches {target_of(results)} after {seconds:.2f} s{mark}"
        proof = "unconfirmed: one search trial"
    else:
        found = confirmed_row(results, trial)
        seconds, hits, runs = float(found["printed_s"]), found["new_hits"], found["new_runs"]
        if not hits:
            return (
                f"{name} reached {target_of(results)} after {found['search_s']:.2f} s in the "
                f"search, but in none of {counted(runs, 'new seed')}, {how_run(found)}: not "
                "confirmed."
            )
        mark = ", interpolated" if found["is_interpolated"] else ""
        ends = (
            f"90 % interval: {found['interval_low_s']:.2f} to {found['interval_high_s']:.2f}{mark}"
        )
        reaches = f"reaches {target_of(results)} after {seconds:.2f} s ({ends})"
        if hits < runs:
            reaches = (
                f"reaches {target_of(results)} in {hits} of {runs} runs: expect {seconds:.2f} s "
                f"({ends}) counting what misses cost"
            )
        proof = f"confirmed by {hits} of {counted(runs, 'new seed')}, {how_run(found)}"
        is_missed = hits < runs or found["hits"] < found["runs"]
        if (
            is_missed
            and results.repeated[trial].chosen_runs != results.repeated[trial].printed_runs
        ):
            proof += f"; chosen with {found['hits']} of {found['runs']}"
        proof += _tested(results, found)
    workers, within = run.spec.num_workers, ""
    if workers > 1 and verdict.is_confirmed and trial == verdict.cheapest != verdict.fastest:
        low, high = (workers * found[f"interval_{end}_s"] for end in ("low", "high"))
        within = f" ({low:.2f} to {high:.2f})"
    cost = workers * seconds
    cost_words = f"{cost:.2f} worker-seconds{within}{price_of(results, cost, trial)}"
    return f"{name} {reaches}, {cost_words}; {proof}."


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
    found = confirmed_row(results, run.trial)
    budget = results.study["study"]["objective"].get("max_train_seconds")
    within = "at the budget" if budget is None else f"within {budget:g} s of training"
    median, *ends = (metric.shown(value) for value in median_and_interval(metric, found))
    interval = f", 90 % interval: {ends[0].removesuffix(' %')} to {ends[1]}" if ends else ""
    seeds = counted(found["new_runs"], "new seed") + f" {how_run(found)}"
    proof = f"confirmed{_tested(results, found)}"
    return f"{name} reaches {median} {within} (median of {seeds}{interval}); {proof}."


def _tested(results: StudyResults, found: Any) -> str:
    """Say what the runs that are printed reach on the test split, where that was measured."""
    metric = results.metric
    value, *ends = (
        found[name]
        for name in (metric.test_column, f"test_low_{metric.name}", f"test_high_{metric.name}")
    )
    if math.isnan(value):
        return "" if results.has_test else "; not tested: there is no test split"
    low, high = map(metric.shown, ends)
    has_ends = not any(map(math.isnan, ends))
    interval = f" (90 % interval: {low.removesuffix(' %')} to {high})" if has_ends else ""
    return f"; test {metric.words} {metric.shown(value)}{interval}"


def confirmed_row(results: StudyResults, trial: str) -> Any:
    """Return a trial's row of `confirmed`."""
    return results.confirmed.set_index("trial").loc[trial]


def by_the_wall(results: StudyResults, trial: str, train_s: float) -> str:
    """Return ` (0.7 s with evaluation, after 0.4 s of set-up)`: what is waited for, by the
    ledgers of a trial's runs alone; "" where it had none."""
    one = results.repeated.get(trial)
    if one is None or not one.is_alone:
        return ""
    ledgers = [results.runs[name].ledger for name in one.printed_runs]

    def seconds(*phases: str) -> float:
        return statistics.median(sum(ledger[phase] for phase in phases) for ledger in ledgers)

    longer = seconds("train", "eval", "checkpoint", "report") / seconds("train")
    ready = duration(seconds("start", "setup", "compile"))
    return f" ({duration(longer * train_s)} with evaluation, after {ready} of set-up)"


def searched_s(results: StudyResults, trial: str) -> float:
    """Return the seconds to the target of one run of the search."""
    crossed = results.trials["crossed_s"][results.trials["trial"] == trial]
    return float(crossed.iloc[0])


def refuted_words(results: StudyResults, trial: str) -> str:
    """Say of a run that reached the target that none with a new seed did; "" of others."""
    again = results.repeated.get(trial)
    if again is None or results.runs[trial].time_to_target_s is None:
        return ""
    runs = counted(len(again.printed_runs), "run")
    return f"reached it once, in 0 of {runs} with new seeds"


def searched_mark(results: StudyResults, trial: str) -> str:
    """Return what is to be said behind these seconds."""
    row = results.trials[results.trials["trial"] == trial].iloc[0]
    is_between = row["is_interpolated"]
    return " (interpolated)" if not pd.isna(is_between) and bool(is_between) else ""


def as_billed(results: StudyResults) -> str:
    """Return what stands behind "cheapest" in a study that names a price."""
    return "" if results.study["study"].get("price") is None else " as billed"


def price_of(results: StudyResults, worker_seconds: float, trial: str | None = None) -> str:
    """Return ` or 0.11 as billed at 4 per worker-hour (0.02 of training alone)`, where the study
    names a price.

    Billed is what a run's workers are held for: start-up, set-up, compilation, evaluation too, by
    the ledgers of the runs that are printed of a trial (none: of all runs).
    """
    price = results.study["study"].get("price")
    if price is None:
        return ""
    one = None if trial is None else results.repeated.get(trial)
    names = results.runs if trial is None else [trial] if one is None else one.printed_runs
    money = worker_seconds / 3600 * price
    billed = money * held_per_trained(results.runs[name] for name in names)
    return (
        f" or {billed:.3g} as billed at {price:g} per worker-hour ({money:.3g} of training alone)"
    )


def target_of(results: StudyResults) -> str:
    """Return the study's target for a sentence."""
    if results.target is None:
        return "no target"
    return target_words(results.metric, results.target)


def target_words(metric: Metric, target: float) -> str:
    """Return a target for a sentence: `95 %` of accuracy, `RMSE 0.4`."""
    number = f"{100 * target:g} %" if metric.is_share else f"{target:g}"
    return number if metric == ACCURACY else f"{metric.words} {number}"


def target_in_words(results: StudyResults) -> str:
    """Return the target with what it is of: `95 % accuracy`, `RMSE 10`."""
    words = target_of(results)
    return f"{words} accuracy" if results.metric == ACCURACY else words


def value_words(results: StudyResults, value: float | None) -> str:
    """Return a value of the metric, named: `validation accuracy 97.3 %`."""
    return f"validation {results.metric.words} {results.metric.shown(value)}"


def target_sentence(results: StudyResults) -> str:
    """Return what a run is asked for, in a sentence."""
    objective = results.study["study"]["objective"]
    budget = objective.get("max_train_seconds")
    within = "" if budget is None else f" within {duration(budget)} of training"
    if not results.is_timed:
        return f"The best validation {results.metric.words}{within}."
    hold = objective.get("hold") or 1
    held = "" if hold == 1 else f" in {hold} evaluations in a row"
    by = results.study.get("target_set_by")
    who = f". Set by {by}" if isinstance(by, str) and by != "the user" else ""
    return f"{target_in_words(results)} on the validation set{held}{within}{who}."
