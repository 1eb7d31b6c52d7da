"""What is fitted to a scaling study: throughput models, one for each series and model of GPU, the
critical batch by the noise of gradients, and the plan to the target.

Of a study with one batch size, samples to target come from the noise of its gradients.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from raybench.results.study import Study
from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.cells import scaling_runs, series_of
from raybench.scaling.fit_command import FittedGroup, cells_matched, fits
from raybench.scaling.measurements import Cell, Group, Measurements
from raybench.scaling.noise_scale import critical_batch, noise_scales
from raybench.scaling.plan import StepSeconds, answers, plan, with_measured
from raybench.scaling.runs import MISSES
from raybench.scaling.samples_to_target import SamplesToTarget, fit, from_noise_scale, read
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy, study_cells
from raybench.spec.text import counted

DOUBLINGS = 2
"""Of the most workers measured, which are predicted where nothing else is asked."""
LEAST_CELLS = 3
"""Of a series: one can be left out then, and the others still say something."""


def fit_study(results: Study, predict: str | None) -> list[FittedGroup]:
    """Fit the steps of each series, and predict: at numbers of workers, or the cells of a file.

    Without `predict`, at the next doublings of the most workers measured. Series of fewer than
    LEAST_CELLS, or on one number of workers, say too little of how a training scales: no fit. Pairs
    of the file that the study has not measured are left out: `not_measured` names them.
    """
    measured = measurements(results)
    if not measured.groups:
        return []
    if predict is None:
        most = max(cell.num_workers for rows in measured.groups.values() for cell, _ in rows)
        predict = ",".join(str(most * 2 ** (i + 1)) for i in range(DOUBLINGS))
    asked, _ = cells_matched(predict, measured)
    return list(fits(measured, asked))


def not_measured(results: Study, predict: str | None) -> list[str]:
    """Return a sentence for each pair that is to be predicted and has no fit."""
    measured = measurements(results)
    if predict is None or not measured.groups:
        return []
    return [f"Not predicted: {one}" for one in cells_matched(predict, measured)[1]]


def measurements(results: Study) -> Measurements:
    """Return what a study measured of each series that can be fitted: a row a repeat.

    Runs that exchange no gradients are left out: they are probes, no training. So are those whose
    batch is larger than an epoch: no step ever had as many samples as the cell says.
    """
    groups: dict[Group, list[tuple[Cell, float]]] = defaultdict(list)
    for row, spec, series in _runs(results):
        is_whole = spec.global_batch_size <= row["epoch_samples"]
        if row["step_median_s"] > 0 and spec.exchange_gradients and is_whole:
            nodes = max(int(row["num_nodes"]), 1)
            cell = Cell(spec.num_workers, nodes, spec.batch_size_per_worker, spec.accumulate)
            groups[series, str(row["accelerators"])].append((cell, float(row["step_median_s"])))
    fitting = {key: rows for key, rows in groups.items() if _can_be_fitted(rows)}
    return Measurements(results.place, fitting)


def _can_be_fitted(rows: list[tuple[Cell, float]]) -> bool:
    cells = {cell for cell, _ in rows}
    return len(cells) >= LEAST_CELLS and len({cell.num_workers for cell in cells}) > 1


def _runs(results: Study) -> Iterator[tuple[dict[Hashable, Any], RunSpec, str]]:
    """Yield each run: its row of `scaling_runs`, run spec and series."""
    cells = study_cells(results.scaling_study)
    names = series_of([cell.spec for cell in cells])
    known = {cell.name: (cell.spec, series) for cell, series in zip(cells, names, strict=True)}
    for row in scaling_runs(results).to_dict("records"):
        yield row, *known[row["cell"]]


def critical_batches(results: Study) -> dict[str, list[float]]:
    """Return, for each series, the critical batch that each run's gradients tell of, if they do."""
    found: dict[str, list[float]] = {}
    for row, spec, series in _runs(results):
        points = results.evaluations.get(row["trial"], ())
        scales = noise_scales(one.noise_scale for one in points if one.noise_scale is not None)
        value = critical_batch(scales, spec.global_batch_size)
        if math.isfinite(value):
            found.setdefault(series, []).append(value)
    return found


def noise_lines(results: Study) -> list[str]:
    """Say what the runs of each series tell of the critical batch, if they do."""
    return [
        f"{series}: by the noise of the gradients the critical batch is about "
        f"{statistics.median(found):,.3g} ({_over_runs(found)}); right within a factor of three, "
        "as such figures go."
        for series, found in critical_batches(results).items()
    ]


def _over_runs(values: Sequence[float]) -> str:
    spread = f", {min(values):,.3g} to {max(values):,.3g}" if len(values) > 1 else ""
    return f"{counted(len(values), 'run')}{spread}"


TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The one batch size: what a plan tries beside it. Farther away neither the noise scale nor the
throughput model has much to say."""


NO_GPU = "CPU"
"""Kind of worker where there are no GPUs."""


@dataclass(frozen=True)
class TargetPlan:
    """A plan for one series."""

    series: str
    sentences: tuple[str, ...]
    """What is known of the critical batch, or why there is no plan."""
    table: pd.DataFrame
    """`scaling.plan.with_measured`, and the series; empty where there is no plan."""
    answers: pd.DataFrame
    """`scaling.plan.answers`; empty where there is no plan."""


def target_plans(results: Study, fitted: Sequence[FittedGroup]) -> list[TargetPlan]:
    """Return a plan for each series with a throughput model; none where the study has no target.

    The batch sizes are those that ran (where one did, some near it, by the noise of the gradients),
    the layouts those that ran and those that were predicted.
    """
    if results.target is None:
        return []
    by_series: dict[str, dict[str, FittedGroup]] = {}
    for one in fitted:
        by_series.setdefault(one.group[0], {})[one.group[1] or NO_GPU] = one
    runs, noise, study = measured_runs(results), critical_batches(results), results.scaling_study
    return [
        _plan(series, groups, runs[runs["series"] == series], study, noise.get(series, []))
        for series, groups in by_series.items()
    ]


def measured_runs(results: Study) -> pd.DataFrame:
    """Return a row for each run: series, where it ran, and what it needed to the target.

    Runs that diverged, or found no memory, never reached it. Samples spent are missing there: they
    would not have done so however long they went on, where others may have been ended too early.
    """
    rows = [
        {
            "series": series,
            "gpu_type": row["accelerators"] or NO_GPU,
            "num_workers": spec.num_workers,
            "num_nodes": max(row["num_nodes"], 1),
            "global_batch_size": spec.global_batch_size,
            "seconds_to_target": row["time_to_target_s"],
            "samples_to_target": row["samples_to_target"],
            "samples_spent": math.nan if row["failure"] in MISSES else row["samples"],
        }
        for row, spec, series in _runs(results)
        if pd.isna(row["failure"]) or row["failure"] in MISSES
    ]
    table = pd.DataFrame(rows)
    numbers = dict.fromkeys(("seconds_to_target", "samples_to_target", "samples_spent"), float)
    return table.astype(numbers) if rows else table


def _plan(
    series: str,
    groups: Mapping[str, FittedGroup],
    runs: pd.DataFrame,
    study: ScalingStudy,
    noise: Sequence[float],
) -> TargetPlan:
    price = study.price
    cells = [cell for one in groups.values() for cell in (*one.model.observed.cells, *one.asked)]
    try:
        curve, sentence, batch_sizes = _curve(runs, noise)
        found = plan(
            curve,
            {kind: partial(_step_seconds, one.model) for kind, one in groups.items()},
            layouts=sorted({(cell.num_workers, cell.num_nodes) for cell in cells}),
            batch_sizes=batch_sizes,
            prices=dict.fromkeys(groups, price) if isinstance(price, float | int) else price,
        )
    except UserError as error:  # too few batch sizes reached it: that is the result, then
        return TargetPlan(series, (f"No plan: {error}",), pd.DataFrame(), pd.DataFrame())
    beside = with_measured(found, runs).assign(series=series)
    return TargetPlan(series, (sentence,), beside, answers(beside, budget=study.budget))


def _curve(runs: pd.DataFrame, noise: Sequence[float]) -> tuple[SamplesToTarget, str, list[int]]:
    """Return the curve of samples to target, what to say of it, and batch sizes to plan with.

    Where one batch size alone reached the target, others follow from the noise of the gradients;
    where several did, a curve is fitted to those.
    """
    table = read(runs.rename(columns={"global_batch_size": "batch_size"}))
    ran = {size.batch_size for size in table.batch_sizes}
    known = [size for size in table.batch_sizes if size.samples is not None]
    critical = statistics.median(noise) if noise else 0.0
    if len(known) != 1 or not critical > 0:
        curve = fit(table)
        return curve, curve.sentence(), sorted(ran)
    batch, samples = known[0].batch_size, float(known[0].samples or 0)
    curve = from_noise_scale(batch, samples, critical, missed=tuple(ran - {batch}))
    sentence = (
        f"Of one batch size, {batch}, is known what it needs to the target; what others need "
        "follows from the noise of the gradients, which is right within a factor of three: they "
        "were not run."
    )
    near = {int(times * batch) for times in TIMES if times * batch >= 1}
    return curve, sentence, sorted(ran | near)


def _step_seconds(
    model: ThroughputModel, num_workers: int, num_nodes: int, own_samples: int, /
) -> StepSeconds:
    """Predict a step in which a worker has so many samples, in as many passes as were measured."""
    passes = max(cell.accumulate for cell in model.observed.cells)
    batch = max(own_samples // passes, 1)
    (found,) = model.predict([Cell(num_workers, num_nodes, batch, passes)])
    return StepSeconds(found.step_s, found.low_s, found.high_s)
