"""The winners of several studies: in a table, and which of them is first."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from raybench.core.dataset_spec import DatasetSpec
from raybench.core.documents import validate
from raybench.core.errors import UserError
from raybench.results.load import StudyResults
from raybench.results.page.overlay import Named
from raybench.results.page.provenance import words
from raybench.results.verdict import judge
from raybench.results.words import duration, target_in_words

COMPARED = {
    "metric": "metrics",
    "target": "targets",
    "workload": "models",
    "dataset": "data",
}
"""What must be alike for a winner to be named among studies, and what it is called."""
SIZES = ("shape", "num_classes", "num_samples")
"""Keys of a dataset that follow from it, and that not every version wrote."""


def conditions(results: StudyResults) -> dict[str, str]:
    """Return what studies are compared by, and the machine, each in words."""
    study = results.study["study"]
    dataset = study.get("dataset")
    machine = results.study.get("machine")
    gpus = sorted({one for run in results.runs.values() for one in run.accelerators})
    cores = (
        [str(machine.get("processor")), f"{machine.get('cores')} cores"]
        if isinstance(machine, Mapping)
        else []
    )
    return {
        "metric": results.metric.words,
        "target": target_in_words(results) if results.is_timed else "best at the budget",
        "workload": words(study.get("workload")),
        "dataset": _asked(dataset) if isinstance(dataset, Mapping) else words(dataset),
        "machine": ", ".join([*cores, *gpus]),
    }


def _asked(dataset: Mapping[str, Any]) -> str:
    """Return what was asked for of a dataset: keys that later versions added make no difference."""
    given = {key: value for key, value in dataset.items() if key not in SIZES}
    try:
        spec = validate(DatasetSpec, given, "dataset")
    except UserError:
        return words(given)  # of another version
    other = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    return ", ".join([spec.name, *([words(other)] if other else [])])


def differing(studies: Sequence[StudyResults]) -> list[str]:
    """Return what studies must be alike in to be compared, and are not, in words."""
    found = [conditions(one) for one in studies]
    return [words for key, words in COMPARED.items() if len({one[key] for one in found}) > 1]


def winner_rows(studies: Named) -> list[dict[str, Any]]:
    """Return a row for each study with a winner: its numbers, missing ones as NaN."""
    rows = []
    for name, results in studies:
        verdict = None if results.is_scaling or results.trials.empty else judge(results)
        if verdict is None:
            continue
        row = _row(results.configurations, verdict.fastest)
        low = high = math.nan
        if verdict.is_confirmed:
            sure = _row(results.confirmed, verdict.fastest)
            ends = ("interval_low_s", "interval_high_s")
            if not results.is_timed:
                ends = (
                    f"interval_low_{results.metric.name}",
                    f"interval_high_{results.metric.name}",
                )
            low, high = float(sure[ends[0]]), float(sure[ends[1]])
        rows.append(
            {
                "study": name,
                "trial": verdict.fastest,
                "config": row["config"],
                "seconds": float(row["time_to_target_s"]),
                "low": low,
                "high": high,
                "worker_seconds": float(row["worker_seconds_to_target"]),
                "value": float(row[results.metric.best_column]),
                "is_confirmed": verdict.is_confirmed,
            }
        )
    return rows


def _row(table: pd.DataFrame, trial: str) -> dict[Any, Any]:
    return table[table["trial"] == trial].to_dict("records")[0]


def winners_table(studies: Named) -> pd.DataFrame:
    """Return the winners in words and units, a row a study; one without a winner says so."""
    by_name = {row["study"]: row for row in winner_rows(studies)}
    rows = []
    for name, results in studies:
        row, metric = by_name.get(name), results.metric
        where = conditions(results)
        given: dict[str, Any] = {"study": name, "fastest or best": "none"}
        if row is not None:
            ends = row["low"], row["high"]
            form = (lambda end: f"{end:.3g}") if results.is_timed else metric.shown
            given = {
                "study": name,
                "fastest or best": f"{row['config']} (trial {row['trial']})",
                "seconds to target": row["seconds"],
                "90 %": " to ".join(map(form, ends)) if all(map(math.isfinite, ends)) else None,
                "worker-seconds": row["worker_seconds"],
                "value": f"{metric.words} {metric.shown(row['value'])}",
                "confirmed": row["is_confirmed"],
            }
        rows.append(
            given
            | {
                "target": where["target"],
                "model": where["workload"],
                "data": where["dataset"],
                "machine": where["machine"],
                "runs": len(results.runs),
            }
        )
    table = pd.DataFrame(rows)
    return table.dropna(axis="columns", how="all")


def winner_sentence(studies: Named) -> str:
    """Return which study's winner is first, and whether that is told from the next."""
    results = studies[0][1]
    rows = winner_rows(studies)
    if not rows:
        return f"None of the {len(studies)} studies has an answer yet."
    is_timed, metric = results.is_timed, results.metric
    worst_last = {
        row["study"]: (row["seconds"] if is_timed else -metric.sign * row["value"]) for row in rows
    }
    rows.sort(key=lambda row: worst_last[row["study"]])
    best, *others = rows

    def said(row: dict[str, Any]) -> str:
        return duration(row["seconds"]) if is_timed else metric.shown(row["value"])

    if is_timed:
        head = f"Fastest to {target_in_words(results)}: {best['study']}, {said(best)} of training"
    else:
        what = metric.superlative
        head = f"{what[0].upper()}{what[1:]}: {best['study']}, {metric.words} {said(best)}"
    if not others:
        return f"{head}; no other study has an answer."
    against = ", ".join(f"{said(row)} ({row['study']})" for row in others[:3])
    return f"{head}, against {against}{_told(best, others)}."


def _told(best: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """Say whether the first is told from the others: by 90 % intervals that do not overlap."""
    if not all(row["is_confirmed"] for row in (best, *others)):
        return "; not all of them are confirmed"
    for row in others:
        if best["low"] <= row["high"] and row["low"] <= best["high"]:
            return "; their 90 % intervals overlap, so the difference may be chance"
    return "; their 90 % intervals do not overlap"
