"""The summary of a study in sentences, which is the same on the terminal, on the page, in JSON and
in Python. This module also writes the comment in best.yaml, and displays a study in notebooks."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.report import scaling_printed
from raybench.report.confidence import (
    as_what,
    code_line,
    confidence_of,
    disturbed_line,
    edge_lines,
    target_warning,
    unranked_lines,
)
from raybench.report.console import texts
from raybench.report.pairs import comparison_of, sentences
from raybench.report.words import (
    digits,
    duration,
    named_trials,
    price_of,
    refuted_words,
    target_in_words,
    target_words,
    wall_clock_words,
    within_budget,
)
from raybench.results.place import place_in_words
from raybench.results.ranking import (
    ConfigurationResult,
    configurations,
    cost_of,
    gpu_models,
    nearest,
    ranked_runs,
    repeated,
    result_of,
)
from raybench.results.store import DIAGNOSIS, IMPORTED, StudyKind
from raybench.results.study import Study
from raybench.results.trials import configuration_of
from raybench.results.verdict import (
    Verdict,
    best_of,
    is_better_than_baseline,
    judged_on,
    verdict_of,
    verdicts_of,
)
from raybench.scaling.cells import scaling_cells
from raybench.spec.documents import read_mapping
from raybench.spec.metric import METRICS, Metric
from raybench.spec.objective import GUESSES, StopReason
from raybench.spec.run import RATE, RunSpec, describe, flat, named_optimizer, value_of
from raybench.spec.space import is_one_of
from raybench.spec.text import clean, counted, identity, seconds_text
from raybench.stats.record import Phase, Role, State

FRAMEWORK_NAMES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "python": "plain Python"}
LEAST_DIFFERENCE = 0.005
"""Minimum fraction by which two costs, or two times, must differ for the summary to mention it."""


def configuration_words(results: Study, spec: RunSpec) -> str:
    """Return a configuration in words: `PyTorch on 2 workers, batch size 64 per worker, ...`."""
    if results.is_imported:
        return results.label(spec)
    batch = f"batch size {spec.batch_size_per_worker}"
    batch += " per worker" if spec.num_workers > 1 else ""
    batch += f" in each of {spec.accumulate} passes" if spec.accumulate > 1 else ""
    optimizer = named_optimizer(spec)
    text = (
        f"{FRAMEWORK_NAMES.get(spec.framework, spec.framework)} on "
        f"{counted(spec.num_workers, 'worker')}, {batch}, "
        f"{'' if optimizer == RATE else f'{optimizer} at '}learning rate {spec.learning_rate:.3g}"
    )
    searched = results.label(spec).removeprefix(describe(spec)).strip()
    return f"{text}, {searched}" if searched else text


@dataclass(frozen=True)
class Summary:
    """Findings of a study, as sentences."""

    conclusions: Sequence[Sequence[str]]
    """Paragraphs, each a sequence of sentences; the most important comes first."""
    confidence: str = ""
    """Sentences about the evidence for the winner; empty if there is no winner."""
    caveats: Sequence[str] = ()
    """Sentences that limit the conclusions, such as those about ties, disturbed runs, and winners
    at the end of a searched range."""

    @property
    def lines(self) -> list[str]:
        """The conclusions, one string per paragraph."""
        return [clean(" ".join(paragraph)) for paragraph in self.conclusions]


def summary_of(results: Study) -> Summary:
    """Return the summary of a study of any kind (search, training, scaling study, ...).

    A search that ran on several GPU models has a winner for each of them. If no run reached the
    target, the summary explains why, and names the run that came nearest.
    """
    notes = [str(note) for note in results.study.get("notes") or []]
    if (pairs := comparison_of(results)) is not None:
        return Summary([(line,) for line in sentences(pairs)], caveats=notes)
    if results.trials.empty:
        return Summary([(f"No run has finished{' yet' if results.owner else ''}.",)], caveats=notes)
    if results.is_scaling:
        cells = scaling_cells(results)
        lines = scaling_printed.scaling_answer(cells)
        if not lines and (results.trials["state"] == State.FAILED).all():
            lines = [_why_no_winner(results)]
        lines = lines or ["No result: a speed-up needs measured runs on one worker and on several."]
        caveats = [
            *scaling_printed.outlier_lines(results),
            *scaling_printed.other_lines(cells),
            *scaling_printed.straggler_lines(results),
        ]
        caveats += notes
        return Summary([(line,) for line in lines], caveats=caveats)
    if results.kind is StudyKind.TRAINING:
        return Summary([(_training_sentence(results),)], caveats=notes)
    if results.kind is StudyKind.DIAGNOSIS:
        return Summary([(_diagnosis_sentence(results),)], caveats=notes)
    if results.is_imported:
        return Summary([(_import_sentence(results),)], caveats=notes)
    verdict = verdict_of(results)
    verdicts = {
        kind or "hosts without a GPU": gpu_verdict
        for kind, gpu_verdict in verdicts_of(results).items()
    }
    answer = [] if verdicts else [*(guessing_lines(results) or _no_winner_paragraphs(results))]
    caveats = []
    for kind, gpu_verdict in verdicts.items():
        prefix = f"On {kind}: " if len(verdicts) > 1 else ""
        answer += [(prefix + first, *further) for first, *further in _winners(results, gpu_verdict)]
        caveats += [prefix + line for line in _doubts(results, gpu_verdict)]
    caveats += [
        *code_line(results),
        *disturbed_line(results),
        *unranked_lines(results),
        *edge_lines(results, verdict),
    ]
    return Summary(
        answer, confidence_of(results, verdict), [*caveats, *target_warning(results), *notes]
    )


def _diagnosis_sentence(results: Study) -> str:
    """Return the verdict that `raybench diagnose` has recorded."""
    file = results.folder / DIAGNOSIS
    if not file.is_file():
        return "No verdict: the diagnosis did not end; rerun the same command."
    return str(read_mapping(file).get("sentence"))


def _winners(results: Study, verdict: Verdict) -> list[tuple[str, ...]]:
    fastest, cheapest = (
        result_of(results, trial, is_confirmed=verdict.is_confirmed)
        for trial in (verdict.fastest, verdict.cheapest)
    )
    superlative, adjective = ("fastest", "fast") if results.is_timed else ("best", "good")
    if results.is_timed and verdict.is_one:
        superlative = "fastest and the cheapest"
    head = "Train with"
    if not fastest.new_hits:
        head = "Not confirmed yet. Best so far (selection-biased):"
    tied_clause = _others_as_good((*verdict.others(), *verdict.once), adjective)
    standing = f"the {superlative} of {tried_words(results)}{tied_clause}"
    first = f"{head} {configuration_and_trial(results, fastest.trial)}, {standing}."
    reached = f"It {reaches(results, fastest)}."
    paragraphs: list[tuple[str, ...]] = [
        (first, reached, *_compared_with_first(results, fastest.trial))
    ]
    if results.is_timed and not verdict.is_one:
        others = verdict.others(is_cheapest=True)
        tied_clause = _others_as_good((*others, *verdict.cheapest_once), "cheap")
        tied_clause += "; it may be as fast" if cheapest.trial in verdict.others() else ""
        tied_clause = f"{_relative_cost(results, fastest, cheapest)}{tied_clause}"
        second = f"The cheapest is {configuration_and_trial(results, cheapest.trial)}{tied_clause}."
        paragraphs.append((second, f"It {reaches(results, cheapest)}."))
    return paragraphs


def _compared_with_first(results: Study, winner: str) -> list[str]:
    """Return a list with a sentence that compares the winner with the first configuration of the
    user (`search.first`); [] if there is none, or if its trial has not ended."""
    firsts = (results.study["study"].get("search") or {}).get("first") or []
    settings = flat(firsts[0]) if firsts else {}
    matching = [
        name
        for name, run in sorted(results.runs.items())
        if run.role == Role.TRIAL
        and all(_has_setting(run.spec, *setting) for setting in settings.items())
    ]
    if not settings or not matching:
        return []
    first, metric = matching[0], results.metric
    phrase = f"your first configuration (trial {first})"
    seedless = [results.specs[name].model_copy(update={"seed": 0}) for name in (winner, first)]
    if seedless[0] == seedless[1]:
        return [f"It is {phrase}."]
    rows = configurations(results).set_index("trial")
    column = "time_to_target_s" if results.is_timed else metric.best_column
    outcomes = {name: float(rows[column].get(name, math.nan)) for name in (winner, first)}
    if results.is_timed and not math.isnan(outcomes[winner]) and not math.isnan(outcomes[first]):
        speedup = outcomes[first] / outcomes[winner]
        note = "" if rows["is_confirmed"][first] else ", one run"
        return [
            f"That is {speedup:.3g} times as fast as {phrase}, {duration(outcomes[first])}{note}."
        ]
    run = results.runs[first]
    best = metric.shown(run.best_value)
    if run.failure is not None:
        return [f"{phrase.capitalize()} failed ({run.failure})."]
    if results.is_timed and run.time_to_target_s is None:
        ended = "was stopped" if run.state == State.STOPPED else "ended"
        return [f"{phrase.capitalize()} {ended} short of the target, at {metric.words} {best}."]
    return [f"{phrase.capitalize()} reached {metric.words} {best}."]


def _has_setting(spec: RunSpec, key: str, value: Any) -> bool:
    """Return whether a key of a run spec has the given value, written as in a YAML file."""
    actual = value_of(spec, key)
    return is_one_of(key, actual, [value]) or identity(actual) == identity(value)


def configuration_and_trial(results: Study, trial: str) -> str:
    """Return the configuration of a trial in words, followed by `(trial 0012)`."""
    return f"{configuration_words(results, results.specs[trial])} (trial {trial})"


def tried_words(results: Study) -> str:
    """Return text such as `95 configurations tried (80 of them were stopped early as unpromising)`.

    A configuration does not count as tried if its runs had reported nothing when the time budget
    ended.
    """
    searched = results.trials[results.trials["phase"] == Phase.SEARCH]
    configuration = searched["trial"].map(configuration_of(results.trials))
    is_unknown = (
        searched["stop"].eq(StopReason.TIME_BUDGET) & searched[results.metric.best_column].isna()
    )
    num_unknown = len(set(configuration) - set(configuration[~is_unknown]))
    is_repeated = searched["trial"].isin(list(repeated(results)))
    # A configuration that was stopped may have run again with another seed.
    is_judged = searched["stop"].isin(
        (StopReason.SCHEDULER, StopReason.CAP)
    )  # the other stops are no judgment
    is_stopped = (searched["state"] == State.STOPPED) & is_judged & ~is_repeated
    configs = is_stopped[~is_unknown].groupby(configuration[~is_unknown]).all()
    num_stopped = int(configs.sum())
    verb = "was" if num_stopped == 1 else "were"
    parts = [f"{num_stopped:,} of them {verb} stopped early as unpromising"] if num_stopped else []
    parts += (
        [f"{num_unknown:,} more had not reported when the time budget ended"] if num_unknown else []
    )
    details = f" ({', '.join(parts)})" if parts else ""
    return f"{counted(len(configs), 'configuration')} tried{details}"


def _others_as_good(others: Sequence[str], adjective: str) -> str:
    return f"; {counted(len(others), 'other')} may be as {adjective}" if others else ""


def _cost(results: Study, result: ConfigurationResult) -> float:
    """Return the cost of training to the target, by which the cheapest configuration is chosen.

    It is in worker-seconds, or in billed worker-seconds if the study has a price.
    """
    configuration = repeated(results).get(result.trial)
    if configuration is not None:
        return result.seconds * configuration.cost
    return result.seconds * cost_of(results, result.num_workers, [result.trial])


def _relative_cost(
    results: Study, fastest: ConfigurationResult, cheapest: ConfigurationResult
) -> str:
    """Return text that compares cost and time of the cheapest configuration with those of the
    fastest; "" if they hardly differ."""
    if fastest.new_runs and not (fastest.new_hits and cheapest.new_hits):
        return ""  # one of the two times is selection-biased: it comes from the search
    share = _cost(results, cheapest) / _cost(results, fastest)
    longer = cheapest.seconds / fastest.seconds
    if share > 1 - LEAST_DIFFERENCE or longer < 1 + LEAST_DIFFERENCE:
        return ""
    cost = f"{100 * share:.0f} % as much as the fastest"
    return f"; it costs {cost} and takes {longer:.3g} times as long"


def _new_runs(result: ConfigurationResult) -> str:
    """Return text such as `3 runs with new seeds, each alone on the machine`."""
    manner = "each alone on the machine" if result.is_alone else "in parallel"
    return f"{counted(result.new_runs, 'run')} with new seeds, {manner}"


def reaches(results: Study, result: ConfigurationResult) -> str:
    """Return text such as `reaches 95 % accuracy after 0.55 s of training (...), ...; confirmed by
    3 of ...`."""
    if not results.is_timed:
        return _reaches_value(results, result)
    aim, rate, price = target_in_words(results), "", price_of(results, result.cost, result.trial)
    cost = f"{digits(result.cost)} worker-seconds{price}"
    if not result.new_runs:
        mark = " (interpolated)" if result.is_interpolated else ""
        after = f"{duration(result.search_s)}{mark} of training"
        return (
            f"reaches {aim} after {after}, at a cost of {cost}; unconfirmed: one run of the search"
        )
    if not result.new_hits:
        after = f"{duration(result.search_s)} of training in the search"
        return f"reached {aim} after {after}, but in none of {_new_runs(result)}"
    if result.every_hit < result.every_run:
        rate = f" in {result.every_hit} of {result.every_run} runs"
        rate += (
            ", misses counted," if result.new_hits < result.new_runs else ", and of its runs alone"
        )
    mark = ", interpolated" if result.is_interpolated else ""
    low, high = digits(result.interval_low_s), digits(result.interval_high_s)
    interval = f"90 % interval: {low} to {high} s{mark}"
    wall_clock = wall_clock_words(results, result.trial, result.seconds)
    details = "; ".join(filter(None, [interval, wall_clock]))
    return (
        f"reaches {aim}{rate} after {duration(result.seconds)} of training ({details}), at a cost "
        f"of {cost}; confirmed by {result.new_hits} of {_new_runs(result)}"
        f"{_test_words(results, result)}"
    )


def _reaches_value(results: Study, result: ConfigurationResult) -> str:
    """Return text such as `reaches accuracy 95.2 % within 3 s of training (median; ...);
    confirmed by 3 of ...`."""
    metric = results.metric
    seconds = results.study["study"]["objective"].get("max_train_seconds")
    budget = None if seconds is None else float(seconds)
    reached = f"reaches {metric.words} {metric.shown(result.value)} {within_budget(budget)}"
    if not result.new_runs:
        return f"{reached}; unconfirmed: one run of the search"
    notes = ["median"]
    ends = result.interval_low, result.interval_high
    if all(map(math.isfinite, ends)):
        notes.append(f"90 % interval: {between(metric, ends)}")
    if budget is not None:
        notes.append(wall_clock_words(results, result.trial, budget))
    details = "; ".join(filter(None, notes))
    return (
        f"{reached} ({details}); confirmed by {result.new_hits} of {_new_runs(result)}"
        f"{_test_words(results, result)}"
    )


def between(metric: Metric, ends: tuple[float, float]) -> str:
    """Return an interval of metric values as text such as `94.1 to 96.3 %`."""
    low, high = map(metric.shown, ends)
    return f"{low.removesuffix(' %')} to {high}"


def _test_words(results: Study, result: ConfigurationResult) -> str:
    """Return the end of a sentence: the value on the test split, or that there is no such split."""
    metric = results.metric
    if math.isnan(result.test):
        return "" if results.has_test else "; not tested: there is no test split"
    test_ends = result.test_low, result.test_high
    interval = (
        "" if math.isnan(sum(test_ends)) else f" (90 % interval: {between(metric, test_ends)})"
    )
    return f"; test {metric.words} {metric.shown(result.test)}{interval}"


def _doubts(results: Study, verdict: Verdict) -> list[str]:
    """Return sentences about ties, configurations that ran only once, and a missing baseline."""
    if not verdict.is_confirmed:
        return []
    tied, cheap_tied = verdict.others(), verdict.others(is_cheapest=True)
    superlative = "fastest" if results.is_timed else results.metric.superlative
    if verdict.is_one and set(tied) == set(cheap_tied):
        superlative, cheap_tied = "winner", ()
    lines = [
        f"Statistically tied with the {name}: {named_trials(names)}."
        for name, names in ((superlative, tied), ("cheapest", cheap_tied))
        if names
    ]
    if num_once := len({*verdict.once, *verdict.cheapest_once}):
        others = counted(num_once, "other configuration")
        may_be = f"may be as {as_what(results, verdict)}"
        lines.append(f"{others} ran only once or only in the search, and {may_be}.")
    if not results.baselines and results.metric.name not in METRICS:
        baseline = f"the baseline value of {results.metric.words} is not known"
        lines.append(f"Not compared with a baseline: {baseline}.")
    return lines


def spec_comment(results: Study, trial: str, verdict: Verdict | None, title: str) -> str:
    """Return the comment above the run spec in best.yaml or cheapest.yaml.

    Args:
        results: The study.
        trial: Trial whose run spec is written.
        verdict: The verdict; None if there is no winner.
        title: Beginning of the comment, such as `fastest`.
    """
    run, metric = results.runs[trial], results.metric
    name = f"{title} of {clean(results.name)}: trial {trial}, {results.label(run.spec)}"
    if verdict is not None:
        result = result_of(results, trial, is_confirmed=verdict.is_confirmed)
        proof = reaches(results, result)
    elif refuted := refuted_words(results, trial):
        proof = f"refuted: {refuted}"
    else:
        value, seconds = metric.shown(run.best_value), run.ledger["train"]
        kind = "reference run" if run.role == Role.REFERENCE else "search trial"
        proof = f"unconfirmed: {metric.words} {value} after {seconds_text(seconds)} s in one {kind}"
    return f"{name}\n{proof}\nrun it again: {results.command('train', 'THIS_FILE')}"


def _no_winner_paragraphs(results: Study) -> list[tuple[str, ...]]:
    """Return a list with one paragraph, which explains why there is no winner and names the run
    that came nearest."""
    reason, trial, metric = _why_no_winner(results), nearest(results), results.metric
    if trial is None:
        return [(reason,)]
    run = results.runs[trial]
    name = configuration_and_trial(results, trial)
    if refuted := refuted_words(results, trial):
        return [(reason, f"The nearest: {name} {refuted}.")]
    reached = f"{metric.words} {metric.shown(run.best_value)}"
    after = f"{duration(run.ledger['train'])} of training"
    return [(reason, f"The nearest, one run, not confirmed: {name}, {reached} after {after}.")]


def guessing_lines(results: Study) -> list[tuple[str, ...]]:
    """Return one paragraph for each GPU model whose best configuration is no better than guessing.

    The list is empty if any GPU model has a winner.
    """
    lines: list[tuple[str, ...]] = []
    for kind in [] if verdicts_of(results) else gpu_models(results.trials):
        verdict = best_of(results, kind)
        if verdict is None or is_better_than_baseline(results, verdict) is not False:
            continue
        part_and_value, metric = judged_on(results, verdict), results.metric
        assert part_and_value is not None
        part, value = part_and_value
        baseline = results.baselines[part]
        conclusion = "it is no better than guessing" if part == "test" else "that may be chance"
        guess = GUESSES.get(metric.name, "guessing")
        first = (
            f"No winner: {results.label(results.specs[verdict.fastest])} (trial "
            f"{verdict.fastest}) did best in validation, but on the {part} rows "
            f"{conclusion} ({metric.shown(value)} of {baseline.rows:,}; {guess} gives "
            f"{metric.shown(baseline.value)})."
        )
        advice = "There may be nothing to learn in these inputs, or too few rows to show it."
        lines.append((first, advice))
    return lines


def _why_no_winner(results: Study) -> str:
    """Return a sentence that explains why there is no winner, and what to change."""
    trials, metric, target = results.trials, results.metric, results.target
    candidates = ranked_runs(trials)  # as in `nearest`, so that both name the same value
    if candidates.empty:
        candidates = trials[trials["state"] != State.FAILED]
    best = metric.best(candidates[metric.best_column])
    failed = int((trials["state"] == State.FAILED).sum())
    if results.owner:
        progress = "nothing was measured so far"
        if best is not None:
            progress = f"the best so far is {metric.shown(best)}"
        elif failed:
            progress = f"{failed} of {counted(len(trials), 'run')} failed so far"
        return f"No result yet, and the study is still running: {progress}."
    if failed == len(trials):
        return f"No result: {'the run' if failed == 1 else f'all {failed} runs'} failed."
    if failed and best is None:
        return f"No result: {failed} of {len(trials)} runs failed, and none of the others reported."
    reached = "nothing was measured" if best is None else f"the best was {metric.shown(best)}"
    if results.is_target_awaited:
        ended = "; a longer --time-budget lets reference runs set it"
        return f"No result: the study ended before its target was set; {reached}{ended}."
    if not results.is_timed or target is None:
        return f"No result: {reached}."
    aim = target_in_words(results)
    reaching = trials["trial"][(trials["phase"] == Phase.SEARCH) & trials["crossed_s"].notna()]
    if set(reaching) & set(repeated(results)):
        return (
            f"No result: {named_trials(list(reaching))} reached the target of {aim} in "
            "the search, but none that ran again did with new seeds; name a target that runs "
            "reach each time, or raise objective.max_train_seconds (with --fresh)."
        )
    trial_runs = trials[trials["role"] == Role.TRIAL]
    subject = f"No {'trial' if len(trial_runs) else 'run'} reached the target of {aim}"
    if ended := _cut_by_budget(results):
        hint = "rerun the same command with a longer --time-budget to resume."
        return f"{subject}: {ended}; {hint}"
    if best is not None and metric.reaches(best, target):
        reached += ", but too late or not held (objective.max_train_seconds, objective.hold)"
    advice = "name one that runs reach, or raise objective.max_train_seconds (with --fresh)"
    return f"{subject}: {reached}; {advice}."


def _cut_by_budget(results: Study) -> str:
    """Return a clause about the time budget; "" unless it ended the search before all trials had
    run."""
    search = results.study["study"].get("search") or {}
    budget, num_asked = search.get("time_budget_s"), results.num_trials_asked
    num_done = int((results.trials["role"] == Role.TRIAL).sum())
    is_cut = any(run.stop == StopReason.TIME_BUDGET for run in results.runs.values())
    if budget is None or not (is_cut or (num_asked is not None and not num_done)):
        return ""
    total = "" if num_asked is None else f" of {num_asked:,}"
    return f"the time budget of {budget:g} s ended the search after {num_done}{total} trials"


NOTEBOOK_ROWS = 5
"""Maximum number of rows of the table in a notebook."""


def lines_of(results: Study) -> list[str]:
    """Return the summary, the number of runs, and a line with the study's folder and DataFrames."""
    summary = summary_of(results)
    return [*summary.lines, *map(clean, summary.caveats), _count_line(results), _frames(results)]


