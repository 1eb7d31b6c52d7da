"""Numbers, targets and prices as sentences have them."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from raybench.results.ranking import repeated
from raybench.results.study import Study
from raybench.spec.metric import ACCURACY, Metric
from raybench.spec.text import clean, shorten
from raybench.spec.text import counted as counted
from raybench.stats.record import RunRecord
from raybench.stats.standing import held_per_trained

MOST_NAMED = 5
"""Trials named in a sentence."""
ROLES = {
    "reference": "reference: default settings, first",
    "trial": "search",
    "placement_check": "placement check: was predicted",
    "race": "race: new seed, beside others",
    "confirm": "confirm: new seed, alone",
    "scaling": "repeat of a cell",
    "pair": "run of a pair",
}
"""Purpose of a run, in words."""
ENDINGS = {
    "target": "the target was reached",
    "max_train_seconds": "its seconds of training were over",
    "epochs": "its epochs were done",
    "interrupted": "it was interrupted",
    "time_budget": "the time budget was over",
}
"""Why a run ended, by its `stop`."""


def duration(seconds: float) -> str:
    """Return seconds for people: `0.59 s`, `12.3 s`, `4.2 min`, `3.1 h`."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.3g} s"


def digits(number: float) -> str:
    """Return seconds or worker-seconds with the digits of `duration`: `0.59`, `12.3`, `5,120`."""
    if number < 10:
        return f"{number:.2f}"
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def named_trials(trials: Sequence[str]) -> str:
    """Return `trial 0003`, `trials 0003, 0004`, the first MOST_NAMED of more."""
    more = len(trials) - MOST_NAMED
    named = ", ".join(trials[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{'trial' if len(trials) == 1 else 'trials'} {named}"


def unranked_lines(results: Study) -> list[str]:
    """Return a sentence for every reason for which trials of the search were not ranked."""
    searched = results.trials[results.trials["phase"] == "search"]
    reasons = searched.groupby("unranked", sort=False)["trial"]
    return [f"Not ranked, {why}: {named_trials(list(trials))}." for why, trials in reasons]


def span_s(trials: pd.DataFrame) -> float | None:
    """Return the seconds from the first run's begin to the last one's end; None if not known."""
    ended = trials["finished_at"].dropna()
    if ended.empty:
        return None
    begun = (ended - pd.to_timedelta(trials["wall_s"].loc[ended.index], unit="s")).min()
    return float((ended.max() - begun).total_seconds())


def by_the_wall(results: Study, trial: str, train_s: float) -> str:
    """Return `0.7 s with evaluation, after 0.4 s of set-up`: what is waited for, by the ledgers of
    a trial's runs alone; "" where it had none."""
    one = repeated(results).get(trial)
    if one is None or not one.is_alone:
        return ""
    ledgers = [results.runs[name].ledger for name in one.printed_runs]

    def seconds(*phases: str) -> float:
        return statistics.median(sum(ledger[phase] for phase in phases) for ledger in ledgers)

    longer = seconds("train", "eval", "checkpoint", "report") / seconds("train")
    ready = duration(seconds("start", "setup", "compile"))
    return f"{duration(longer * train_s)} with evaluation, after {ready} of set-up"


def refuted_words(results: Study, trial: str) -> str:
    """Say of a run that reached the target that none with a new seed did; "" of others."""
    again = repeated(results).get(trial)
    if again is None or results.runs[trial].time_to_target_s is None:
        return ""
    runs = counted(len(again.printed_runs), "run")
    return f"reached it once, in 0 of {runs} with new seeds"


def as_billed(results: Study, trial: str) -> str:
    """Return what stands behind "cheapest" in a study that names a price."""
    return "" if bill_of(results, 0.0, trial) is None else " as billed"


def _printed_runs(results: Study, trial: str) -> list[RunRecord]:
    """Return the runs that are printed of a trial: its new ones, else its own."""
    one = repeated(results).get(trial)
    return [results.runs[name] for name in ([trial] if one is None else one.printed_runs)]


class Bill(NamedTuple):
    """Bill of a training."""

    price: float
    """Money for a worker-hour."""
    money: float
    """Money for training alone."""
    billed: float
    """Money for all that the workers are held for: start-up, set-up, compilation and evaluation
    too."""


def bill_of(results: Study, worker_seconds: float, trial: str | None = None) -> Bill | None:
    """Return the bill of so many worker-seconds of training, by the ledgers of the runs that are
    printed of a trial (none: of all runs); None where the study names no price."""
    runs = list(results.runs.values()) if trial is None else _printed_runs(results, trial)
    price = results.study["study"].get("price")
    if price is None:
        return None
    money = worker_seconds / 3600 * price
    return Bill(price, money, money * held_per_trained(runs))


def price_of(results: Study, worker_seconds: float, trial: str | None = None) -> str:
    """Return ` or 0.11 as billed at 4 per worker-hour (0.02 of training alone)`, see `bill_of`; ""
    without a price."""
    if (bill := bill_of(results, worker_seconds, trial)) is None:
        return ""
    return (
        f" or {bill.billed:.3g} as billed at {bill.price:g} per worker-hour ({bill.money:.3g} of "
        "training alone)"
    )


def target_words(metric: Metric, target: float) -> str:
    """Return a target for a sentence: `95 %` of accuracy, `RMSE 0.4`."""
    number = f"{100 * target:g} %" if metric.is_share else f"{target:g}"
    return number if metric == ACCURACY else f"{metric.words} {number}"


def target_in_words(results: Study) -> str:
    """Return the target with what it is of: `95 % accuracy`, `RMSE 10`."""
    if results.target is None:
        return "no target"
    words = target_words(results.metric, results.target)
    return f"{words} accuracy" if results.metric == ACCURACY else words


def within_budget(budget: float | None) -> str:
    """Return `within 3 s of training`."""
    return "at the budget" if budget is None else f"within {duration(budget)} of training"


def target_sentence(results: Study) -> str:
    """Return what a run is asked for, in a sentence."""
    objective = results.study["study"]["objective"]
    budget = objective.get("max_train_seconds")
    within = "" if budget is None else f" {within_budget(budget)}"
    if not results.is_timed:
        return f"The best validation {results.metric.words}{within}."
    hold = objective.get("hold") or 1
    held = "" if hold == 1 else f" in {hold} evaluations in a row"
    by = results.study.get("target_set_by")
    who = f". Set by {by}" if isinstance(by, str) and by != "the user" else ""
    return f"{target_in_words(results)} on the validation set{held}{within}{who}."


LONGEST_FAULT = 300
"""Characters of an error that a sentence shows."""


def fault_words(error: Exception) -> str:
    """Return an error of the code's own in a few words."""
    return shorten(clean(f"{type(error).__name__}: {error}"), LONGEST_FAULT)
