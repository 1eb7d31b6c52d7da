"""The comment above a winner's run spec, in best.yaml and cheapest.yaml."""

import math

from raybench.core.metric import Metric
from raybench.core.text import clean
from raybench.results.load import StudyResults
from raybench.results.next_steps import again
from raybench.results.verdict import Verdict
from raybench.results.words import (
    confirmed_row,
    counted,
    how_run,
    median_and_interval,
    searched_mark,
    searched_s,
)


def spec_comment(results: StudyResults, trial: str, verdict: Verdict | None, what: str) -> str:
    """Return the comment that stands above the spec in best.yaml and cheapest.yaml."""
    run = results.runs[trial]
    name = f"{what} of {clean(results.name)}: trial {trial}, {results.label(run.spec)}"
    if verdict is not None and verdict.is_confirmed:
        proof = _proof(results, trial)
    elif run.time_to_target_s is None or not results.is_timed:
        value = _number(results.metric, run.best_value)
        proof = (
            f"unconfirmed: {results.metric.words} {value} after {run.ledger['train']:.3f} s in one "
            "search trial"
        )
    else:
        seconds, mark = searched_s(results, trial), searched_mark(results, trial)
        proof = f"unconfirmed: target after {seconds:.3f} s{mark} in one search trial"
    return f"{name}\n{proof}\nrun it again: {again(results, 'train', 'THIS_FILE')}"


def _proof(results: StudyResults, trial: str) -> str:
    found, metric = confirmed_row(results, trial), results.metric
    if not found["new_hits"]:
        return (
            f"not confirmed: target after {found['search_s']:.3f} s"
            f"{searched_mark(results, trial)} in one search trial, reached by 0 of "
            f"{counted(found['new_runs'], 'new seed')} {how_run(found)}"
        )
    tested = ""
    if not math.isnan(found[metric.test_column]):
        tested = f", test {metric.words} {_number(metric, found[metric.test_column])}"
    seeds = f"{counted(found['new_runs'], 'new seed')} {how_run(found)}"
    if results.is_timed:
        mark = ", interpolated" if found["is_interpolated"] else ""
        ends = (
            f"90 % interval: {found['interval_low_s']:.3f} to {found['interval_high_s']:.3f}{mark}"
        )
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
    median, *ends_of = (_number(metric, value) for value in median_and_interval(metric, found))
    within = f", 90 % interval: {ends_of[0]} to {ends_of[1]}" if ends_of else ""
    return f"confirmed: {metric.words} {median} at the budget (median of {seeds}{within}){tested}"


def _number(metric: Metric, value: float | None) -> str:
    """Return a value as it stands in files: shares as fractions."""
    if value is None:
        return "not known"
    return f"{value:.4f}" if metric.is_share else f"{value:.6g}"
