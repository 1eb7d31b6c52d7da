"""A study at a glance: what Python prints of it, and what a notebook shows."""

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from raybench.core.text import clean
from raybench.results.answer import answer_lines
from raybench.results.place import shown
from raybench.results.scaling.answer import scaling_answer
from raybench.results.words import counted, target_words, verdict_lines

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
