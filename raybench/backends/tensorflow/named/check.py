"""How a model begins, tried before any worker starts. Mirrors torch's."""

from raybench.backends.heads import needs_check
from raybench.backends.tensorflow.freezing import Freezing
from raybench.backends.tensorflow.model import build_model
from raybench.backends.tensorflow.named.build import start_from
from raybench.core.spec import RunSpec
from raybench.workloads.base import Workload
from raybench.workloads.named.workload import NamedWorkload


def check_start(workload: Workload, spec: RunSpec) -> list[str]:
    """Return sentences of weights that were drawn anew; UserError for weights or a head that cannot
    be."""
    if not isinstance(workload, NamedWorkload) and not needs_check(spec):
        return []
    model = build_model(workload, spec.seed)
    warnings = start_from(model, workload, spec.weights)
    if spec.frozen_epochs:
        Freezing(model, workload)
    return warnings
