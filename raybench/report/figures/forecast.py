"""Figure of a forecast: optima of the small runs, the fitted scaling laws, and the large run."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raybench.report.figures import parts
from raybench.scaling.forecast import Forecast, LargeRunModel
from raybench.scaling.loss_law import FLOPS_PER_SAMPLE
from raybench.scaling.measurements import Predicted

PANELS = ("learning rate", "global batch [samples]", "loss")


def forecast_figure(
    model: LargeRunModel, found: Forecast, parameters: float, samples: float
) -> Figure:
    """Draw the best learning rate, the best batch size and the loss over compute.

    Points are the optima of the small sizes (parameters, samples). The line is the prediction along
    a straight path (in log space) from the smallest size to the large run. The bar is the 90 %
    interval of the large run.

    Args:
        model: Model of the small runs.
        found: Prediction of this model for the large run.
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
        [one.value for one in (*model.optimum.optimum(*size), model.loss.predict(*size))]
        for size in path
    ]
    large = (*model.optimum.optimum(parameters, samples), found.loss)
    for panel, (axis, name) in enumerate(zip(axes, PANELS, strict=True)):
        axis.plot(_compute(path), [one[panel] for one in lines], color=parts.INK, linewidth=1.2)
        axis.plot(_compute(np.array(sizes)), [one[panel] for one in measured], "o", gid="small")
        _bar(axis, FLOPS_PER_SAMPLE * parameters * samples, large[panel])
        axis.set(xscale="log", yscale="log", xlabel="compute [FLOP]", ylabel=name)
    return figure


def _compute(sizes: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[float]:
    """Return the compute [FLOP] of each row (parameters, samples) of an array of shape [n, 2]."""
    return [FLOPS_PER_SAMPLE * float(one[0] * one[1]) for one in sizes]


def _bar(axis: Axes, compute: float, one: Predicted) -> None:
    around = [[one.value - one.low], [one.high - one.value]]
    axis.errorbar([compute], [one.value], around, fmt="D", capsize=4, color="#D55E00", gid="large")
