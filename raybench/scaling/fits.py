"""Fits to scaling studies: a throughput model for each series and GPU model, the critical batch
size from the gradient noise scale, and plans for reaching the target.

Several studies may be passed if they measure the same training on different kinds of machines. The
curve of samples to target by batch size is then fitted to all of them together.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from raybench.results.study import Study
from raybench.results.trials import accelerators_of
from raybench.scaling.averaged import ThroughputModel
from raybench.scaling.cells import MISSES, scaling_runs, series_of
from raybench.scaling.fit_command import FittedSeries, cells_to_predict, fits
from raybench.scaling.measurements import Cell, MeasuredSteps, Measurements, Predicted, SeriesKey
from raybench.scaling.plan import (
    KEYS,
    MONEY,
    NO_GPU,
    WORKER_SECONDS,
    Overhead,
    answers,
    offers_of,
    plan,
    with_measured,
)
from raybench.scaling.samples_to_target import fit, read
from raybench.spec.errors import UserError
from raybench.spec.run import RESOURCES, RunSpec
from raybench.spec.scaling_study import MachinePrice, study_cells
from raybench.spec.text import counted
from raybench.stats.step_times import NoiseSums

DOUBLINGS = 2
"""Number of doublings beyond the largest measured worker count that are predicted by default."""
LEAST_CELLS = 3
"""Minimum number of cells in a series that is fitted, so that two remain when one is left out."""


def fit_study(
    *studies: Study, predict: str | None = None, allow_few: bool = False
) -> list[FittedSeries]:
    """Fit a throughput model to each series (cells that differ only in workers and batch size).

    Args:
        *studies: Scaling studies of the same training.
        predict: Worker counts, or a file of cells to predict; None for DOUBLINGS doublings beyond
            the largest measured worker count.
        allow_few: Whether to fit series with fewer than LEAST_CELLS cells, or with a single worker
            count, too.

    Returns:
        The fitted series.
    """
    measured = measurements(*studies, allow_few=allow_few)
    if not measured:
        return []
    if predict is None:
        max_workers = max(cell.num_workers for rows in measured.values() for cell, _ in rows)
        predict = ",".join(str(max_workers * 2 ** (i + 1)) for i in range(DOUBLINGS))
    return list(fits(measured, cells_to_predict(predict, measured)))


def measurements(*studies: Study, allow_few: bool = False) -> Measurements:
    """Return the median step time of each run, by series that can be fitted.

    Runs that exchange no gradients are left out, since they only measure the cost of the exchange.
    Runs whose global batch size exceeds an epoch are left out too, since no step has that many
    samples.

    Args:
        *studies: Scaling studies of the same training.
        allow_few: Whether to include series with fewer than LEAST_CELLS cells, or with a single
            worker count, too.
    """
    measured: dict[SeriesKey, list[tuple[Cell, float]]] = defaultdict(list)
    for _, row, spec, series in _runs(*studies):
        is_whole = spec.global_batch_size <= row["epoch_samples"]
        if row["step_median_s"] > 0 and spec.exchange_gradients and is_whole:
            nodes = max(int(row["num_nodes"]), 1)
            cell = Cell(spec.num_workers, nodes, spec.batch_size_per_worker, spec.accumulate)
            key = SeriesKey(series, str(row["accelerators"]))
            measured[key].append((cell, float(row["step_median_s"])))

    def is_enough(rows: MeasuredSteps) -> bool:
        cells = {cell for cell, _ in rows}
        return len(cells) >= LEAST_CELLS and len({cell.num_workers for cell in cells}) > 1

    return {key: rows for key, rows in measured.items() if allow_few or is_enough(rows)}


def _runs(*studies: Study) -> Iterator[tuple[Study, dict[Hashable, Any], RunSpec, str]]:
    """Yield (study, row of `scaling_runs`, run spec, name of the series) for each run."""
    names = iter(series_of([spec for study in studies for spec in _comparable(study, studies)]))
    for study in studies:
        cells = study_cells(study.scaling_study)
        by_name = {cell.name: (cell.spec, next(names)) for cell in cells}
        for row in scaling_runs(study).to_dict("records"):
            yield study, row, *by_name[row["cell"]]


def _comparable(study: Study, studies: Sequence[Study]) -> list[RunSpec]:
    """Return the run specs of a study's cells, with common values for keys that do not distinguish
    series.

    These keys are:

    - the GPU model,
    - the resources that are the same in all cells of the study, if no two studies ran on the same
      GPU model,
    - `objective` and `epochs`, if the study has no target.
    """
    specs = [cell.spec for cell in study_cells(study.scaling_study)]
    kinds = [{accelerators_of(run) for run in other.runs.values()} for other in studies]
    are_apart = len(set().union(*kinds)) == sum(map(len, kinds))
    keys = [key for key in RESOURCES if are_apart and len({getattr(s, key) for s in specs}) == 1]
    keys += ["accelerator_type", *([] if study.target is not None else ("objective", "epochs"))]
    with_target = next(
        (other for other in studies if other.target is not None), study
    ).scaling_study.base
    common = {key: getattr(with_target, key) for key in keys}
    return [spec.model_copy(update=common) for spec in specs]


# The gradient noise scale. With per-sample covariance Sigma and true gradient G (both estimated in
# `stats.step_times`), B_simple = tr(Sigma) / |G|^2 approximates the critical batch; it is exact
# where the loss has the same curvature in all directions (McCandlish et al. 2018, arXiv 1812.06162,
# appendix A.1). The two terms are smoothed separately before they are divided, as the ratio of
# single steps has no mean (AdaptDL, of Pollux: Qiao et al. 2021, arXiv 2008.12260).
DECAY = 0.99
"""Decay per step of the moving averages; with this value, about the last 100 steps count."""


def noise_scales(evaluations: Iterable[NoiseSums], *, decay: float = DECAY) -> list[float]:
    """Return the gradient noise scale of a run at each evaluation.

    Args:
        evaluations: `Evaluation.noise_scale` of each evaluation; the steps since the previous
            evaluation have equal weights.
        decay: Decay per step of the moving averages; with 0.99, the result lags by about 100 steps.

    Returns:
        B_simple in samples, one value per evaluation; infinite if noise hides the gradient.
    """
    scales, gradient, noise = [], 0.0, 0.0
    for sums in evaluations:
        old = decay**sums.num_steps
        new = (1 - old) / sums.num_steps
        gradient, noise = old * gradient + new * sums.gradient, old * noise + new * sums.noise
        # At the start both averages are too small, but by the same factor.
        scales.append(max(noise, 0.0) / gradient if gradient > 0 else math.inf)
    return scales


def critical_batch(noise_scales: Sequence[float], batch_size: float) -> float:
    """Return the critical batch size of a run: the progress-weighted mean of its noise scales.

    The noise scale grows during training. A step at batch size B has the weight
    1 / (1 + B_simple / B), which is its progress relative to a step without noise (McCandlish et
    al. 2018, eq. 2.7 and appendix D).

    Args:
        noise_scales: B_simple at each evaluation; values that are not finite are ignored.
        batch_size: Global batch size of the run.

    Returns:
        Critical batch size in samples; NaN without a finite noise scale.
    """
    finite = [scale for scale in noise_scales if math.isfinite(scale)]
    progress = [1 / (1 + scale / batch_size) for scale in finite]
    if not finite:
        return math.nan
    weighted = (scale * weight for scale, weight in zip(finite, progress, strict=True))
    return sum(weighted) / sum(progress)


def critical_batches(*studies: Study) -> dict[str, list[float]]:
    """Return the critical batch size of each run with recorded gradient noise, by series."""
    by_series: dict[str, list[float]] = {}
    for study, row, spec, series in _runs(*studies):
        points = study.evaluations.get(row["trial"], ())
        scales = noise_scales(
            point.noise_scale for point in points if point.noise_scale is not None
        )
        value = critical_batch(scales, spec.global_batch_size)
        if math.isfinite(value):
            by_series.setdefault(series, []).append(value)
    return by_series


def noise_lines(results: Study) -> list[str]:
    """Return one sentence for each series with recorded gradient noise, on its critical batch
    size."""
    return [
        f"{series}: by the gradient noise, the critical batch is about "
        f"{statistics.median(batches):,.3g} ({counted(len(batches), 'run')}"
        + (f", {min(batches):,.3g} to {max(batches):,.3g}" if len(batches) > 1 else "")
        + "); such estimates are right within a factor of three."
        for series, batches in critical_batches(results).items()
    ]


@dataclass(frozen=True)
class Terms:
    """Prices and limits for a plan."""

    prices: Mapping[str, MachinePrice] | float | None = None
    """Machines with their prices by name, or the price of a worker-hour; None if each worker costs
    1 per second."""
    budget: float | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class TargetPlan:
    """Plan for one series: predicted time and cost to the target by machines, workers and batch
    size."""

    series: str
    sentences: tuple[str, ...]
    """Sentences about the critical batch size, or about why there is no plan, and about machines
    that were not measured."""
    table: pd.DataFrame
    """Result of `plan.with_measured` with two more columns: `series` and `unit`, the unit of costs.
    Empty if there is no plan."""
    answers: pd.DataFrame
    """Result of `scaling.plan.answers`; empty if there is no plan."""
    terms: Terms


def target_plans(
    studies: Sequence[Study], fitted: Sequence[FittedSeries], terms: Terms | None = None
) -> list[TargetPlan]:
    """Return a plan for each fitted series; [] if no study has a target.

    The plans cover the batch sizes that were run, and the layouts (workers, nodes) that were run or
    predicted.

    Args:
        studies: Scaling studies of the same training.
        fitted: Fitted series of these studies.
        terms: Prices and limits; None for those of the first study.
    """
    if all(study.target is None for study in studies):
        return []
    if terms is None:
        terms = Terms(studies[0].scaling_study.price, studies[0].scaling_study.budget)
    by_series: dict[str, dict[str, FittedSeries]] = {}
    for series_fit in fitted:
        by_series.setdefault(series_fit.key.model, {})[series_fit.key.gpu_type or NO_GPU] = (
            series_fit
        )
    runs = measured_runs(*studies)
    return [
        _plan(series, groups, runs[runs["series"] == series], terms)
        for series, groups in by_series.items()
    ]


def measured_runs(*studies: Study) -> pd.DataFrame:
    """Return a table with one row per run: its series and cell, and its time and samples to the
    target.

    A run that diverged or ran out of memory counts as one that never reached the target.

    | column | meaning |
    |---|---|
    | ready_s | seconds of the cold start of a worker group (median over runs with the same |
    |  | gpu_type), setup and compilation |
    | beside_s | seconds of evaluating, saving and reporting, per training sample |
    | stalls | training seconds, divided by those without stalls |
    | work_s | seconds of training, evaluating, saving and reporting up to the target; missing if |
    |  | it was not reached |
    """
    rows = []
    for study, row, spec, series in _runs(*studies):
        if not pd.isna(row["failure"]) and row["failure"] not in MISSES:
            continue
        ledger, samples = study.runs[row["trial"]].ledger, row["samples"] or math.nan
        beside_s = sum(ledger[name] for name in ("eval", "checkpoint", "report")) / samples
        reached = study.target is not None and pd.notna(row["time_to_target_s"])
        to_target = row["samples_to_target"] if reached else math.nan
        rows.append(
            {
                "series": series,
                "gpu_type": row["accelerators"] or NO_GPU,
                "num_workers": spec.num_workers,
                "num_nodes": max(row["num_nodes"], 1),
                "global_batch_size": spec.global_batch_size,
                "has_target": study.target is not None,
                "work_s": row["time_to_target_s"] + beside_s * to_target if reached else math.nan,
                "samples_to_target": to_target,
                "start_s": ledger["start"],
                "ready_s": ledger["setup"] + ledger["compile"],
                "beside_s": beside_s,
                "stalls": row["train_s"] * row["samples_per_s"] / samples,
            }
        )
    table = pd.DataFrame(rows)
    if not rows:
        return table
    cold = table["start_s"].where(table["start_s"] > 0)
    table["ready_s"] += cold.groupby(table["gpu_type"]).transform("median").fillna(0.0)
    return table


UNKNOWN = {"ready_s": 0.0, "beside_s": 0.0, "stalls": 1.0}
"""Default values for the fields of `Overhead` that were not measured."""


def _overhead(runs: pd.DataFrame, kind: str, workers: int) -> Overhead:
    """Return the expected overhead of a job: medians over runs on the same kind of worker, with the
    worker count nearest to `workers`."""
    kind_runs = runs[runs["gpu_type"] == kind]
    distances = np.abs(np.log(kind_runs["num_workers"] / workers))
    near = kind_runs.loc[distances == distances.min(), [*UNKNOWN]].median()
    return Overhead(*near.fillna(UNKNOWN))


def run_spread(runs: pd.DataFrame) -> float | None:
    """Return the half-width of the 90 % interval of log `work_s` of a run, around the median of its
    cell.

    The variance is pooled over all cells (Student's t). None if no cell was repeated.
    """
    logs = np.log(runs["work_s"]).groupby([runs[key] for key in KEYS])
    freedom = (logs.count() - 1).clip(lower=0).sum()
    if not freedom:
        return None
    squares = (logs.var() * (logs.count() - 1)).sum()
    return float(stdtrit(freedom, 0.95) * np.sqrt(squares / freedom))


def _plan(
    series: str, groups: Mapping[str, FittedSeries], runs: pd.DataFrame, terms: Terms
) -> TargetPlan:
    cells = [
        cell
        for series_fit in groups.values()
        for cell in (*series_fit.model.observed.cells, *series_fit.asked)
    ]
    runs_to_target = runs[runs["has_target"]]
    try:
        offers = offers_of(list(groups), terms.prices)
        by_batch = read(runs_to_target.rename(columns={"global_batch_size": "batch_size"}))
        curve = fit(by_batch)
        predicted = plan(
            curve,
            {
                kind: partial(predicted_steps, series_fit.model)
                for kind, series_fit in groups.items()
            },
            layouts=sorted({(cell.num_workers, cell.num_nodes) for cell in cells}),
            batch_sizes=[size.batch_size for size in by_batch.batch_sizes],
            offers=offers,
            overhead=cache(partial(_overhead, runs)),
            run_spread=run_spread(runs_to_target),
        )
    except UserError as error:  # too few batch sizes reached the target
        none = pd.DataFrame()
        return TargetPlan(series, (f"No plan: {error}",), none, none, terms)
    unit = WORKER_SECONDS if terms.prices is None else MONEY
    table = with_measured(predicted, runs_to_target).assign(series=series, unit=unit)
    left_out = {*groups} - {offer.kind for offer in offers}
    notes = [f"Without a price, and left out: {', '.join(sorted(left_out))}."] if left_out else []
    if isinstance(terms.prices, Mapping):
        unseen = [name for name in terms.prices if name not in {offer.name for offer in offers}]
        notes += [f"Not measured, and left out: {', '.join(unseen)}."] if unseen else []
    best_rows = answers(table, budget=terms.budget, deadline_s=terms.deadline_s)
    return TargetPlan(series, (curve.sentence(), *notes), table, best_rows, terms)


def predicted_steps(
    model: ThroughputModel, cells: Sequence[tuple[int, int, int]], /
) -> list[Predicted]:
    """Predict the seconds of a step for each (workers, nodes, samples per worker and step).

    The samples are split evenly into as many passes as possible, up to the largest measured number
    of passes.
    """
    max_passes = max(cell.accumulate for cell in model.observed.cells)
    asked = []
    for workers, nodes, samples in cells:
        passes = next(
            number for number in range(min(max_passes, samples), 0, -1) if samples % number == 0
        )
        asked.append(Cell(workers, nodes, samples // passes, passes))
    return [
        Predicted(prediction.step_s, prediction.low_s, prediction.high_s)
        for prediction in model.predict(asked)
    ]
