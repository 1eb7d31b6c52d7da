"""What is said of a verdict, from its facts (`verdict.VerdictFacts`): by the terminal, the page,
notebooks and the comment of best.yaml; and the study as Python and notebooks show it."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from raybench.report.pairs import comparison_of, sentences
from raybench.report.remarks import disturbed_line
from raybench.report.scaling_printed import scaling_answer
from raybench.report.words import (
    as_billed,
    by_the_wall,
    counted,
    duration,
    named_trials,
    price_of,
    refuted_words,
    span_s,
    target_in_words,
    target_of,
    target_words,
    within_budget,
)
from raybench.results.place import shown
from raybench.results.ranking import configurations, kinds, nearest, repeated
from raybench.results.study import Study
from raybench.results.verdict import (
    Verdict,
    VerdictFacts,
    Winner,
    best_of,
    facts_of,
    is_better_than_baseline,
    judge,
    judge_each,
    judged_on,
    new_value,
)
from raybench.scaling.cells import scaling_cells
from raybench.spec.metric import METRICS, Metric
from raybench.spec.objective import GUESSES, share_error
from raybench.spec.run import RunSpec, describe
from raybench.spec.text import clean
from raybench.stats.record import RunRecord

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
ALIKE = 0.005
"""Share by which two costs differ at least, for one to be called the other's part."""
BEYOND = 2.33
"""Standard errors of a difference that chance leaves in 1 of 100, one-sided."""


def in_words(results: Study, spec: RunSpec) -> str:
    """Return a configuration: `PyTorch on 2 workers, 64 samples a step each, adam at ...`."""
    batch = f"{counted(spec.batch_size_per_worker, 'sample')} a step"
    words = (
        f"{FRAMEWORKS.get(spec.framework, spec.framework)} on "
        f"{counted(spec.num_workers, 'worker')}, {batch}{' each' if spec.num_workers > 1 else ''}, "
        f"{spec.optimizer} at learning rate {spec.learning_rate:.3g}"
    )
    own = results.label(spec).removeprefix(describe(spec)).strip()
    return f"{words}, {own}" if own else words


def named(results: Study, winner: Winner) -> str:
    """Return a configuration in words and its trial."""
    return f"{in_words(results, winner.spec)} (trial {winner.trial})"


def answer_lines(results: Study, verdict: Verdict | None) -> list[str]:
    """Return what to train with, how soon it gets there and what it costs.

    Where no run reached the target, the one that came nearest; [] where none learnt anything. Of
    runs on several models of GPU a sentence for each.
    """
    if verdict is None:
        trial = nearest(results)
        near = [] if trial is None else [_nearest(results, trial)]
        return guessing_lines(results) or near
    each = judge_each(results)
    if len(each) > 1:
        lines = [
            f"On {kind or 'hosts without a GPU'}: {line}"
            for kind, one in each.items()
            for line in _answers(results, facts_of(results, one))
        ]
    else:
        lines = _answers(results, facts_of(results, verdict))
    return [*lines, *disturbed_line(results)]


def _answers(results: Study, facts: VerdictFacts) -> list[str]:
    fastest, cheapest, billed = facts.fastest, facts.cheapest, as_billed(results)
    if not facts.is_proven:
        if results.is_timed:
            shows = f"{target_in_words(results)} after {duration(fastest.search_s)} of training"
        else:
            best = results.runs[fastest.trial].best_value
            shows = f"{results.metric.words} {results.metric.shown(best)}"
        best_so_far = f"Best so far, perhaps by luck: {named(results, fastest)}"
        return [f"Nothing is confirmed yet. {best_so_far}, {shows} in one run."]
    head = f"Train with {named(results, fastest)}"
    if not results.is_timed:
        metric, budget = results.metric, _budget(results)
        wall = "" if budget is None else by_the_wall(results, fastest.trial, budget)
        value = f"{metric.words} {metric.shown(fastest.value)} {within_budget(budget)}{wall}"
        lines = [f"{head}. That reaches {value}: {_standing(results, facts, 'best')}."]
        return [*lines, *optimism_lines(results, facts)]
    head = f"{head}. That reaches {_costs(results, fastest)}"
    if facts.is_one:
        lines = [f"{head}: {_standing(results, facts, f'fastest and the cheapest{billed}')}."]
        return [*lines, *optimism_lines(results, facts)]
    near = _as_good([*facts.cheapest_tied, *facts.cheapest_once], "cheap")
    return [
        f"{head}: {_standing(results, facts, 'fastest')}.",
        f"The cheapest{billed} is {named(results, cheapest)}: {_saved(results, facts)}{near}.",
        *optimism_lines(results, facts),
    ]


