"""How a model begins, tried before any worker starts. Mirrors torch's."""

from raybench.backends.heads import frozen_warnings, needs_check
from raybench.backends.tensorflow.freezing import Freezing
from raybench.backends.tensorflow.model import build_model
from raybench.backends.tensorflow.named.build import start_from
from raybench.core.spec import RunSpec
from raybench.workloads.base import Workload
from raybench.workloads.named.find import size_warnings
from raybench.workloads.named.workload import NamedWorkload


def check_start(workload: Workload, spec: RunSpec) -> list[str]:
    """Return warnings of weights, size of images and head; UserError for what cannot be."""
    if not isinstance(workload, NamedWorkload) and not needs_check(spec):
        return []
    model = build_model(workload, spec.seed)
    warnings = start_from(model, workload, spec.weights)
    if spec.frozen_epochs:
        Freezing(model, workload)
        warnings += frozen_warnings(workload, spec)
    if isinstance(workload, NamedWorkload):
        warnings += size_warnings(workload)
    return warnings
