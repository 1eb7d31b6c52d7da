"""Check a model on a few samples before its first run in a worker, for both frameworks.

Also check that all workers build the same model.
"""

import json
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Dataset
from raybench.data.inputs import Batch, each, shown
from raybench.models.base import LayerWorkload, OwnLoop, Workload
from raybench.models.named import NamedWorkload
from raybench.models.user_code import user_code_errors
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import Metric, find_metric
from raybench.spec.optimizer import is_library_class
from raybench.spec.run import RunSpec
from raybench.spec.values import identity
from raybench.training.base import DistributedContext, find_part
from raybench.training.timeout import call_within

Array = npt.NDArray[Any]
BATCH_TOLERANCE = 1e-2
"""Relative difference of outputs that rounding may cause between a large and a small batch."""
NUM_SAMPLES = 8
"""Most training samples in a check. It uses fewer if the batch size per worker is smaller, to take
no more memory than training, but at least 2, which batch normalization needs."""
TIMEOUT_S = 300.0
"""Timeout of a check in seconds."""
_checked: set[str] = set()
"""Models that this process has checked."""


def check_start(
    spec: RunSpec, workload: Workload, dataset: Dataset, world: DistributedContext
) -> list[str]:
    """Check on a worker that a run can train its model.

    Builds a second model and passes a few samples of the real data through model, loss, metric and
    backward pass, once per process and model. Models defined by a list of layers, such as the
    shipped ones, are known to work and are not checked. Only rank 0 checks.

    Returns:
        Warnings, one sentence each.

    Raises:
        UserError: The model or a library's optimizer cannot train; `details` has the traceback.
    """
    if isinstance(workload, OwnLoop) or world.rank:
        return []
    if is_library_class(spec.optimizer):
        find_part(spec.framework, "optim").check_optimizer(spec)
    key = identity([spec.workload, spec.model, spec.framework, spec.label_smoothing])
    if isinstance(workload, LayerWorkload) or key in _checked:
        return []
    metric = find_metric(spec.objective.metric, task=workload.task, own=workload.metric)
    check = find_part(spec.framework, "model_check").ModelCheck(
        workload,
        metric,
        gpu=world.gpus[0] if world.gpus else None,
        smoothing=spec.label_smoothing,
    )
    number = min(NUM_SAMPLES, max(2, spec.batch_size_per_worker), len(dataset.train))
    rows = np.arange(number)

    def run() -> list[str]:
        warnings: list[str] = check.run(dataset.train.read(rows), dataset.train.labels[rows])
        return warnings

    try:
        warnings = call_within(TIMEOUT_S, run, name="model-check")
    except TimeoutError:
        raise UserError(
            f"Workload {workload.name}: building its model and training it on {number} samples "
            f"took longer than {TIMEOUT_S:g} s; make it smaller or faster.",
            ErrorCode.INVALID_MODEL,
        ) from None
    _checked.add(key)
    return warnings