def _budget(results: Study) -> float | None:
    """Return the seconds of training that a run has."""
    seconds = results.study["study"]["objective"].get("max_train_seconds")
    return None if seconds is None else float(seconds)


def _nearest(results: Study, trial: str) -> str:
    run, metric = results.runs[trial], results.metric
    name = f"{in_words(results, run.spec)} (trial {trial})"
    if refuted := refuted_words(results, trial):
        return f"No run with a new seed reached the target. The nearest: {name} {refuted}."
    return (
        f"No run reached the target. The nearest, one run, not confirmed: {name}, {metric.words} "
        f"{metric.shown(run.best_value)} after {duration(run.ledger['train'])} of training."
    )


def _costs(results: Study, winner: Winner) -> str:
    """Return `95 % accuracy after 0.59 s of training, 0.59 worker-seconds`."""
    about = f"{_rate(winner, 'in ')}after"
    wall = by_the_wall(results, winner.trial, winner.seconds)
    price = price_of(results, winner.cost, winner.trial)
    is_informative = winner.spec.num_workers > 1 or price  # else it is the seconds once more
    workers = f", {winner.cost:.3g} worker-seconds{price}" if is_informative else ""
    aim = target_in_words(results)
    return f"{aim} {about} {duration(winner.seconds)} of training{wall}{workers}"


def _rate(winner: Winner, before: str = "") -> str:
    """Return `in 5 of 6 runs, on average `, of all its runs; "" where all reached the target."""
    if winner.every_hit == winner.every_run:
        return ""
    return f"{before}{winner.every_hit} of {counted(winner.every_run, 'run')}, on average "


def _standing(results: Study, facts: VerdictFacts, what: str) -> str:
    """Return `the fastest of 95 configurations tried (80 were stopped early and not compared); 2
    others may be as fast`."""
    near = _as_good([*facts.tied, *facts.once], "fast" if results.is_timed else "good")
    return f"the {what} of {tried_words(results)}{near}"


def tried_words(results: Study) -> str:
    """Return `95 configurations tried (80 were stopped early and not compared)`."""
    searched = results.trials[results.trials["phase"] == "search"]
    configs = searched.drop_duplicates("config")
    again = configs["trial"].isin(list(repeated(results)))
    stopped = int(((configs["state"] == "stopped") & ~again).sum())
    were = "was" if stopped == 1 else "were"
    left_out = f" ({stopped:,} {were} stopped early and not compared)" if stopped else ""
    return f"{counted(len(configs), 'configuration')} tried{left_out}"


def _as_good(others: Sequence[str], like: str) -> str:
    return f"; {counted(len(others), 'other')} may be as {like}" if others else ""


def _saved(results: Study, facts: VerdictFacts) -> str:
    """Say what the cheapest costs and takes, beside the fastest."""
    fast, cheap = facts.fastest, facts.cheapest
    if not cheap.hits:
        return "in the race; its runs with new seeds missed the target"
    words = f"{cheap.cost:.3g} worker-seconds{price_of(results, cheap.cost, cheap.trial)}"
    if rate := _rate(cheap, "reaching it in "):
        words = f"{rate}{words}"
    share, longer = cheap.cost / fast.cost, cheap.seconds / fast.seconds
    if share > 1 - ALIKE or longer < 1 + ALIKE:
        return f"{words}, after {duration(cheap.seconds)}"
    return f"{words}, {100 * share:.0f} % of the fastest's, for {longer:.2g} times its time"


