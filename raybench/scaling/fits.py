"""Fits of measured step times, and critical batch sizes from the gradient noise scale.

A throughput model is fitted to each series. It predicts other cells, and its error is measured at
cells that were left out of the fit.

A cell is a combination of worker count, node count and batch size. Measurements come from a file
(`raybench scale --fit`) or from scaling studies. Several studies may be passed if they measure the
same training on different kinds of machines.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raybench.results.study import Study
from raybench.results.trials import accelerators_of
from raybench.scaling.averaged import (
    NUM_STEPS,
    NextCell,
    StepPrediction,
    ThroughputModel,
    least_sure,
    next_cells,
)
from raybench.scaling.cells import scaling_runs, series_of
from raybench.scaling.measurements import (
    NINE_OF_TEN,
    Cell,
    CellRow,
    MeasuredSteps,
    Measurements,
    Observed,
    SeriesKey,
    read_rows,
)
from raybench.scaling.throughput import PRIORS, Priors
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import RESOURCES, RunSpec
from raybench.spec.scaling_study import study_cells
from raybench.spec.text import counted
from raybench.stats.step_times import NoiseSums

SURE = 0.2
"""Prior standard deviation of log R if R was measured by an all-reduce; R is the slowdown of an
exchange between nodes (`throughput`). Training has another ratio than a plain all-reduce, because
it exchanges gradients in buckets and in parallel with compute."""


def network_priors(ratio: float) -> Priors:
    """Return the priors of the throughput law (`throughput`) for a network with a measured ratio.

    Args:
        ratio: Seconds of an all-reduce between hosts, divided by those within a host.
    """
    return PRIORS | {"log_network": (math.log(ratio), SURE)}


MOST_WORKERS = 1_000_000


def check_predict(predict: str | None) -> None:
    """Check, before anything runs, that `--predict` is a list of worker counts or a file of cells.

    Raises:
        UserError: It is neither.
    """
    if predict is not None and _worker_numbers(predict) is None:
        read_rows(Path(predict), CellRow)


def cells_to_predict(text: str, measured: Measurements) -> dict[SeriesKey, list[Cell]]:
    """Return the cells (workers, nodes, batch size) to predict for each measured series.

    Args:
        text: Worker counts separated by commas, or the name of a CSV file of cells. Worker counts
            are combined with every measured batch size; each node has as many workers as the
            fullest measured node.
        measured: Measured step times by series.
    """
    workers = _worker_numbers(text)
    if workers is None:
        listed = list(dict.fromkeys(row.cell for row in read_rows(Path(text), CellRow)))
        return dict.fromkeys(measured, listed)
    asked: dict[SeriesKey, list[Cell]] = {}
    for key, steps in measured.items():
        cells = [cell for cell, _ in steps]
        workers_per_node = max(cell.num_workers / cell.num_nodes for cell in cells)
        batches = sorted({(cell.batch_size_per_worker, cell.accumulate) for cell in cells})
        asked[key] = [
            Cell(k, math.ceil(k / workers_per_node), *batch) for k in workers for batch in batches
        ]
    return asked


def _worker_numbers(text: str) -> list[int] | None:
    """Return the worker counts that a string lists; None if it is the name of a file."""
    if Path(text).suffix:
        return None
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if not 1 <= numbers[0] <= numbers[-1] <= MOST_WORKERS:
        raise UserError(
            f"--predict {text[:40]}: not a list of worker counts; write numbers from 1 to "
            f"{MOST_WORKERS:,} separated by commas, such as 8,16,64, or name a CSV file.",
            ErrorCode.INVALID_VALUE,
        )
    return numbers


def prediction_table(model: ThroughputModel, cells: Sequence[Cell], key: SeriesKey) -> pd.DataFrame:
    """Return a table of predictions with one row per cell (workers, nodes, batch size).

    | column | meaning |
    |---|---|
    | model, gpu_type | the series; "" if the measurements have no such column |
    | num_workers, num_nodes, batch_size_per_worker, accumulate | the cell |
    | step_s | predicted seconds of an optimizer step |
    | low_s, high_s | ends of the 90 % interval in which a measurement would lie |
    | samples_per_s | throughput of all workers together |
    | efficiency | throughput per worker, relative to that predicted for one worker with the same |
    |  | batch size per worker |
    | extrapolated | whether workers, nodes or batch size lie outside the measured range |
    """
    rows = [
        {
            **key._asdict(),
            **vars(prediction.cell),
            "step_s": prediction.step_s,
            "low_s": prediction.low_s,
            "high_s": prediction.high_s,
            "samples_per_s": prediction.samples_per_s,
            "efficiency": efficiency,
            "extrapolated": is_beyond(model, prediction.cell),
        }
        for prediction, efficiency in zip(
            model.predict(cells), model.efficiency(cells), strict=True
        )
    ]
    return pd.DataFrame(rows)


def is_beyond(model: ThroughputModel, cell: Cell) -> bool:
    """Return whether a prediction is an extrapolation: the cell has more workers or nodes than any
    measured cell, or a batch size per worker outside the measured range."""
    cells = model.observed.cells
    batches = [measured.batch_size_per_worker for measured in cells]
    return (
        cell.num_workers > max(measured.num_workers for measured in cells)
        or cell.num_nodes > max(measured.num_nodes for measured in cells)
        or not min(batches) <= cell.batch_size_per_worker <= max(batches)
    )


MOST_LEFT_OUT = 40
"""Maximum number of cells that are left out one by one; it suffices to estimate the median
error."""


@dataclass(frozen=True)
class LeftOut:
    """Leave-one-out result of a cell: its measurement, and its prediction from all other cells."""

    measured_s: float
    """Measured seconds of a step: median over the repeats of the cell."""
    predicted: StepPrediction

    @property
    def error(self) -> float:
        """Relative error of the prediction; 0.1 means that it is 10 % above the measurement."""
        return self.predicted.step_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the 90 % interval contains the measurement."""
        return self.predicted.low_s <= self.measured_s <= self.predicted.high_s