class BaseModelCheck:
    """Base class of a model's check; each backend has a subclass `ModelCheck`."""

    framework: ClassVar[str]
    model_words: ClassVar[str]
    """What messages call the models: `torch` or `Keras`."""
    module: Any
    """The backend's module `model`."""
    builder: ClassVar[str]
    """Name of the workload's method that must return a `model_type` (in messages `type_words`)."""
    model_type: ClassVar[Any]
    type_words: ClassVar[str]

    _check_model: Any
    """Method: raise UserError for a model that cannot be trained; adopt a Keras model's loss."""
    _tensors: Any
    """Method: return the model, and inputs and labels as tensors, as in training."""
    _forward: Any
    _refused_kind: Any
    """Method: return the type of outputs that are no floating-point tensor; None for valid ones."""
    _gradients: Any
    _array: Any

    def __init__(
        self, workload: Workload, metric: Metric, *, gpu: int | None, smoothing: float = 0.0
    ) -> None:
        """Prepare a check.

        Args:
            workload: Workload that builds the model.
            metric: Metric of the run.
            gpu: GPU to use, as an index into those visible to the process; None for the CPU.
            smoothing: Label smoothing of the run.
        """
        self.workload, self._metric, self._gpu = workload, metric, gpu
        self.losses = self.module.Losses(workload, metric, smoothing=smoothing)

    def run(self, inputs: Batch, labels: Array) -> list[str]:
        """Build the model and pass a batch through model, loss, metric and backward pass.

        Returns:
            Warnings, one sentence each.

        Raises:
            UserError: The model cannot be trained.
        """
        judge, array, framework = self.losses, self._array, self.framework
        model, batch, answers = self._tensors(self._build(), inputs, labels)
        self._num_samples = len(labels)
        half = each(batch, lambda one: one[: len(one) // 2])
        whole, alone = (self._outputs(model, one, training=False) for one in (batch, half))
        self._check_outputs(array(whole), labels)
        outputs = self._outputs(model, batch, training=True)
        self._check_outputs(array(outputs), labels)
        with self._users_code(f"its loss failed in {framework}"):
            losses = judge.losses(outputs, answers)
        self._check_per_sample(f"its {self.model_words} loss", array(losses), len(labels))
        with self._users_code(f"its {self._metric.words} failed in {framework}"):
            values = judge.values(outputs, answers, losses)
        measured = f"its {self._metric.words} in {self.model_words}"
        if self._metric.is_mean:
            self._check_per_sample(measured, array(values), len(labels))
        with self._users_code(f"the way back through its {self.model_words} model failed"):
            gradients = self._gradients(model, batch, answers, losses)
        warnings = self._model_warnings(model)
        warnings += self._check_gradients(gradients)
        warnings += self._check_independence(array(alone), array(whole))
        if judge.hook("loss") is None:
            warnings += self._softmax_warning(array(outputs))
        return warnings

    def _users_code(self, what: str, advice: str = "") -> AbstractContextManager[None]:
        sentence = f"Workload {self.workload.name}: {what}"
        return user_code_errors(sentence, advice, ErrorCode.INVALID_MODEL)

    def _error(self, what: str) -> UserError:
        return UserError(f"Workload {self.workload.name}: {what}", ErrorCode.INVALID_MODEL)

    def _build(self) -> Any:
        """Build the model; raise UserError if it has another type, no trainable parameters or
        parameters without a shape."""
        with self._users_code(f"{self.builder} failed"):
            model = self.module.build_model(self.workload, seed=0)
        if not isinstance(model, self.model_type):
            found = type(model).__name__
            raise self._error(f"{self.builder} must return a {self.type_words}, not {found}.")
        self._check_model(model)
        if self.module.num_parameters(model) == 0:
            raise self._error(
                "its model has no trainable parameters; give it layers, or unfreeze some."
            )
        return model

    def _model_warnings(self, model: Any) -> list[str]:
        """Return warnings about parts of the model that training does not use."""
        del model
        return []

    def _outputs(self, model: Any, batch: Any, *, training: bool) -> Any:
        shapes = shown(each(batch, lambda one: tuple(one.shape)))
        what, advice = f"its {self.model_words} model failed on inputs {shapes}", ""
        if isinstance(self.workload, NamedWorkload) and len(self.workload.input_shape) == 3:
            advice = "; set a larger dataset.image_size if its images are too small for it"
        with self._users_code(what, advice):
            outputs = self._forward(model, batch, training)
        if (kind := self._refused_kind(outputs)) is not None:
            raise self._error(
                f"its model must return a tensor of floating point numbers, not {kind}."
            )
        return outputs

    def _check_outputs(self, outputs: Array, labels: Array) -> None:
        """Raise UserError for outputs that are not finite or, if a loss or metric of raybench
        takes them, have the wrong shape."""
        wanted = self._wanted_shapes(labels)
        if self._is_default() and outputs.shape not in wanted:
            raise self._error(
                f"its model returns outputs of shape {outputs.shape} for {self._describe(labels)}; "
                f"end it so that they are {wanted[0]}."
            )
        if not np.isfinite(outputs).all():
            raise self._error(
                "its model returns NaN or infinite values before any training; look at its initial "
                "weights, and at what it divides by."
            )

    def _is_default(self) -> bool:
        """Return whether a loss or metric of raybench takes the outputs."""
        judge, measured = self.losses, self._metric.per_sample
        has_hook = measured in ("own", "loss") or (measured == "correct" and judge.hook("correct"))
        return judge.hook("loss") is None or not has_hook

    def _wanted_shapes(self, labels: Array) -> list[tuple[int, ...]]:
        """Return the shapes that outputs may have, the recommended one first."""
        if self.workload.task == "regression":
            return [labels.shape, *([(len(labels), 1)] if labels.ndim == 1 else [])]
        return [(*labels.shape, self.workload.num_classes)]

    def _describe(self, labels: Array) -> str:
        if self.workload.task == "regression":
            return f"{len(labels)} samples with labels of shape {labels.shape}"
        classes = self.workload.num_classes
        if self.workload.task == "language_modelling":
            tokens = " and ".join(f"{size}" for size in labels.shape[1:])
            return f"{len(labels)} samples of {tokens} tokens out of {classes}"
        return f"{len(labels)} samples of {classes} classes"

    def _check_independence(self, few: Array, all_of_them: Array) -> list[str]:
        """Return a warning if a sample's outputs in evaluation depend on the rest of the batch."""
        if few.shape[1:] != all_of_them.shape[1:] or not len(few):
            return []
        size = max(float(np.abs(all_of_them).max()), 1e-6)
        if np.abs(few - all_of_them[: len(few)]).max() <= BATCH_TOLERANCE * size:
            return []
        return [
            f"Workload {self.workload.name}: in an evaluation its model's outputs for a sample "
            "depend on the other samples of the batch, so what it reaches depends on how the "
            "validation set is cut; look for batch statistics that are taken in eval mode too."
        ]

    def _check_per_sample(self, what: str, values: Array, num_samples: int) -> None:
        """Raise UserError for losses or metric values that are not one finite number per sample."""
        if values.shape != (num_samples,):
            raise self._error(
                f"{what} returns shape {values.shape} for {num_samples} samples; return one number "
                f"for each, ({num_samples},), without averaging."
            )
        if not np.isfinite(values).all():
            raise self._error(f"{what} returns NaN or infinite values before any training.")

    def _check_gradients(self, gradients: dict[str, Array | None]) -> list[str]:
        """Return a warning for parameters without a gradient; raise UserError if no parameter has a
        gradient or a gradient is not finite."""
        unused = [name for name, gradient in gradients.items() if gradient is None]
        if len(unused) == len(gradients):
            raise self._error(
                "its loss depends on no parameter of its model; look for what cuts the gradient "
                "off (detach, argmax, numpy)."
            )
        for name, gradient in gradients.items():
            if gradient is not None and not np.isfinite(gradient).all():
                raise self._error(
                    f"the gradient of {name} is NaN or infinite before any training; look at its "
                    "initial weights, and at what it divides by."
                )
        if not unused:
            return []
        return [
            f"Workload {self.workload.name}: {len(unused)} of {len(gradients)} parameters get no "
            f"gradient (the first: {unused[0]}) from a batch of {self._num_samples} samples; if "
            "they never do, use, remove or freeze them."
        ]

    def _softmax_warning(self, outputs: Array) -> list[str]:
        """Return a warning if outputs that should be logits look like probabilities."""
        workload = self.workload
        if workload.task == "regression" or workload.num_classes < 2 or outputs.ndim < 2:
            return []
        sums = outputs.sum(axis=-1)
        if (outputs < 0).any() or not np.allclose(sums, 1, atol=1e-3):
            return []
        return [
            f"Workload {workload.name}: its model's outputs look like probabilities (each row sums "
            "to 1); leave out the softmax at its end: twice it learns slowly."
        ]


DIFFERENT = "Workers build different models: "
"""Start of the error message, by which `cluster.protocol.fault_of` recognizes the error."""
Shapes = Sequence[tuple[str, Sequence[int]]]
"""Name and shape of each parameter of a model, in order."""


def builds_user_models(spec: RunSpec, workload: Workload) -> bool:
    """Return whether a run has several processes that each build the model from user code."""
    is_known = isinstance(workload, LayerWorkload | NamedWorkload)
    return spec.num_workers > spec.replicas_per_process and not is_known


def check_workers(workload: Workload, own: Shapes, world: DistributedContext) -> None:
    """Raise UserError on all ranks if their models differ in parameter shapes, since gradients
    could not be summed. Collective: all ranks must call it.

    Names may differ: Keras numbers the layers of a process.
    """
    shapes = json.dumps([shape for _, shape in own]).encode()
    if len({row[0] for row in world.gather([float(zlib.crc32(shapes))])}) > 1:
        raise UserError(
            f"{DIFFERENT}the parameters of workload {workload.name} have other shapes in another; "
            "let them depend on nothing that differs between processes (rank, environment, time).",
            ErrorCode.INVALID_MODEL,
        )
