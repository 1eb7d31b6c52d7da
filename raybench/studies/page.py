"""The page of a scaling study: beside its records what its models predict, and published claims."""

from collections.abc import Callable
from pathlib import Path

from raybench.results.page import Extra, try_page
from raybench.scaling.measurements import name_of
from raybench.scaling.named.find import STUDIES
from raybench.studies.noise import critical_batches, noise_sentence
from raybench.studies.report import (
    NAMED,
    PREDICTED,
    ScalingReport,
    claims_table,
    plan_table,
)
from raybench.studies.show_fit import BASELINE, printed_fit


def try_scaling_page(report: ScalingReport, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Write the page of a scaling study, as `results.page.try_page` does."""
    extras = [] if report.results.scaling.empty else extras_of(report)
    return try_page(report.results, folder, say, extras)


def extras_of(report: ScalingReport) -> list[Extra]:
    """Return what a report knows beyond the records, in the order in which it is printed."""
    found = []
    for fitted, table in zip(report.fitted, report.predicted, strict=True):
        name = name_of(fitted.group)
        title = f"Predicted{f': {name}' if name else ''}"
        tables = [(f"~ beyond what was measured; {BASELINE}", printed_fit(table))]
        found.append(Extra(title, fitted.words(), tables if len(table) else ()))
    noise = [
        f"{series}: {noise_sentence(values)}"
        for series, values in critical_batches(report.results).items()
    ]
    if lines := [*report.not_predicted, *noise]:
        found.append(Extra("What else is told of other sizes", lines))
    for plan in report.plans:
        tables = [(PREDICTED, plan_table(plan))] if len(plan.answers) else []
        found.append(Extra(f"To the target: {plan.series}", plan.sentences, tables))
    named = report.results.study.get(NAMED)
    if named in STUDIES:
        title = f"What {named} published, and what held here"
        found.append(Extra(title, (), [("Claims of its paper", claims_table(report.results))]))
    return found
