"""When the head of a model alone is trained, and what both frameworks say of it."""

import math
from dataclasses import replace

from raybench.backends.base import Step
from raybench.core.errors import UserError
from raybench.core.spec import RunSpec
from raybench.workloads.base import Workload
from raybench.workloads.named.find import size_warnings
from raybench.workloads.named.workload import NamedWorkload


def frozen_samples(spec: RunSpec, samples_per_epoch: int) -> float:
    """Return the training samples in which the backbone is frozen; infinite for `all`."""
    if spec.frozen_epochs == "all":
        return math.inf
    return spec.frozen_epochs * samples_per_epoch


def with_unfrozen(spec: RunSpec, step: Step) -> list[Step]:
    """Return a step, and where it is frozen and later ones are not, the same as one of them."""
    if not step.is_frozen or frozen_samples(spec, 1) >= spec.epochs:
        return [step]
    return [step, replace(step, is_frozen=False)]


def needs_check(spec: RunSpec) -> bool:
    """Whether a model must be built to tell that it can begin as a spec says."""
    return spec.weights != "none" or spec.frozen_epochs != 0 or spec.sync_batch_norm


def start_warnings(workload: Workload, spec: RunSpec) -> list[str]:
    """Return sentences where images are small for a model by name, and where a backbone is frozen
    that nobody has trained."""
    if not isinstance(workload, NamedWorkload):
        return []
    warnings = size_warnings(workload)
    if not spec.frozen_epochs or spec.weights != "none":
        return warnings
    return [
        *warnings,
        f"Workload {workload.name}: frozen_epochs freezes weights that are drawn by chance; set "
        "weights to a file or to cached.",
    ]


def no_head(workload: Workload, names: list[str], what: str) -> UserError:
    """Return the error of a model whose parts (`what`: parameters, layers) have these names."""
    shown = ", ".join([*names[:2], "...", *names[-2:]] if len(names) > 4 else names)
    if workload.head is None:
        problem = "nobody knows which is its head; set its attribute head to what the names of"
        return UserError(
            f"frozen_epochs: workload {workload.name}: {problem} the head's {what} begin with "
            f"({shown})."
        )
    return UserError(
        f"frozen_epochs: workload {workload.name}: its head '{workload.head}' must be what the "
        f"names of some of its {what} begin with, and not of all ({shown})."
    )
