"""What both frameworks' probes of a user's model have in common: the checks of its numbers."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError
from raybench.workloads.base import Workload

Array = npt.NDArray[Any]


class ProbeModel(Protocol):
    """Signature of a backend's `probe_model`."""

    def __call__(self, workload: Workload, inputs: Array, labels: Array, *, gpu: bool) -> list[str]:
        """Build the model, take a batch through it and back; warnings, or a UserError."""
        ...


def check_parameters(workload: Workload, count: int) -> None:
    """Raise UserError for a model that nothing can be learnt by."""
    if count == 0:
        raise UserError(
            f"Workload {workload.name}: its model has no trainable parameters; give it layers, "
            "or unfreeze some."
        )


def check_outputs(
    workload: Workload, outputs: Array, num_samples: int, *, is_default: bool
) -> None:
    """Raise UserError for outputs of a wrong shape (where no hooks take them), NaN or infinite."""
    wanted = (num_samples, workload.num_classes)
    if is_default and outputs.shape != wanted:
        raise UserError(
            f"Workload {workload.name}: its model returns outputs of shape {outputs.shape} for "
            f"{num_samples} samples of {workload.num_classes} classes; end it so that they are "
            f"{wanted}."
        )
    if not np.isfinite(outputs).all():
        raise UserError(
            f"Workload {workload.name}: its model returns NaN or infinite values before any "
            "training; look at its initial weights, and at what it divides by."
        )


def check_per_sample(workload: Workload, what: str, values: Array, num_samples: int) -> None:
    """Raise UserError for losses or answers that are not one finite number for each sample."""
    if values.shape != (num_samples,):
        raise UserError(
            f"Workload {workload.name}: {what} returns shape {values.shape} for {num_samples} "
            f"samples; return one number for each, ({num_samples},), without averaging."
        )
    if not np.isfinite(values).all():
        raise UserError(
            f"Workload {workload.name}: {what} returns NaN or infinite values before any training."
        )


def check_gradients(workload: Workload, gradients: dict[str, Array | None]) -> list[str]:
    """Return a warning for parameters that get no gradient; UserError if none does, or of NaN."""
    unused = [name for name, gradient in gradients.items() if gradient is None]
    if len(unused) == len(gradients):
        raise UserError(
            f"Workload {workload.name}: its loss depends on no parameter of its model; look for "
            "what cuts the gradient off (detach, argmax, numpy)."
        )
    for name, gradient in gradients.items():
        if gradient is not None and not np.isfinite(gradient).all():
            raise UserError(
                f"Workload {workload.name}: the gradient of {name} is NaN or infinite before any "
                "training; look at its initial weights, and at what it divides by."
            )
    if not unused:
        return []
    return [
        f"Workload {workload.name}: {len(unused)} of {len(gradients)} parameters get no gradient "
        f"(the first: {unused[0]}); use, remove or freeze them, with several workers torch refuses "
        "such a model."
    ]


def softmax_warning(workload: Workload, outputs: Array) -> list[str]:
    """Return a warning if outputs that should be logits look like probabilities."""
    if workload.num_classes < 2 or outputs.ndim != 2:
        return []
    sums = outputs.sum(axis=1)
    if (outputs < 0).any() or not np.allclose(sums, 1, atol=1e-3):
        return []
    return [
        f"Workload {workload.name}: its model's outputs look like probabilities (each row sums to "
        "1); leave out the softmax at its end, the loss applies it, and twice it learns slowly."
    ]