def leave_one_out(model: ThroughputModel) -> list[LeftOut]:
    """Predict each measured cell from a fit to all others; [] if there is only one cell.

    Each prediction needs a fit, so if there are more than MOST_LEFT_OUT cells, an evenly spaced
    selection is predicted.
    """
    observed = model.observed
    number = len(observed.cells)
    if number < 2:
        return []
    seconds = np.exp(observed.log_seconds)
    chosen = np.unique(np.linspace(0, number - 1, min(number, MOST_LEFT_OUT)).round().astype(int))
    return [
        LeftOut(float(seconds[i]), model.without(i).predict([observed.cells[i]])[0])
        for i in map(int, chosen)
    ]


def median_error(cells: list[LeftOut]) -> float:
    """Return the median absolute relative error of leave-one-out predictions."""
    return float(np.median([abs(cell.error) for cell in cells]))


@dataclass(frozen=True)
class FittedSeries:
    """Throughput model of one series, and the cells to predict (`asked`)."""

    key: SeriesKey
    num_rows: int
    model: ThroughputModel
    asked: list[Cell]
    network: float | None = None
    """Ratio given by `--network`; None for the default prior of the throughput law."""

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Leave-one-out predictions of the measured cells."""
        return leave_one_out(self.model)

    @cached_property
    def measure_next(self) -> tuple[Cell, list[NextCell]] | None:
        """The least certain prediction, and which cells to measure to make it more accurate.

        The first item is the cell of `asked` with the widest interval; only cells outside the
        measured range are considered. None if there is no such cell.
        """
        beyond = [cell for cell in self.asked if is_beyond(self.model, cell)]
        if not beyond:
            return None
        asked = least_sure(self.model, beyond)
        return asked, next_cells(self.model, asked)

    @property
    def predictions(self) -> pd.DataFrame:
        """Predictions of the cells `asked`; see `prediction_table`."""
        return prediction_table(self.model, self.asked, self.key)

    def sentences(self) -> list[str]:
        """Return sentences about the data of the fit, its errors, and what to measure next."""
        cells = self.model.observed.cells
        workers = sorted({cell.num_workers for cell in cells})
        nodes = max(cell.num_nodes for cell in cells)
        on = f"up to {nodes} nodes" if nodes > 1 else "one node"
        listed = workers if len(workers) <= 8 else [*workers[:3], "...", workers[-1]]
        numbers = ", ".join(map(str, listed))
        lines = [
            f"{self.num_rows} rows, {len(cells)} cells: {numbers} workers, {on}.",
            _error_sentence(self.left_out, len(cells)),
        ]
        if workers == [1] and any(cell.num_workers > 1 for cell in self.asked):
            lines.append("Only one worker was measured, so the intervals are wide.")
        elif nodes == 1 and not self.network and any(cell.num_nodes > 1 for cell in self.asked):
            lines.append(
                "Only one node was measured, so the intervals are wide; a run of two workers on "
                "two nodes narrows them."
            )
        if self.network is not None:
            low, high = (self.network * math.exp(side * NINE_OF_TEN * SURE) for side in (-1, 1))
            lines.append(
                f"With the given --network, an exchange between nodes takes {self.network:.2g} "
                f"times ({low:.2g} to {high:.2g}) as long as within one."
            )
        if self.measure_next is not None and self.measure_next[1]:
            lines.append(_next_words(self.model, *self.measure_next))
        return lines


def fit_series(
    measured: Measurements, asked: dict[SeriesKey, list[Cell]], network: float | None = None
) -> Iterator[FittedSeries]:
    """Fit a throughput model to each series, one after the other.

    Args:
        measured: Measured step times by series.
        asked: Cells to predict by series.
        network: Ratio given by `--network`; None for the default prior of the throughput law.

    Yields:
        The fitted series.
    """
    priors = PRIORS if network is None else network_priors(network)
    for key, rows in measured.items():
        model = ThroughputModel.fit(Observed.of(rows), priors)
        yield FittedSeries(key, len(rows), model, asked.get(key, []), network)


def _next_words(model: ThroughputModel, asked: Cell, cells: Sequence[NextCell]) -> str:
    (now,) = model.predict([asked])
    proposed = [
        f"{describe_cell(proposal.cell)} (to ±{proposal.spread:.0%}; {NUM_STEPS} steps are "
        f"{proposal.worker_seconds:,.3g} worker-seconds)"
        for proposal in cells
    ]
    return (
        f"Least certain: {describe_cell(asked)}, ±{now.spread:.0%}; measure next "
        f"{', then '.join(proposed)}."
    )


def describe_cell(cell: Cell) -> str:
    """Return the worker count, node count and batch size of a cell in words."""
    on = f" on {cell.num_nodes} nodes" if cell.num_nodes > 1 else ""
    return f"{counted(cell.num_workers, 'worker')}{on}, batch {cell.batch_size_per_worker} each"


def _error_sentence(left_out: list[LeftOut], num_cells: int) -> str:
    if not left_out:
        return "Leave-one-out error: unknown with one cell; the prediction is mainly the prior."
    worst = max(left_out, key=lambda prediction: abs(prediction.error))
    cell = worst.predicted.cell
    inside = np.mean([prediction.is_inside for prediction in left_out])
    of = f" ({len(left_out)} of the cells)" if len(left_out) < num_cells else ""
    return (
        f"Leave-one-out error{of}: median {median_error(left_out):.1%}, worst {worst.error:+.1%} "
        f"({cell.num_workers} workers, batch {cell.batch_size_per_worker} a worker); "
        f"{inside:.0%} of the measured steps in their 90 % interval."
    )


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
    return list(fit_series(measured, cells_to_predict(predict, measured)))


def measurements(*studies: Study, allow_few: bool = False) -> Measurements:
    """Return the median step times of the runs of each series that can be fitted.

    Runs that exchange no gradients are left out, since they only measure the cost of the exchange.
    Runs whose global batch size exceeds an epoch are left out too, since no step has that many
    samples.

    Args:
        *studies: Scaling studies of the same training.
        allow_few: Whether to include series with fewer than LEAST_CELLS cells, or with a single
            worker count, too.
    """
    measured: dict[SeriesKey, list[tuple[Cell, float]]] = defaultdict(list)
    for _, row, spec, series in study_runs(*studies):
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


def study_runs(*studies: Study) -> Iterator[tuple[Study, dict[Hashable, Any], RunSpec, str]]:
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
    """Return the critical batch sizes of runs with recorded gradient noise, keyed by series."""
    by_series: dict[str, list[float]] = {}
    for study, row, spec, series in study_runs(*studies):
        points = study.evaluations.get(row["trial"], ())
        scales = noise_scales(
            point.noise_scale for point in points if point.noise_scale is not None
        )
        value = critical_batch(scales, spec.global_batch_size)
        if math.isfinite(value):
            by_series.setdefault(series, []).append(value)
    return by_series


def noise_lines(results: Study) -> list[str]:
    """Return a sentence about the critical batch size of each series with recorded gradient
    noise."""
    return [
        f"{series}: by the gradient noise, the critical batch is about "
        f"{statistics.median(batches):,.3g} ({counted(len(batches), 'run')}"
        + (f", {min(batches):,.3g} to {max(batches):,.3g}" if len(batches) > 1 else "")
        + "); such estimates are right within a factor of three."
        for series, batches in critical_batches(results).items()
    ]
