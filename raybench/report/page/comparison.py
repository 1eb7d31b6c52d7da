"""Comparison of the winners of several studies, for their common page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.report.page.tables import HtmlTable, table_of
from raybench.report.words import duration, target_in_words
from raybench.results.study import Study
from raybench.results.verdict import winners
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.documents import validate

Named = Sequence[tuple[str, Study]]
"""Studies with unique names."""
COMPARED_CONDITIONS = {
    "metric": "metrics",
    "target": "targets",
    "workload": "models",
    "dataset": "data",
}
"""Conditions that must be equal for studies to be comparable, and their names."""
DERIVED_KEYS = ("shape", "num_classes", "num_samples")
"""Keys of a dataset that follow from the others."""


@dataclass(frozen=True)
class PageComparison:
    """The part of the page above the studies."""

    headline: str
    caveats: Sequence[str]
    """Limits of the comparison."""
    winners: HtmlTable


def compared(named: Named) -> PageComparison:
    """Return the comparison of several studies."""
    studies = [one for _, one in named]
    if any(one.is_scaling for one in studies):
        headline = f"{len(named)} studies side by side"
    elif apart := differing(studies):
        unlike = f"{len(named)} studies with different {' and '.join(apart)}"
        headline = f"{unlike}: none is named the best of them"
    else:
        headline = winner_sentence(named)
    others = "They ran on different machines, so their seconds differ by that too."
    caveats = [others] if len({conditions(one)["machine"] for one in studies}) > 1 else []
    table = table_of(winners_table(named), "The winner of each study")
    return PageComparison(headline, caveats, table)


def words(value: Any) -> str:
    """Return plain data in words, `ray 2.60.0, torch 2.15.0`, without empty values."""
    if isinstance(value, Mapping):
        known = {key: one for key, one in value.items() if one is not None and one not in ({}, [])}
        return ", ".join(f"{key} {words(inner)}" for key, inner in known.items())
    return "; ".join(map(words, value)) if isinstance(value, list) else str(value)


def conditions(results: Study) -> dict[str, str]:
    """Return the conditions of a study in words: those of COMPARED_CONDITIONS, and the machine."""
    study, machine = results.study["study"], results.study.get("machine")
    gpus = sorted({one for run in results.runs.values() for one in run.accelerators})
    cores = []
    if isinstance(machine, Mapping):
        cores = [str(machine.get("processor")), f"{machine.get('cores')} cores"]
    return {
        "metric": results.metric.words,
        "target": target_in_words(results) if results.is_timed else "best at the budget",
        "workload": words(study.get("workload")),
        "dataset": _dataset_words(study.get("dataset")),
        "machine": ", ".join([*cores, *gpus]),
    }


def _dataset_words(dataset: Any) -> str:
    """Return a dataset's name and the keys that differ from their defaults."""
    if not isinstance(dataset, Mapping):
        return words(dataset)
    given = {key: value for key, value in dataset.items() if key not in DERIVED_KEYS}
    spec = validate(DatasetSpec, given, "dataset")
    other = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    return ", ".join([spec.name, *([words(other)] if other else [])])


def differing(studies: Sequence[Study]) -> list[str]:
    """Return the names of the conditions of COMPARED_CONDITIONS in which studies differ."""
    found = [conditions(one) for one in studies]
    return [
        words for key, words in COMPARED_CONDITIONS.items() if len({one[key] for one in found}) > 1
    ]


def _winner(results: Study) -> pd.Series | None:
    """Return the row of `results.verdict.winners` of the winner; None without one."""
    table = pd.DataFrame() if results.is_scaling or results.trials.empty else winners(results)
    return None if table.empty else table.iloc[0]


def _judged(results: Study, row: pd.Series) -> tuple[float, float, float]:
    """Return the winner's seconds to the target or its value, and the ends of its 90 % interval."""
    if results.is_timed:
        return row["seconds"], row["low_s"], row["high_s"]
    name = results.metric.name
    return row[results.metric.best_column], row[f"low_{name}"], row[f"high_{name}"]


def winners_table(studies: Named) -> pd.DataFrame:
    """Return one row per study with its winner and conditions; columns are words with units."""
    rows = []
    for name, results in studies:
        row: dict[str, Any] = {"study": name, "fastest or best": "none"}
        one, metric, where = _winner(results), results.metric, conditions(results)
        if one is not None:
            judged, *ends = _judged(results, one)
            row["fastest or best"] = f"{one['config']} (trial {one['trial']})"
            row["seconds to target"] = judged if results.is_timed else math.nan
            form = (lambda end: f"{end:.3g}") if results.is_timed else metric.shown
            row["90 %"] = " to ".join(map(form, ends)) if all(map(math.isfinite, ends)) else None
            row["worker-seconds"] = one["worker_seconds"]
            row["value"] = f"{metric.words} {metric.shown(one[metric.best_column])}"
            row["confirmed"] = bool(one["is_confirmed"])
        row |= {"target": where["target"], "model": where["workload"], "data": where["dataset"]}
        rows.append(row | {"machine": where["machine"], "runs": len(results.runs)})
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def winner_sentence(studies: Named) -> str:
    """Return which study has the best winner, and whether other intervals overlap it."""
    found = [(name, one, row) for name, one in studies if (row := _winner(one)) is not None]
    if not found:
        return f"None of the {len(studies)} studies has an answer yet."
    results = studies[0][1]
    sign = 1 if results.is_timed else -results.metric.sign
    rows = sorted(
        ((name, *_judged(one, row), row["is_confirmed"]) for name, one, row in found),
        key=lambda row: sign * row[1],
    )
    (best, value, low, high, _), *others = rows
    if results.is_timed:
        head = f"Fastest to {target_in_words(results)}: {best}, {duration(value)} of training"
    else:
        metric = results.metric
        what = metric.superlative[0].upper() + metric.superlative[1:]
        head = f"{what}: {best}, {metric.words} {metric.shown(value)}"
    if not others:
        return f"{head}; no other study has an answer."
    said = duration if results.is_timed else results.metric.shown
    against = ", ".join(f"{said(row[1])} ({row[0]})" for row in others[:3])
    if not all(is_confirmed for *_, is_confirmed in rows):
        sure = "not all of them are confirmed"
    elif any(low <= row[3] and row[2] <= high for row in others):
        sure = "their 90 % intervals overlap, so the difference may be chance"
    else:
        sure = "their 90 % intervals do not overlap"
    return f"{head}, against {against}; {sure}."