def verdict_lines(results: Study, verdict: Verdict | None) -> list[str]:
    """Return the outcome in one or two sentences."""
    if (pairs := comparison_of(results)) is not None:
        return sentences(pairs)
    if verdict is None:
        return guessing_lines(results) or [_nothing(results)]
    each = judge_each(results)
    if len(each) > 1:
        head = "Several models of GPU, each ranked by itself:"
        lines = [_outcome(results, facts_of(results, one))[0] for one in each.values()]
        named_kinds = zip(each, lines, strict=True)
        return [head, *(f"{kind or 'no GPU'}: {line}" for kind, line in named_kinds)]
    facts = facts_of(results, verdict)
    lines = [*_outcome(results, facts), *_ties(results, facts)]
    return [*lines, *optimism_lines(results, facts), *_not_compared(results, facts)]


def _outcome(results: Study, facts: VerdictFacts) -> list[str]:
    """Name the winners with their numbers."""
    billed = as_billed(results)
    winners = [("Fastest", facts.fastest), (f"Cheapest{billed}", facts.cheapest)]
    if not results.is_timed:
        winners = [(_capital(results.metric.superlative), facts.fastest)]
    elif facts.is_one:
        winners = [(f"Fastest and cheapest{billed}", facts.fastest)]
    lines = [
        f"{what}: {one.label} (trial {one.trial}) {_reaches(results, one, facts)}"
        for what, one in winners
    ]
    return [*lines, *_other_way_round(results, facts)]


def _ties(results: Study, facts: VerdictFacts) -> list[str]:
    """Name those that ran again, and count those that ran once."""
    if not facts.is_confirmed:
        return []
    what, cheap = (
        ("fastest" if results.is_timed else results.metric.superlative),
        facts.cheapest_tied,
    )
    if facts.is_one and set(facts.tied) == set(cheap):
        what, cheap = "winner", ()
    sentences = [
        f"Statistically tied with the {which}: {named_trials(tied)}."
        for which, tied in ((what, facts.tied), ("cheapest", cheap))
        if tied
    ]
    if once := facts.every_once:
        sentences.append(f"{counted(once, 'other trial')} ran once and cannot be excluded.")
    return [" ".join(sentences)] if sentences else []


def _other_way_round(results: Study, facts: VerdictFacts) -> list[str]:
    """Say why the fastest takes longer, or the cheapest costs more, where it is printed so.

    They are chosen by the race, and printed by runs alone, which had no part in that.
    """
    if not facts.is_confirmed or facts.is_one or not results.is_timed:
        return []
    fast, cheap = facts.fastest, facts.cheapest
    turned: list[tuple[str, float, float, str]] = []
    if fast.printed_s > cheap.printed_s:
        turned.append(("fastest", fast.expected_s, cheap.expected_s, "s"))
    costs = [one.spec.num_workers * one.printed_s for one in (cheap, fast)]
    if costs[0] > costs[1] and not as_billed(results):
        own, other = (one.spec.num_workers * one.expected_s for one in (cheap, fast))
        turned.append(("cheapest", own, other, "worker-seconds"))
    return [
        f"The race chose the {what}, by {own:.2f} {unit} against {other:.2f}"
        f"{' s' if unit == 's' else ''}; the runs printed above, which chose nothing, came out the "
        "other way round by chance."
        for what, own, other, unit in turned
    ]


def _reaches(results: Study, one: Winner, facts: VerdictFacts) -> str:
    """Return what a winner reaches, what that costs and what it stands on."""
    if not results.is_timed:
        return _best_value(results, facts)
    aim = target_of(results)
    if not facts.is_confirmed:
        reaches = f"reaches {aim} after {one.search_s:.2f} s{one.search_mark}"
        proof = "unconfirmed: one search trial"
    elif not one.hits:
        return (
            f"reached {aim} after {one.search_s:.2f} s in the search, but in none of "
            f"{one.seeds}, {one.how_run}: not confirmed."
        )
    else:
        ends = f"90 % interval: {one.ends_s[0]:.2f} to {one.ends_s[1]:.2f}{one.mark}"
        reaches = f"reaches {aim} after {one.seconds:.2f} s ({ends})"
        if one.hits < one.runs:
            reaches = (
                f"reaches {aim} in {one.hits} of {one.runs} runs: expect {one.seconds:.2f} s "
                f"({ends}) counting what misses cost"
            )
        proof = f"confirmed by {one.hits} of {one.seeds}, {one.how_run}"
        is_missed = one.hits < one.runs or one.chosen_hits < one.chosen_runs
        if is_missed and not one.is_chosen_as_printed:
            proof += f"; chosen with {one.chosen_hits} of {one.chosen_runs}"
        proof += _tested(results, one)
    workers, within = one.spec.num_workers, ""
    if workers > 1 and facts.is_confirmed and one is facts.cheapest and not facts.is_one:
        within = f" ({workers * one.ends_s[0]:.2f} to {workers * one.ends_s[1]:.2f})"
    price = price_of(results, one.cost, one.trial)
    return f"{reaches}, {one.cost:.2f} worker-seconds{within}{price}; {proof}."


