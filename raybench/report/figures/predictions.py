"""Figures of predictions: the surface of a search, and the forecast of a large run.

- The surface shows the expected seconds to the target over learning rate and global batch size,
  as predicted by the learning-curve model (`stats.curve_model`) after all trials.
- The forecast shows the optima of small runs, the fitted scaling laws, and the prediction for the
  large run.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from raybench.report.figures import parts
from raybench.results.ranking import ranked_runs
from raybench.results.study import Study, once
from raybench.scaling.forecast import Forecast, LargeRunModel
from raybench.scaling.loss_law import FLOPS_PER_SAMPLE
from raybench.scaling.measurements import Predicted
from raybench.spec.text import counted
from raybench.stats.curve_model import Array, CurveModel
from raybench.stats.record import Failure, Role, RunRecord, State

NUM_RATES = 24
LEAST_RATES, LEAST_BATCHES, LEAST_SURFACE_TRIALS = 3, 2, 8
"""Minimum numbers of distinct learning rates, of distinct batch sizes, and of trials with the best
optimizer for drawing a surface."""
COLOR_RANGE = 8.0
"""Ratio of the largest to the smallest number of seconds on the color scale."""
MOST_DRAWN = 200
"""Maximum number of trials that are drawn in a panel."""


@dataclass(frozen=True)
class SurfaceMap:
    """Expected seconds to the target over learning rate and global batch size, for one optimizer.

    Args:
        optimizer: The optimizer of the best run of the search.
        rates: Learning rates, shape [rates].
        batches: Global batch sizes, shape [batches].
        seconds: Expected training seconds to the target, shape [batches, rates].
        trials: Records of the trials with this optimizer.
    """

    optimizer: str
    rates: Array
    batches: Array
    seconds: Array
    trials: list[RunRecord]


@once
def surface_of(results: Study) -> SurfaceMap | None:
    """Return the surface for the best optimizer; None if no trial reached the target, or if too few
    settings were tried."""
    trials = [run for run in results.runs.values() if run.role == Role.TRIAL and run.samples]
    best = ranked_runs(results.trials)
    if not results.is_timed or best.empty or len(trials) < LEAST_SURFACE_TRIALS:
        return None
    if all(run.time_to_target_s is None for run in trials):
        return None
    optimizer = results.specs[str(best["trial"].iloc[0])].optimizer
    chosen = [run for run in trials if run.spec.optimizer == optimizer]
    distinct_rates = sorted({run.spec.learning_rate for run in chosen})
    batches = sorted({run.spec.global_batch_size for run in chosen})
    if (
        len(distinct_rates) < LEAST_RATES
        or len(batches) < LEAST_BATCHES
        or len(chosen) < LEAST_SURFACE_TRIALS
    ):
        return None
    rates = np.geomspace(distinct_rates[0], distinct_rates[-1], NUM_RATES)
    sizes = np.array(batches, dtype=float)
    per_sample = _seconds_per_sample(chosen, sizes)
    seconds = per_sample[:, None] * _samples(results, trials, optimizer, rates, sizes)
    return SurfaceMap(optimizer, rates, sizes, seconds, chosen)


def _samples(
    results: Study, trials: list[RunRecord], optimizer: str, rates: Array, batches: Array
) -> Array:
    """Return the number of samples to the target that the learning-curve model predicts from the
    trials, shape [batches, rates]."""
    sign, start = results.metric.sign, results.value_at_start
    assert results.target is not None
    model = CurveModel(
        1,
        2,
        baseline=None if start is None else sign * start,
        target=sign * results.target,
    )
    optimizer_indices: dict[str, int] = {}

    def point(name: str, rate: float, batch: float) -> list[float]:
        return [
            optimizer_indices.setdefault(name, len(optimizer_indices)),
            np.log(rate),
            np.log(batch),
        ]

    for run in trials:
        spec = run.spec
        model.begin(
            run.trial,
            np.array(point(spec.optimizer, spec.learning_rate, spec.global_batch_size), float),
        )
        best, reached_s = -np.inf, run.time_to_target_s
        for evaluation in results.evaluations.get(run.trial, []):
            best = max(best, sign * evaluation.value)
            reached_samples = None
            if reached_s is not None and evaluation.train_s and evaluation.train_s >= reached_s:
                reached_samples = evaluation.samples * reached_s / evaluation.train_s
            model.observe(run.trial, float(evaluation.samples), best, reached_samples)
            if reached_samples is not None:
                break
        is_over = run.state == State.COMPLETE and run.time_to_target_s is None
        model.curves[run.trial].has_missed = is_over
        model.curves[run.trial].has_failed = run.failure == Failure.NAN
    model.refresh()
    grid = [point(optimizer, rate, batch) for batch in batches for rate in rates]
    means: Array = np.exp(model.means(np.array(grid, float))).reshape(len(batches), len(rates))
    return means


def _seconds_per_sample(trials: list[RunRecord], batches: Array) -> Array:
    """Return the training seconds per sample of the fastest trial with each global batch size.

    The shape is [batches].
    """
    fastest = []
    for batch in batches:
        runs = [run for run in trials if run.spec.global_batch_size == batch]
        fastest.append(min(run.ledger["train"] / run.samples for run in runs))
    return np.array(fastest)


def surface_figure(results: Study) -> Figure:
    """Draw the `SurfaceMap` of the study, with its trials as points."""
    surface = surface_of(results)
    assert surface is not None
    rows, fastest = range(len(surface.batches)), float(surface.seconds.min())
    figure, axes = parts.new_figure(1.4 + 0.25 * len(rows))
    mesh = axes.pcolormesh(
        np.geomspace(surface.rates[0], surface.rates[-1], NUM_RATES + 1),
        np.arange(len(rows) + 1) - 0.5,
        surface.seconds,
        cmap="viridis_r",
        norm=LogNorm(fastest, COLOR_RANGE * fastest),
    )
    mesh.set_gid("envelope")
    row = {batch: position for position, batch in enumerate(surface.batches)}
    for run in surface.trials[:MOST_DRAWN]:
        face = "none" if run.time_to_target_s is None else parts.INK
        x, y = run.spec.learning_rate, row[run.spec.global_batch_size]
        axes.plot(x, y, "o", markersize=5, color=parts.INK, markerfacecolor=face)
    axes.set_yticks(rows, [f"{batch:g}" for batch in surface.batches])
    axes.set(xscale="log", xlabel="learning rate", ylabel="global batch")
    axes.grid(visible=False)
    num_trials = counted(len(surface.trials), "trial")
    parts.head(
        axes, f"{surface.optimizer}, {num_trials}{parts.of_all(MOST_DRAWN, len(surface.trials))}"
    )
    bar = figure.colorbar(mesh, ax=axes, label="expected seconds to the target", extend="max")
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=parts.SMALL, color=parts.INK, labelcolor=parts.INK)
    bar.ax.yaxis.label.set(fontsize=parts.TEXT, color=parts.INK)
    full_dot, hollow_dot = parts.dot("reached the target"), parts.dot("did not", is_filled=False)
    parts.legend_below(figure, [full_dot, hollow_dot])
    return figure


def surface_table(results: Study) -> pd.DataFrame:
    """Return a table for display with the predicted best learning rate for each global batch size,
    and the expected seconds at this rate."""
    surface = surface_of(results)
    assert surface is not None
    seconds = surface.seconds
    table = pd.DataFrame(
        {
            "global_batch": surface.batches.astype(int),
            "learning_rate": surface.rates[seconds.argmin(axis=1)],
            "seconds": seconds.min(axis=1),
        }
    )
    titles = {
        "global_batch": "global batch [samples]",
        "learning_rate": f"best learning rate of {surface.optimizer}",
        "seconds": "expected seconds to the target",
    }
    return parts.in_words(table, titles)


PANELS = ("learning rate", "global batch [samples]", "loss")


def forecast_figure(
    model: LargeRunModel, forecast: Forecast, parameters: float, samples: float
) -> Figure:
    """Draw the best learning rate, the best batch size and the loss over compute.

    A point is the optimum of one size (parameters, samples) of small runs. The line is the
    prediction along a straight path, in log space, from the smallest size to the large run. The bar
    is the 90 % interval of the prediction for the large run.

    Args:
        model: Model fitted to the small runs.
        forecast: Prediction by this model for the large run.
        parameters: Parameters of the large model.
        samples: Training samples of the large run.
    """
    figure = Figure(figsize=(9.0, 3.2), layout="constrained")
    axes = figure.subplots(1, 3)
    levels = model.optimum.levels
    sizes = [*levels]
    measured = [(*model.optimum.position(size), levels[size]) for size in sizes]
    ends = np.log([sizes[0], (parameters, samples)])
    path = np.exp(ends[0] + np.linspace(0.0, 1.0, 50)[:, None] * (ends[1] - ends[0]))
    lines = [
        [
            prediction.value
            for prediction in (*model.optimum.optimum(*size), model.loss.predict(*size))
        ]
        for size in path
    ]
    large = (*model.optimum.optimum(parameters, samples), forecast.loss)
    for panel, (axis, name) in enumerate(zip(axes, PANELS, strict=True)):
        axis.plot(_compute(path), [line[panel] for line in lines], color=parts.INK, linewidth=1.2)
        axis.plot(_compute(np.array(sizes)), [point[panel] for point in measured], "o", gid="small")
        _bar(axis, FLOPS_PER_SAMPLE * parameters * samples, large[panel])
        axis.set(xscale="log", yscale="log", xlabel="compute [FLOP]", ylabel=name)
    return figure


def _compute(sizes: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[float]:
    """Return the compute in FLOP for each size (parameters, samples)."""
    return [FLOPS_PER_SAMPLE * float(size[0] * size[1]) for size in sizes]


def _bar(axis: Axes, compute: float, predicted: Predicted) -> None:
    around = [[predicted.value - predicted.low], [predicted.high - predicted.value]]
    axis.errorbar(
        [compute], [predicted.value], around, fmt="D", capsize=4, color="#D55E00", gid="large"
    )
