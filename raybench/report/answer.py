"""The summary of a study in sentences, the same for terminal, page, JSON and Python. Also the
comment in best.yaml, and the display of a study in notebooks."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.report import scaling_printed
from raybench.report.confidence import (
    code_line,
    confidence_of,
    disturbed_line,
    edge_lines,
    target_warning,
    unranked_lines,
)
from raybench.report.pairs import comparison_of, sentences
from raybench.report.tables import texts
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
from raybench.results.place import shown
from raybench.results.ranking import (
    ConfigurationResult,
    configurations,
    cost_of,
    gpu_models,
    nearest,
    ranked,
    repeated,
    result_of,
)
from raybench.results.store import IMPORTED
from raybench.results.study import Study
from raybench.results.trials import configuration_of
from raybench.results.verdict import (
    Verdict,
    best_of,
    is_better_than_baseline,
    judge,
    judge_each,
    judged_on,
)
from raybench.scaling.cells import scaling_cells
from raybench.spec.metric import METRICS, Metric
from raybench.spec.objective import GUESSES
from raybench.spec.run import RATE, RunSpec, describe, flat, named_optimizer, value_of
from raybench.spec.space import is_one_of
from raybench.spec.text import clean, counted
from raybench.spec.values import identity

FRAMEWORK_NAMES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "python": "plain Python"}
LEAST_DIFFERENCE = 0.005
"""Smallest relative difference between two costs, or two times, that the summary mentions."""


def configuration_words(results: Study, spec: RunSpec) -> str:
    """Return a configuration in words: `PyTorch on 2 workers, batch size 64 per worker, ...`."""
    if results.is_imported:
        return results.label(spec)
    batch = f"batch size {spec.batch_size_per_worker}"
    batch += " per worker" if spec.num_workers > 1 else ""
    batch += f" in each of {spec.accumulate} passes" if spec.accumulate > 1 else ""
    optimizer = named_optimizer(spec)
    words = (
        f"{FRAMEWORK_NAMES.get(spec.framework, spec.framework)} on "
        f"{counted(spec.num_workers, 'worker')}, {batch}, "
        f"{'' if optimizer == RATE else f'{optimizer} at '}learning rate {spec.learning_rate:.3g}"
    )
    own = results.label(spec).removeprefix(describe(spec)).strip()
    return f"{words}, {own}" if own else words


@dataclass(frozen=True)
class Summary:
    """Findings of a study in sentences."""

    conclusions: Sequence[Sequence[str]]
    """Paragraphs, each a sequence of sentences; the most important paragraph and sentence first."""
    confidence: str = ""
    """Evidence for the winner; empty if there is no winner."""
    caveats: Sequence[str] = ()
    """Sentences on ties, doubts, disturbed runs, winners at the end of a range, and notes."""

    @property
    def lines(self) -> list[str]:
        """The conclusions, one string per paragraph."""
        return [clean(" ".join(one)) for one in self.conclusions]


def summary_of(results: Study) -> Summary:
    """Return the summary of a study of any kind.

    A search that ran on several GPU models has a winner for each model. If no run reached the
    target, the summary says why, and which run came nearest.
    """
    notes = [str(note) for note in results.study.get("notes") or []]
    if (pairs := comparison_of(results)) is not None:
        return Summary([(line,) for line in sentences(pairs)], caveats=notes)
    if results.trials.empty:
        return Summary([(f"No run has finished{' yet' if results.owner else ''}.",)], caveats=notes)
    if results.is_scaling:
        cells = scaling_cells(results)
        found = scaling_printed.scaling_answer(cells)
        if not found and (results.trials["state"] == "failed").all():
            found = [_why_no_winner(results)]
        found = found or ["No result: a speed-up takes measured runs on one worker and several."]
        caveats = [
            *scaling_printed.outlier_lines(results),
            *scaling_printed.other_lines(cells),
            *scaling_printed.straggler_lines(results),
        ]
        caveats += notes
        return Summary([(line,) for line in found], caveats=caveats)
    if results.study["study"].get("run"):
        return Summary([(_trained(results),)], caveats=notes)
    if results.is_imported:
        return Summary([(_imported(results),)], caveats=notes)
    verdict = judge(results)
    each = {kind or "hosts without a GPU": one for kind, one in judge_each(results).items()}
    answer = [] if each else [*(guessing_lines(results) or _unreached(results))]
    caveats = []
    for kind, one in each.items():
        on = f"On {kind}: " if len(each) > 1 else ""
        answer += [(on + first, *rest) for first, *rest in _winners(results, one)]
        caveats += [on + line for line in _doubts(results, one)]
    caveats += [
        *code_line(results),
        *disturbed_line(results),
        *unranked_lines(results),
        *edge_lines(results, verdict),
    ]
    return Summary(
        answer, confidence_of(results, verdict), [*caveats, *target_warning(results), *notes]
    )


def _winners(results: Study, verdict: Verdict) -> list[tuple[str, ...]]:
    fastest, cheapest = (
        result_of(results, trial, is_confirmed=verdict.is_confirmed)
        for trial in (verdict.fastest, verdict.cheapest)
    )
    what, like = ("fastest", "fast") if results.is_timed else ("best", "good")
    if results.is_timed and verdict.is_one:
        what = "fastest and the cheapest"
    head = "Train with"
    if not fastest.new_hits:
        head = "Not confirmed yet. Best so far (selection-biased):"
    near = _others_as_good((*verdict.others(), *verdict.once), like)
    standing = f"the {what} of {tried_words(results)}{near}"
    first = f"{head} {named(results, fastest.trial)}, {standing}."
    reached = f"It {reaches(results, fastest)}."
    found: list[tuple[str, ...]] = [(first, reached, *_beside_first(results, fastest.trial))]
    if results.is_timed and not verdict.is_one:
        others = verdict.others(is_cheapest=True)
        near = _others_as_good((*others, *verdict.cheapest_once), "cheap")
        near += "; it may be as fast" if cheapest.trial in verdict.others() else ""
        near = f"{_relative_cost(results, fastest, cheapest)}{near}"
        second = f"The cheapest is {named(results, cheapest.trial)}{near}."
        found.append((second, f"It {reaches(results, cheapest)}."))
    return found


def _beside_first(results: Study, winner: str) -> list[str]:
    """Return a sentence that compares the winner with the user's first configuration
    (`search.first`); [] if there is none, or its trial has not ended."""
    firsts = (results.study["study"].get("search") or {}).get("first") or []
    wanted = flat(firsts[0]) if firsts else {}
    own = [
        name
        for name, run in sorted(results.runs.items())
        if run.role == "trial" and all(_has(run.spec, *one) for one in wanted.items())
    ]
    if not wanted or not own:
        return []
    first, metric = own[0], results.metric
    called = f"your first configuration (trial {first})"
    seedless = [results.specs[name].model_copy(update={"seed": 0}) for name in (winner, first)]
    if seedless[0] == seedless[1]:
        return [f"It is {called}."]
    rows = configurations(results).set_index("trial")
    column = "time_to_target_s" if results.is_timed else metric.best_column
    known = {name: float(rows[column].get(name, math.nan)) for name in (winner, first)}
    if results.is_timed and not math.isnan(known[winner]) and not math.isnan(known[first]):
        times = known[first] / known[winner]
        once = "" if rows["is_confirmed"][first] else ", one run"
        return [f"That is {times:.3g} times as fast as {called}, {duration(known[first])}{once}."]
    run = results.runs[first]
    best = metric.shown(run.best_value)
    if run.failure is not None:
        return [f"{called.capitalize()} failed ({run.failure})."]
    if results.is_timed and run.time_to_target_s is None:
        ended = "was stopped" if run.state == "stopped" else "ended"
        return [f"{called.capitalize()} {ended} short of the target, at {metric.words} {best}."]
    return [f"{called.capitalize()} reached {metric.words} {best}."]


def _has(spec: RunSpec, key: str, value: Any) -> bool:
    """Return whether a run spec has `value`, as written in a YAML file, under `key`."""
    own = value_of(spec, key)
    return is_one_of(key, own, [value]) or identity(own) == identity(value)


def named(results: Study, trial: str) -> str:
    """Return the configuration of a trial in words, followed by `(trial 0012)`."""
    return f"{configuration_words(results, results.specs[trial])} (trial {trial})"


def tried_words(results: Study) -> str:
    """Return `95 configurations tried (80 of them were stopped early as unpromising)`.

    Configurations whose runs had reported nothing when the time budget ended were not tried.
    """
    searched = results.trials[results.trials["phase"] == "search"]
    configuration = searched["trial"].map(configuration_of(results.trials))
    is_unknown = searched["stop"].eq("time_budget") & searched[results.metric.best_column].isna()
    unknown = len(set(configuration) - set(configuration[~is_unknown]))
    again = searched["trial"].isin(list(repeated(results)))
    # A configuration that was stopped may have run again with another seed.
    is_stopped = (searched["state"] == "stopped") & ~again
    configs = is_stopped[~is_unknown].groupby(configuration[~is_unknown]).all()
    stopped = int(configs.sum())
    were = "was" if stopped == 1 else "were"
    parts = [f"{stopped:,} of them {were} stopped early as unpromising"] if stopped else []
    parts += [f"{unknown:,} more had not reported when the time budget ended"] if unknown else []
    inside = f" ({', '.join(parts)})" if parts else ""
    return f"{counted(len(configs), 'configuration')} tried{inside}"


def _others_as_good(others: Sequence[str], like: str) -> str:
    return f"; {counted(len(others), 'other')} may be as {like}" if others else ""


def _cost(results: Study, one: ConfigurationResult) -> float:
    """Return the cost of training to the target, by which the cheapest is chosen: worker-seconds,
    or billed worker-seconds if there is a price."""
    again = repeated(results).get(one.trial)
    rate = again.cost if again else cost_of(results, one.num_workers, [one.trial])
    return one.seconds * rate


def _relative_cost(
    results: Study, fastest: ConfigurationResult, cheapest: ConfigurationResult
) -> str:
    """Return cost and time of the cheapest relative to the fastest; "" if they hardly differ."""
    if fastest.new_runs and not (fastest.new_hits and cheapest.new_hits):
        return ""  # one of the two times is selection-biased: it comes from the search
    share = _cost(results, cheapest) / _cost(results, fastest)
    longer = cheapest.seconds / fastest.seconds
    if share > 1 - LEAST_DIFFERENCE or longer < 1 + LEAST_DIFFERENCE:
        return ""
    return f": {100 * share:.0f} % of the fastest's cost, for {longer:.3g} times its time"


def _new_runs(one: ConfigurationResult) -> str:
    """Return `3 runs with new seeds, each alone on the machine`."""
    how = "each alone on the machine" if one.is_alone else "in parallel"
    return f"{counted(one.new_runs, 'run')} with new seeds, {how}"


def reaches(results: Study, one: ConfigurationResult) -> str:
    """Return `reaches 95 % accuracy after 0.55 s of training (...), ...; confirmed by 3 of ...`."""
    if not results.is_timed:
        return _reaches_value(results, one)
    aim, rate, price = target_in_words(results), "", price_of(results, one.cost, one.trial)
    cost = f"{digits(one.cost)} worker-seconds{price}"
    if not one.new_runs:
        mark = " (interpolated)" if one.is_interpolated else ""
        after = f"{duration(one.search_s)}{mark} of training"
        return (
            f"reaches {aim} after {after}, at a cost of {cost}; unconfirmed: one run of the search"
        )
    if not one.new_hits:
        after = f"{duration(one.search_s)} of training in the search"
        return f"reached {aim} after {after}, but in none of {_new_runs(one)}"
    if one.every_hit < one.every_run:
        rate = f" in {one.every_hit} of {one.every_run} runs"
        rate += ", misses counted," if one.new_hits < one.new_runs else ", and of its runs alone"
    mark = ", interpolated" if one.is_interpolated else ""
    ends = f"90 % interval: {digits(one.interval_low_s)} to {digits(one.interval_high_s)} s{mark}"
    within = "; ".join(filter(None, [ends, wall_clock_words(results, one.trial, one.seconds)]))
    return (
        f"reaches {aim}{rate} after {duration(one.seconds)} of training ({within}), at a cost "
        f"of {cost}; confirmed by {one.new_hits} of {_new_runs(one)}{_tested(results, one)}"
    )


def _reaches_value(results: Study, one: ConfigurationResult) -> str:
    """Return `reaches accuracy 95.2 % within 3 s of training (median of 3 runs ...); ...`."""
    metric = results.metric
    seconds = results.study["study"]["objective"].get("max_train_seconds")
    budget = None if seconds is None else float(seconds)
    reached = f"reaches {metric.words} {metric.shown(one.value)} {within_budget(budget)}"
    if not one.new_runs:
        return f"{reached}; unconfirmed: one run of the search"
    notes = [f"median of {_new_runs(one)}"]
    ends = one.interval_low, one.interval_high
    if all(map(math.isfinite, ends)):
        notes.append(f"90 % interval: {between(metric, ends)}")
    if budget is not None:
        notes.append(wall_clock_words(results, one.trial, budget))
    within = "; ".join(filter(None, notes))
    return f"{reached} ({within}); confirmed{_tested(results, one)}"


def between(metric: Metric, ends: tuple[float, float]) -> str:
    """Return an interval of the metric as text: `94.1 to 96.3 %`."""
    low, high = map(metric.shown, ends)
    return f"{low.removesuffix(' %')} to {high}"


def _tested(results: Study, one: ConfigurationResult) -> str:
    """Return the value on the test split, or why there is none, as the end of a sentence."""
    metric = results.metric
    if math.isnan(one.test):
        return "" if results.has_test else "; not tested: there is no test split"
    both = one.test_low, one.test_high
    ends = "" if math.isnan(sum(both)) else f" (90 % interval: {between(metric, both)})"
    return f"; test {metric.words} {metric.shown(one.test)}{ends}"


def _doubts(results: Study, verdict: Verdict) -> list[str]:
    """Return sentences on ties, configurations that ran once, and effects of chance."""
    if not verdict.is_confirmed:
        return []
    tied, cheap_tied = verdict.others(), verdict.others(is_cheapest=True)
    which = "fastest" if results.is_timed else results.metric.superlative
    if verdict.is_one and set(tied) == set(cheap_tied):
        which, cheap_tied = "winner", ()
    lines = [
        f"Statistically tied with the {name}: {named_trials(names)}."
        for name, names in ((which, tied), ("cheapest", cheap_tied))
        if names
    ]
    if once := len({*verdict.once, *verdict.cheapest_once}):
        others = counted(once, "other configuration")
        lines.append(f"{others} ran only in the search and cannot be ruled out.")
    if not results.baselines and results.metric.name not in METRICS:
        lines.append(f"Not compared with a baseline: that of {results.metric.words} is not known.")
    return lines


def spec_comment(results: Study, trial: str, verdict: Verdict | None, what: str) -> str:
    """Return the comment above the spec in best.yaml and cheapest.yaml; `what` is, say,
    `fastest`."""
    run, metric = results.runs[trial], results.metric
    name = f"{what} of {clean(results.name)}: trial {trial}, {results.label(run.spec)}"
    if verdict is not None:
        one = result_of(results, trial, is_confirmed=verdict.is_confirmed)
        proof = reaches(results, one)
    elif refuted := refuted_words(results, trial):
        proof = f"refuted: {refuted}"
    else:
        value, seconds = metric.shown(run.best_value), run.ledger["train"]
        which = "reference run" if run.role == "reference" else "search trial"
        proof = f"unconfirmed: {metric.words} {value} after {seconds:.2f} s in one {which}"
    return f"{name}\n{proof}\nrun it again: {results.command('train', 'THIS_FILE')}"


def _unreached(results: Study) -> list[tuple[str, ...]]:
    """Return a paragraph on why there is no winner, and which run came nearest."""
    why, trial, metric = _why_no_winner(results), nearest(results), results.metric
    if trial is None:
        return [(why,)]
    run = results.runs[trial]
    name = named(results, trial)
    if refuted := refuted_words(results, trial):
        return [(why, f"The nearest: {name} {refuted}.")]
    reached = f"{metric.words} {metric.shown(run.best_value)}"
    after = f"{duration(run.ledger['train'])} of training"
    return [(why, f"The nearest, one run, not confirmed: {name}, {reached} after {after}.")]


def guessing_lines(results: Study) -> list[tuple[str, ...]]:
    """Return a paragraph for each GPU model whose best configuration is no better than guessing.

    [] if there is a winner.
    """
    lines: list[tuple[str, ...]] = []
    for kind in [] if judge_each(results) else gpu_models(results.trials):
        verdict = best_of(results, kind)
        if verdict is None or is_better_than_baseline(results, verdict) is not False:
            continue
        found, metric = judged_on(results, verdict), results.metric
        assert found is not None
        base, value = results.baselines[found[0]], metric.shown(found[1])
        than = "it is no better than guessing" if found[0] == "test" else "that may be chance"
        guess = GUESSES.get(metric.name, "guessing")
        first = (
            f"No winner: {results.label(results.specs[verdict.fastest])} (trial "
            f"{verdict.fastest}) did best in validation, but on the {found[0]} rows {than} "
            f"({value} of {base.rows:,}; {guess} gives {metric.shown(base.value)})."
        )
        why = "There may be nothing to learn in these inputs, or too few rows to show it."
        lines.append((first, why))
    return lines


def _why_no_winner(results: Study) -> str:
    """Return why there is no winner, and what to change."""
    trials, metric, target = results.trials, results.metric, results.target
    best = metric.best(trials[metric.best_column])
    failed = int((trials["state"] == "failed").sum())
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
    once = trials["trial"][(trials["phase"] == "search") & trials["crossed_s"].notna()]
    if set(once) & set(repeated(results)):
        return (
            f"No result: {named_trials(list(once))} reached the target of {aim} in "
            "the search, but none that ran again did with new seeds; name a target that runs "
            "reach each time, or raise objective.max_train_seconds (with --fresh)."
        )
    own = trials[trials["role"] == "trial"]
    who = f"No {'trial' if len(own) else 'run'} reached the target of {aim}"
    if ended := _cut_by_budget(results):
        again = "with a longer --time-budget the same command goes on from there."
        return f"{who}: {ended}; {again}"
    if any(metric.reaches(value, target) for value in own[metric.best_column].dropna()):
        reached += ", but too late or not held (objective.max_train_seconds, objective.hold)"
    advice = "name one that runs reach, or raise objective.max_train_seconds (with --fresh)"
    return f"{who}: {reached}; {advice}."


def _cut_by_budget(results: Study) -> str:
    """Return a clause if the time budget ended the search before all its trials ran, else ""."""
    search = results.study["study"].get("search") or {}
    budget, asked = search.get("time_budget_s"), results.num_trials_asked
    done = int((results.trials["role"] == "trial").sum())
    is_cut = any(one.stop == "time_budget" for one in results.runs.values())
    if budget is None or not (is_cut or (asked is not None and not done)):
        return ""
    of = "" if asked is None else f" of {asked:,}"
    return f"the time budget of {budget:g} s ended the search after {done}{of} trials"


NOTEBOOK_ROWS = 5
"""Maximum number of rows of the table in a notebook."""


def lines_of(results: Study) -> list[str]:
    """Return the summary, the number of runs, and a line with the study's folder and DataFrames."""
    found = summary_of(results)
    return [*found.lines, *map(clean, found.caveats), _counted(results), _frames(results)]