def _best_value(results: Study, facts: VerdictFacts) -> str:
    one, metric = facts.fastest, results.metric
    if not facts.is_confirmed:
        run = results.runs[one.trial]
        return (
            f"with {metric.shown(run.best_value)} within {run.ledger['train']:.2f} s of "
            "training; unconfirmed: one search trial."
        )
    budget = _budget(results)
    within = "at the budget" if budget is None else f"within {budget:g} s of training"
    over = "" if metric.is_share else " over seeds"
    interval = "" if one.ends is None else f", 90 % interval{over}: {between(metric, one.ends)}"
    return (
        f"reaches {metric.shown(one.value)} {within} (median of {one.seeds} {one.how_run}"
        f"{interval}); confirmed{_tested(results, one)}."
    )


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def between(metric: Metric, ends: tuple[float, float]) -> str:
    """Return `94.1 to 96.3 %`."""
    low, high = map(metric.shown, ends)
    return f"{low.removesuffix(' %')} to {high}"


def _tested(results: Study, one: Winner) -> str:
    """Say what the runs that are printed reach on the test split, where that was measured."""
    metric = results.metric
    if math.isnan(one.test_value):
        return "" if results.has_test else "; not tested: there is no test split"
    interval = (
        "" if one.test_ends is None else f" (90 % interval: {between(metric, one.test_ends)})"
    )
    return f"; test {metric.words} {metric.shown(one.test_value)}{interval}"


def spec_comment(results: Study, trial: str, verdict: Verdict | None, what: str) -> str:
    """Return the comment that stands above the spec in best.yaml and cheapest.yaml."""
    run, metric = results.runs[trial], results.metric
    name = f"{what} of {clean(results.name)}: trial {trial}, {results.label(run.spec)}"
    if verdict is not None:
        facts = facts_of(results, verdict)
        one = facts.fastest if trial == facts.fastest.trial else facts.cheapest
        proof = _reaches(results, one, facts)
    elif refuted := refuted_words(results, trial):
        proof = f"refuted: {refuted}"
    else:
        value, seconds = metric.shown(run.best_value), run.ledger["train"]
        proof = f"unconfirmed: {metric.words} {value} after {seconds:.2f} s in one search trial"
    return f"{name}\n{proof}\nrun it again: {results.command('train', 'THIS_FILE')}"


def guessing_lines(results: Study) -> list[str]:
    """Say of what did best that it is no better than guessing; [] where something won."""
    lines = []
    for kind in [] if judge_each(results) else kinds(results.trials):
        verdict = best_of(results, kind)
        if verdict is None or is_better_than_baseline(results, verdict) is not False:
            continue
        found, metric = judged_on(results, verdict), results.metric
        assert found is not None
        base, value = results.baselines[found[0]], metric.shown(found[1])
        than = "it is no better than guessing" if found[0] == "test" else "that may be luck"
        guess = GUESSES.get(metric.name, "guessing")
        lines.append(
            f"No winner: {results.label(results.specs[verdict.fastest])} (trial {verdict.fastest}) "
            f"did best in validation, but on the {found[0]} rows {than} "
            f"({value} of {base.rows:,}; {guess} gives {metric.shown(base.value)}). "
            "There may be nothing to learn in these inputs, or too few rows to show it."
        )
    return lines