def _frames(results: Study) -> str:
    frames = ".trials, .curves, .confirmed, .configurations"
    if results.is_scaling:
        frames = ".scaling, .scaling_runs, .curves"
    place = clean(place_in_words(results.place, results.folder))
    return f"{place} (attributes: {frames}, .plot)"


def html_of(results: Study) -> str:
    """Return `lines_of` as HTML, with a table of the best configurations; all text is escaped."""
    summary = summary_of(results)
    head = "".join(f"<p><strong>{html.escape(line)}</strong></p>" for line in summary.lines)
    caveats = "".join(f"<p>{html.escape(clean(line))}</p>" for line in summary.caveats)
    footer = "<br>".join(map(html.escape, (_count_line(results), _frames(results))))
    table = f"{table_html(_best(results))}<p><small>{footer}</small></p>"
    return f'<div class="raybench-study">{head}{caveats}{table}</div>'


def table_html(table: pd.DataFrame) -> str:
    """Return a table of strings as escaped HTML; "" if it has no rows."""
    cells = table.astype(str).map(clean)
    with pd.option_context("display.max_colwidth", None):  # otherwise, pandas truncates cells
        return "" if table.empty else str(cells.to_html(index=False, border=0, justify="left"))


def _best(results: Study) -> pd.DataFrame:
    if results.is_scaling or results.trials.empty:
        return pd.DataFrame()
    metric, forms = results.metric, {"trial": "{trial}", "configuration": "{config}"}
    if results.is_timed:
        forms |= {"target after s": "{time_to_target_s:s}"}
        forms |= {"worker-seconds": "{worker_seconds_to_target:s}", "reached": "{hits} of {runs}"}
    forms |= {f"best {metric.words}": "{best}", "confirmed": "{proof}"}
    table = configurations(results).head(NOTEBOOK_ROWS)
    proof = table["is_confirmed"].map({True: "yes", False: "no, one run"})
    best = table[metric.best_column].map(metric.shown)
    return texts(table.assign(proof=proof, best=best), forms)