def _frames(results: Study) -> str:
    frames = ".trials, .curves, .confirmed, .configurations"
    if results.is_scaling:
        frames = ".scaling, .scaling_runs, .curves"
    return f"{clean(shown(results.place, results.folder))}: {frames}, .plot"


def html_of(results: Study) -> str:
    """Return `lines_of` as HTML, with a table of the best configurations; all text is escaped."""
    found = summary_of(results)
    head = "".join(f"<p><strong>{html.escape(line)}</strong></p>" for line in found.lines)
    caveats = "".join(f"<p>{html.escape(clean(line))}</p>" for line in found.caveats)
    small = "<br>".join(map(html.escape, (_counted(results), _frames(results))))
    table = f"{table_html(_best(results))}<p><small>{small}</small></p>"
    return f'<div class="raybench-study">{head}{caveats}{table}</div>'


def table_html(table: pd.DataFrame) -> str:
    """Return a table of strings as escaped HTML; "" if it has no rows."""
    cells = table.astype(str).map(clean)
    with pd.option_context("display.max_colwidth", None):  # else pandas cuts long cells
        return "" if table.empty else str(cells.to_html(index=False, border=0, justify="left"))


def _best(results: Study) -> pd.DataFrame:
    if results.is_scaling or results.trials.empty:
        return pd.DataFrame()
    metric, forms = results.metric, {"trial": "{trial}", "configuration": "{config}"}
    if results.is_timed:
        forms |= {"target after s": "{time_to_target_s:.2f}"}
        forms |= {"worker-seconds": "{worker_seconds_to_target:.2f}", "reached": "{hits} of {runs}"}
    forms |= {f"best {metric.words}": "{best}", "confirmed": "{proof}"}
    table = configurations(results).head(NOTEBOOK_ROWS)
    proof = table["is_confirmed"].map({True: "yes", False: "no, one run"})
    best = table[metric.best_column].map(metric.shown)
    return texts(table.assign(proof=proof, best=best), forms)


