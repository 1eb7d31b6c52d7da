"""How a model begins, tried before any worker starts. Mirrors torch's."""

import keras

from raybench.backends.heads import needs_check
from raybench.backends.tensorflow.freezing import Freezing
from raybench.backends.tensorflow.internals import all_layers
from raybench.backends.tensorflow.model import build_model
from raybench.backends.tensorflow.named.build import start_from
from raybench.core.spec import RunSpec
from raybench.workloads.base import Workload
from raybench.workloads.named.workload import NamedWorkload

SLOW = 0.99
"""Momentum, Keras's own, of which short trainings see the end; torch's would be 0.9."""
FORGOTTEN = 5.0
"""Time constants until the statistics that a layer began with count for less than a hundredth:
each of dozens of layers scales its outputs by what is left of them."""


def check_start(workload: Workload, spec: RunSpec) -> list[str]:
    """Return sentences of weights that were drawn anew; UserError for weights or a head that cannot
    be."""
    if not isinstance(workload, NamedWorkload) and not needs_check(spec):
        return []
    model = build_model(workload, spec.seed)
    warnings = start_from(model, workload, spec.weights)
    if spec.frozen_epochs:
        Freezing(model, workload)
    return warnings if warnings or spec.weights != "none" else _slow_statistics(model, workload)


def _slow_statistics(model: keras.Model, workload: Workload) -> list[str]:
    """Return a sentence where evaluations lag far behind training."""
    kinds = keras.layers.BatchNormalization
    slowest = max((one.momentum for one in all_layers(model) if isinstance(one, kinds)), default=0)
    if slowest < SLOW:
        return []
    steps = round(FORGOTTEN / (1 - slowest))
    return [
        f"Workload {workload.name}: its batch normalisation has momentum {slowest:g}, so without "
        f"weights it is evaluated near chance for the first {steps:,} steps or so; begin with "
        "weights, or take another network."
    ]