def _count_line(results: Study) -> str:
    """Return a line with the number of runs and evaluations, and whether the study is still
    running."""
    trials = results.trials
    failed = int((trials["state"] == State.FAILED).sum())
    details = f" ({failed} failed)" if failed else ""
    text = f"{counted(len(trials), 'run')}{details}, {len(results.curves):,} evaluations"
    return f"{text}; still running: {results.owner}" if results.owner else text


def _training_sentence(results: Study) -> str:
    record = next(iter(results.runs.values()))
    name = f"One training of {results.label(record.spec)}"
    if record.failure:
        return f"{name} failed: {record.failure} ({record.message or 'no message'})."
    metric, target = results.metric, results.target
    best = f"best {metric.words} {metric.shown(record.best_value)}"
    if record.test_value is not None:
        best += f", {metric.shown(record.test_value)} on the test set"
    if target is None:
        return f"{name}: {best} after {seconds_text(record.ledger['train'])} s."
    target_text = target_words(metric, target)
    if record.time_to_target_s is None:
        return f"{name} did not reach {target_text}: {best}, ended by {record.stop}."
    return f"{name} reaches {target_text} after {seconds_text(record.time_to_target_s)} s ({best})."


def _import_sentence(results: Study) -> str:
    """Return a sentence about the best imported run, whose seconds another tool has measured."""
    source, runs = results.study[IMPORTED]["from"], counted(len(results.trials), "run")
    best = ranked_runs(results.trials).iloc[0]
    seconds = best["time_to_target_s" if results.is_timed else "train_s"]
    after = f" after {duration(seconds)} as measured by the other tool" if seconds > 0 else ""
    reached = f"{results.metric.words} {results.metric.shown(best[results.metric.best_column])}"
    if results.is_timed and after:
        reached = target_in_words(results)
    trial_text = f"trial {best['trial']}, {best['config']}"
    return f"The best of {runs} of {source} is {trial_text}: {reached}{after}."
