"""The answer of a study in a sentence, and the study as Python and notebooks show it."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from raybench.core.spec import RunSpec, describe
from raybench.core.text import clean
from raybench.results.load import StudyResults
from raybench.results.place import shown
from raybench.results.ranking import nearest
from raybench.results.scaling.printed import scaling_answer
from raybench.results.verdict import Verdict, guessing_lines, judge_each
from raybench.results.words import (
    as_billed,
    by_the_wall,
    confirmed_row,
    counted,
    duration,
    price_of,
    refuted_words,
    searched_s,
    target_in_words,
    target_words,
    verdict_lines,
)

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
ALIKE = 0.005
"""Share by which two costs differ at least, for one to be called the other's part."""


def answer_lines(results: StudyResults, verdict: Verdict | None) -> list[str]:
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
        return [
            f"On {kind or 'hosts without a GPU'}: {line}"
            for kind, one in each.items()
            for line in _answers(results, one)
        ]
    return _answers(results, verdict)


def in_words(results: StudyResults, spec: RunSpec) -> str:
    """Return a configuration: `PyTorch on 2 workers, 64 samples a step each, adam at ...`."""
    batch = f"{counted(spec.batch_size_per_worker, 'sample')} a step"
    words = (
        f"{FRAMEWORKS.get(spec.framework, spec.framework)} on "
        f"{counted(spec.num_workers, 'worker')}, {batch}{' each' if spec.num_workers > 1 else ''}, "
        f"{spec.optimizer} at learning rate {spec.learning_rate:.3g}"
    )
    own = results.label(spec).removeprefix(describe(spec)).strip()
    return f"{words}, {own}" if own else words


def _answers(results: StudyResults, verdict: Verdict) -> list[str]:
    if not _is_proven(results, verdict):
        return [_unconfirmed(results, verdict)]
    spec = results.specs[verdict.fastest]
    head = f"Train with {in_words(results, spec)} (trial {verdict.fastest})"
    if not results.is_timed:
        best = _standing(results, verdict, "best")
        return [f"{head}. That reaches {_value(results, verdict)}: {best}."]
    costs = _costs(results, verdict.fastest)
    if verdict.fastest == verdict.cheapest:
        best = _standing(results, verdict, f"fastest and the cheapest{as_billed(results)}")
        return [f"{head}. That reaches {costs}: {best}."]
    other = results.specs[verdict.cheapest]
    near = _as_good([*verdict.others(is_cheapest=True), *verdict.cheapest_once], "cheap")
    return [
        f"{head}. That reaches {costs}: {_standing(results, verdict, 'fastest')}.",
        f"The cheapest{as_billed(results)} is {in_words(results, other)} "
        f"(trial {verdict.cheapest}): {_saved(results, verdict)}{near}.",
    ]


def _is_proven(results: StudyResults, verdict: Verdict) -> bool:
    """Whether new seeds have reached what the winner is named for."""
    if not verdict.is_confirmed:
        return False
    return bool(confirmed_row(results, verdict.fastest)["new_hits"])


def _unconfirmed(results: StudyResults, verdict: Verdict) -> str:
    spec, metric = results.specs[verdict.fastest], results.metric
    if results.is_timed:
        seconds = searched_s(results, verdict.fastest)
        shows = f"{target_in_words(results)} after {duration(seconds)} of training in one run"
    else:
        shows = (
            f"{metric.words} {metric.shown(results.runs[verdict.fastest].best_value)} in one run"
        )
    return (
        f"Nothing is confirmed yet. Best so far, perhaps by luck: {in_words(results, spec)} (trial "
        f"{verdict.fastest}), {shows}."
    )


def _nearest(results: StudyResults, trial: str) -> str:
    run, metric = results.runs[trial], results.metric
    if refuted := refuted_words(results, trial):
        return (
            "No run with a new seed reached the target. The nearest: "
            f"{in_words(results, run.spec)} (trial {trial}) {refuted}."
        )
    return (
        f"No run reached the target. The nearest, one run, not confirmed: "
        f"{in_words(results, run.spec)} (trial {trial}), {metric.words} "
        f"{metric.shown(run.best_value)} after {duration(run.ledger['train'])} of training."
    )


def _costs(results: StudyResults, trial: str) -> str:
    """Return `95 % accuracy after 0.59 s of training, 0.59 worker-seconds`."""
    found = confirmed_row(results, trial)
    seconds, cost = float(found["printed_s"]), float(found["worker_seconds_to_target"])
    hits, runs, about = found["new_hits"], found["new_runs"], "after"
    if hits < runs:
        about = f"in {hits} of {counted(runs, 'run')} with new seeds, on average after"
    wall, price = by_the_wall(results, trial, seconds), price_of(results, cost, trial)
    is_told = found["num_workers"] > 1 or price  # else it is the seconds once more
    workers = f", {cost:.3g} worker-seconds{price}" if is_told else ""
    return f"{target_in_words(results)} {about} {duration(seconds)} of training{wall}{workers}"