def optimism_lines(results: Study, facts: VerdictFacts) -> list[str]:
    """Say where the validation split said more of the fastest than the test split, by more than
    the sampling errors of both."""
    both, metric = results.baselines, results.metric
    if not facts.is_confirmed or len(both) < 2:
        return []
    parts = ("validation", "test")
    said, found = (new_value(results, facts.fastest.trial, part) for part in parts)
    if said is None or found is None:
        return []
    errors = [
        _row_error(metric, value, both[part].rows)
        for part, value in zip(parts, (said, found), strict=True)
    ]
    if metric.gap(said, found) <= BEYOND * math.hypot(*errors):
        return []
    shares = [
        f"{metric.shown(value)} of {both[part].rows:,}"
        for value, part in zip((said, found), parts, strict=True)
    ]
    return [
        f"Validation said more than the test rows do: {' against '.join(shares)}, which "
        "is more than luck of the rows; believe the latter."
    ]


def _row_error(metric: Metric, value: float, rows: int) -> float:
    """Return the standard error of a value by its rows: of a share binomial, of others that of a
    mean of squares of normal residuals, which is more than that of their root."""
    if metric.is_share:
        return share_error(value, rows)
    return abs(1 - value if metric.name == "r2" else value) * math.sqrt(2 / rows)


def _not_compared(results: Study, facts: VerdictFacts) -> list[str]:
    """Say of a confirmed winner by a metric of the user's own that guessing was not looked at."""
    metric = results.metric
    if not facts.is_confirmed or results.baselines or metric.name in METRICS:
        return []
    return [f"Not compared with guessing: nobody knows what that reaches of {metric.words}."]


def _nothing(results: Study) -> str:
    trials, metric = results.trials, results.metric
    best = metric.best(trials[metric.best_column])
    if len(trials) and (trials["state"] == "failed").all():
        number = len(trials)
        return f"No result: {'the run' if number == 1 else f'all {number} runs'} failed."
    reached = "nothing was measured" if best is None else f"the best was {metric.shown(best)}"
    if results.is_target_awaited:
        ended = "; a longer --time-budget lets reference runs set it"
        return f"No result: the study ended before its target was set; {reached}{ended}."
    if not results.is_timed:
        return f"No result: {reached}."
    once = trials["trial"][(trials["phase"] == "search") & trials["crossed_s"].notna()]
    if set(once) & set(repeated(results)):
        return (
            f"No result: {named_trials(list(once))} reached the target of {target_of(results)} in "
            "the search, but none that ran again did with new seeds; name a target that runs "
            "reach each time, or raise objective.max_train_seconds (with --fresh)."
        )
    return " ".join([_missed(results, reached), *_start_up(results)])


def _missed(results: Study, reached: str) -> str:
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


def _too_late(results: Study) -> str:
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


def _trials(results: Study) -> list[RunRecord]:
    return [one for one in results.runs.values() if one.role == "trial"]


def _reference_s(results: Study) -> float | None:
    """Return the least seconds in which a reference run reached the target; None if none did."""
    runs = results.trials[results.trials["role"] == "reference"]
    found = runs["crossed_s"].min()
    return None if math.isnan(found) else float(found)


def cut_by_budget(results: Study) -> str:
    """Say where the time budget ended the search before its trials were done; "" where not."""
    search = results.study["study"].get("search") or {}
    budget, asked, done = search.get("time_budget_s"), search.get("trials"), _trials(results)
    is_cut = any(one.stop == "time_budget" for one in results.runs.values())
    if budget is None or not (is_cut or (isinstance(asked, int) and not done)):
        return ""
    of = f" of {asked:,}" if isinstance(asked, int) else ""
    return f"the time budget of {budget:g} s ended the search after {len(done)}{of} trials"


def _start_up(results: Study) -> list[str]:
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


MOST_ROWS = 5
"""Of the table in a notebook."""
FRAMES = ("trials", "curves", "confirmed", "configurations", "scaling")
PLURALS = {
    "search": "search",
    "confirm": "confirming",
    "reference": "reference",
    "compare": "of pairs",
}


def lines_of(results: Study) -> list[str]:
    """Return the answer, what stands behind it, and where: a line each."""
    return [*answer_of(results), _counted(results), _where(results)]