def _counted(results: Study) -> str:
    """Return the number of runs and evaluations, and whether the study is still running."""
    trials = results.trials
    failed = int((trials["state"] == "failed").sum())
    inside = f" ({failed} failed)" if failed else ""
    text = f"{counted(len(trials), 'run')}{inside}, {len(results.curves):,} evaluations"
    return f"{text}; still running: {results.owner}" if results.owner else text


def _trained(results: Study) -> str:
    record = next(iter(results.runs.values()))
    name = f"One training of {results.label(record.spec)}"
    if record.failure:
        return f"{name} failed: {record.failure} ({record.message or 'no message'})."
    metric, target = results.metric, results.target
    best = f"best {metric.words} {metric.shown(record.best_value)}"
    if record.test_value is not None:
        best += f", {metric.shown(record.test_value)} on the test set"
    if target is None:
        return f"{name}: {best} after {record.ledger['train']:.2f} s."
    words = target_words(metric, target)
    if record.time_to_target_s is None:
        return f"{name} did not reach {words}: {best}, ended by {record.stop}."
    return f"{name} reaches {words} after {record.time_to_target_s:.2f} s ({best})."


def _imported(results: Study) -> str:
    """Return a sentence on the best imported run, with seconds by the clock of the other tool."""
    source, runs = results.study[IMPORTED]["from"], counted(len(results.trials), "run")
    best = ranked(results.trials).iloc[0]
    seconds = best["time_to_target_s" if results.is_timed else "train_s"]
    after = f" after {duration(seconds)} by the clock there" if seconds > 0 else ""
    reached = f"{results.metric.words} {results.metric.shown(best[results.metric.best_column])}"
    if results.is_timed and after:
        reached = target_in_words(results)
    named = f"trial {best['trial']}, {best['config']}"
    return f"The best of {runs} of {source} is {named}: {reached}{after}."