def _standing(results: StudyResults, verdict: Verdict, what: str) -> str:
    """Return `the fastest of 95 configurations tried (80 were stopped early and not compared); 2
    others may be as fast`."""
    searched = results.trials[results.trials["phase"] == "search"]
    configs = searched.drop_duplicates("config")
    again = configs["trial"].isin(list(results.repeated))
    stopped = int(((configs["state"] == "stopped") & ~again).sum())
    were = "was" if stopped == 1 else "were"
    left_out = f" ({stopped:,} {were} stopped early and not compared)" if stopped else ""
    like = "fast" if results.is_timed else "good"
    near = _as_good([*verdict.others(), *verdict.once], like)
    return f"the {what} of {counted(len(configs), 'configuration')} tried{left_out}{near}"


def _as_good(others: Sequence[str], like: str) -> str:
    return f"; {counted(len(others), 'other')} may be as {like}" if others else ""


def _saved(results: StudyResults, verdict: Verdict) -> str:
    """Say what the cheapest costs and takes, beside the fastest."""
    fast, cheap = (confirmed_row(results, one) for one in (verdict.fastest, verdict.cheapest))
    name = "worker_seconds_to_target"
    cost, seconds = float(cheap[name]), float(cheap["printed_s"])
    if not math.isfinite(cost):
        return "in the race; its runs with new seeds missed the target"
    words = f"{cost:.3g} worker-seconds{price_of(results, cost, verdict.cheapest)}"
    share, longer = cost / float(fast[name]), seconds / float(fast["printed_s"])
    if share > 1 - ALIKE or longer < 1 + ALIKE:
        return f"{words}, after {duration(seconds)}"
    return f"{words}, {100 * share:.0f} % of the fastest's, for {longer:.2g} times its time"


def _value(results: StudyResults, verdict: Verdict) -> str:
    metric = results.metric
    found = confirmed_row(results, verdict.fastest)
    budget = results.study["study"]["objective"].get("max_train_seconds")
    within = "at the budget" if budget is None else f"within {duration(budget)} of training"
    wall = "" if budget is None else by_the_wall(results, verdict.fastest, budget)
    return f"{metric.words} {metric.shown(found[f'median_{metric.name}'])} {within}{wall}"


if TYPE_CHECKING:
    from raybench.results.load import StudyResults

MOST_ROWS = 5
"""Of the table in a notebook."""
FRAMES = ("trials", "curves", "confirmed", "configurations", "scaling")
PLURALS = {"search": "search", "confirm": "confirming", "reference": "reference"}


def lines_of(results: "StudyResults") -> list[str]:
    """Return the answer, what stands behind it, and where: a line each."""
    return [*answer_of(results), _counted(results), _where(results)]


def answer_of(results: "StudyResults") -> list[str]:
    """Return what a study found, in one or two sentences: those of the page and the terminal."""
    if results.trials.empty:
        return ["No run has finished yet." if results.owner else "No run has finished."]
    if results.is_scaling:
        return scaling_answer(results.scaling) or [_fastest_cell(results)]
    if results.study["study"].get("run"):
        return [_trained(results)]
    verdict = results.verdict
    lines = answer_lines(results, verdict) or verdict_lines(results, verdict)
    return [clean(line) for line in lines]


def html_of(results: "StudyResults") -> str:
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


def _best(results: "StudyResults") -> list[dict[str, str]]:
    if results.is_scaling or results.trials.empty:
        return []
    metric = results.metric
    rows = []
    for row in results.configurations.head(MOST_ROWS).to_dict("records"):
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


def _counted(results: "StudyResults") -> str:
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


def _where(results: "StudyResults") -> str:
    frames = [name for name in FRAMES if (name == "scaling") <= results.is_scaling]
    if results.is_scaling:
        frames = ["scaling", "scaling_runs", "curves"]
    return f"{clean(shown(results.place, results.folder))}: .{', .'.join(frames)}, .plot"


def _trained(results: "StudyResults") -> str:
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


def _fastest_cell(results: "StudyResults") -> str:
    """Name the cell of the most samples per second, where no speed-up is known."""
    cells = results.scaling[results.scaling["samples_per_s"].notna()]
    if cells.empty:
        return "No result: no cell has a speed yet."
    best = cells.nlargest(1, "samples_per_s").to_dict("records")[0]
    workers = counted(int(best["num_workers"]), "worker")
    speed = f"{best['samples_per_s']:,.0f}"
    return clean(f"Most samples per second: {speed} with {workers}, {best['curve']}.")