def answer_of(results: Study) -> list[str]:
    """Return what a study found, in one or two sentences: those of the page and the terminal."""
    if results.trials.empty:
        return ["No run has finished yet." if results.owner else "No run has finished."]
    if results.is_scaling:
        return scaling_answer(scaling_cells(results)) or [_fastest_cell(results)]
    if results.study["study"].get("run"):
        return [_trained(results)]
    if (pairs := comparison_of(results)) is not None:
        return [clean(line) for line in sentences(pairs)]
    verdict = judge(results)
    lines = answer_lines(results, verdict) or verdict_lines(results, verdict)
    return [clean(line) for line in lines]


def html_of(results: Study) -> str:
    """Return the same for a notebook, with the best configurations; no text is read as HTML."""
    answer, (counted, where) = answer_of(results), lines_of(results)[-2:]
    head = "".join(f"<p><strong>{html.escape(line)}</strong></p>" for line in answer)
    table = table_html(_best(results))
    small = f"<p><small>{html.escape(counted)}<br>{html.escape(where)}</small></p>"
    return f'<div class="raybench-study">{head}{table}{small}</div>'


def table_html(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows of texts as a table, escaped; nothing where there are none."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(clean(text))}</td>" for text in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _best(results: Study) -> list[dict[str, str]]:
    if results.is_scaling or results.trials.empty:
        return []
    metric = results.metric
    rows = []
    for row in configurations(results).head(MOST_ROWS).to_dict("records"):
        cells = {"trial": row["trial"], "configuration": row["config"]}
        if results.is_timed:
            cells["target after s"] = _number(row["time_to_target_s"])
            cells["worker-seconds"] = _number(row["worker_seconds_to_target"])
        cells[f"best {metric.words}"] = metric.shown(row[metric.best_column])
        if results.is_timed:
            cells["reached"] = f"{row['hits']} of {row['runs']}"
        cells["confirmed"] = "yes" if row["is_confirmed"] else "no, one run"
        rows.append({name: str(text) for name, text in cells.items()})
    return rows


def _number(value: Any) -> str:
    return "not reached" if pd.isna(value) else f"{value:.2f}"


def _counted(results: Study) -> str:
    """Say how many runs and evaluations there are, and whether more may come."""
    trials = results.trials
    phases = trials["phase"].value_counts(sort=False)
    parts = [f"{number} {PLURALS[name]}" for name, number in phases.items() if name in PLURALS]
    failed = int((trials["state"] == "failed").sum())
    parts += [f"{failed} failed"] if failed else []
    inside = f" ({', '.join(parts)})" if len(parts) > 1 or failed else ""
    runs = f"{len(trials):,} {'run' if len(trials) == 1 else 'runs'}{inside}"
    text = f"{runs}, {len(results.curves):,} evaluations"
    return f"{text}; still running: {results.owner}" if results.owner else text


def _where(results: Study) -> str:
    frames = [name for name in FRAMES if (name == "scaling") <= results.is_scaling]
    if results.is_scaling:
        frames = ["scaling", "scaling_runs", "curves"]
    return f"{clean(shown(results.place, results.folder))}: .{', .'.join(frames)}, .plot"


def _trained(results: Study) -> str:
    """Say how a single training ended."""
    record = next(iter(results.runs.values()))
    name = f"One training of {results.label(record.spec)}"
    if record.failure:
        return clean(f"{name} failed: {record.failure} ({record.message or 'no message'}).")
    metric, target = results.metric, results.target
    best = f"best {metric.words} {metric.shown(record.best_value)}"
    if target is None:
        return f"{name}: {best} after {record.ledger['train']:.2f} s."
    words = target_words(metric, target)
    if record.time_to_target_s is None:
        return f"{name} did not reach {words}: {best}, ended by {record.stop}."
    return f"{name} reaches {words} after {record.time_to_target_s:.2f} s ({best})."


def _fastest_cell(results: Study) -> str:
    """Name the cell of the most samples per second, where no speed-up is known."""
    cells = scaling_cells(results)[scaling_cells(results)["samples_per_s"].notna()]
    if cells.empty:
        return "No result: no cell has a speed yet."
    best = cells.nlargest(1, "samples_per_s").to_dict("records")[0]
    workers = counted(int(best["num_workers"]), "worker")
    speed = f"{best['samples_per_s']:,.0f}"
    return clean(f"Most samples per second: {speed} with {workers}, {best['curve']}.")
