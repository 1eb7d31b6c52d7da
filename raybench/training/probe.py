"""Common parts of both frameworks' probes of a user's model: the checks of its numbers, and
that several workers build the same one."""

import json
import re
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from raybench.data.inputs import Batch, each, shown
from raybench.data.memory import available_bytes
from raybench.models.base import LayerWorkload, Workload
from raybench.models.named import NamedWorkload, size_warnings
from raybench.models.user_code import user_code_errors
from raybench.spec.errors import UserError
from raybench.spec.metric import Metric
from raybench.spec.optimizer import framework_of, is_librarys
from raybench.spec.run import RunSpec
from raybench.training.base import World, find_part

Array = npt.NDArray[Any]
ALONE = 1e-2
"""Share of the largest output that rounding may change between a large and a small batch."""

NEEDS_GPU = re.compile(r"(?i)cuda|nvidia|cudnn|nccl|triton|active drivers|\b[cg]pus?\b")
"""Words of errors that a model raises since this machine has no GPU."""
TRIAL_BYTES = 16
"""Memory that a trial on cores takes for each parameter: weights, gradients, and as much again."""


class Probed(NamedTuple):
    """Facts of a model that was tried."""

    warnings: list[str]
    """Sentences."""
    batch_statistics: bool = False
    """Whether a layer normalises over one worker's batch; False of what was not tried."""


class Trial:
    """A user's model tried in a framework; each framework's own has the calls."""

    framework: ClassVar[str]
    model_words: ClassVar[str]
    """Name of its models."""
    module: Any
    """The framework's `model`."""
    builder: ClassVar[str]
    """The workload's method, which returns `model_type`; `type_words` is its name."""
    model_type: ClassVar[Any]
    type_words: ClassVar[str]

    _has_gpu: Any
    _check_model: Any
    """Raises UserError for a model that cannot be trained as it is; takes its own loss."""
    _tensors: Any
    """Returns model, inputs and labels as training has them."""
    _forward: Any
    _refused_kind: Any
    """Returns what outputs are that are no tensor of numbers; else None."""
    _gradients: Any
    _array: Any

    def __init__(
        self, workload: Workload, metric: Metric, *, gpu: bool, smoothing: float = 0.0
    ) -> None:
        """`gpu`: tried there, on cores where this machine has none. `smoothing` of labels."""
        self.workload, self._metric, self._gpu = workload, metric, gpu
        self.losses = self.module.Losses(workload, metric, smoothing=smoothing)
        self._lacks_gpu, self._model = False, None

    def run(self, inputs: Batch, labels: Array) -> Probed:
        """Build the model, take a batch through it, loss and metric, and back.

        UserError for what cannot train.
        """
        self._lacks_gpu = self._gpu and not self._has_gpu()
        self._gpu = self._gpu and not self._lacks_gpu
        judge, array, framework = self.losses, self._array, self.framework
        self._model = model = self._build()
        if self._lacks_gpu and self._is_large(model):
            return self.untried("has no GPU and little memory")
        model, batch, answers = self._tensors(model, inputs, labels)
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
        self._check_per_sample(measured, array(values), len(labels))
        with self._users_code(f"the way back through its {self.model_words} model failed"):
            gradients = self._gradients(model, batch, answers, losses)
        warnings = self._model_warnings(model)
        warnings += self._check_gradients(gradients)
        warnings += self._check_alone(array(alone), array(whole))
        if judge.hook("loss") is None:
            warnings += self._softmax_warning(array(outputs))
        return Probed(warnings, self.module.batch_statistics(model))

    def is_for_gpus_alone(self, error: UserError) -> bool:
        """Whether a model that is meant for GPUs has failed since this machine has none."""
        cause = error.__cause__
        named = cause is not None and NEEDS_GPU.search(f"{type(cause).__name__}: {cause}")
        return self._lacks_gpu and bool(named)

    def untried(self, why: str) -> Probed:
        """Return what is known of a model that this machine cannot try, as it `has no GPU`."""
        sentence = (
            f"Workload {self.workload.name}: its {self.model_words} model was not tried, as this "
            f"machine {why}; the first runs say whether it trains."
        )
        is_built = self._model is not None
        return Probed([sentence], is_built and self.module.batch_statistics(self._model))

    def _is_large(self, model: Any) -> bool:
        """Whether weights, gradients and activations may be more than there is memory for."""
        num_parameters: int = self.module.num_parameters(model)
        return TRIAL_BYTES * num_parameters > available_bytes()

    def _users_code(self, what: str) -> AbstractContextManager[None]:
        return user_code_errors(f"Workload {self.workload.name}: {what}")

    def _error(self, what: str) -> UserError:
        return UserError(f"Workload {self.workload.name}: {what}")

    def _build(self) -> Any:
        """Return a model with parameters, all of known sizes."""
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
        """Return sentences on what of a model is not used."""
        del model
        return []

    def _outputs(self, model: Any, batch: Any, *, training: bool) -> Any:
        shapes = shown(each(batch, lambda one: tuple(one.shape)))
        with self._users_code(f"its {self.model_words} model failed on inputs {shapes}"):
            outputs = self._forward(model, batch, training)
        if (kind := self._refused_kind(outputs)) is not None:
            raise self._error(
                f"its model must return a tensor of floating point numbers, not {kind}."
            )
        return outputs

    def _check_outputs(self, outputs: Array, labels: Array) -> None:
        """Raise UserError for outputs of a wrong shape (where no hooks take them) or not finite."""
        wanted = self._wanted_shapes(labels)
        if self._is_default() and outputs.shape not in wanted:
            raise self._error(
                f"its model returns outputs of shape {outputs.shape} for {self._what_of(labels)}; "
                f"end it so that they are {wanted[0]}."
            )
        if not np.isfinite(outputs).all():
            raise self._error(
                "its model returns NaN or infinite values before any training; look at its initial "
                "weights, and at what it divides by."
            )

    def _is_default(self) -> bool:
        """Whether raybench's own loss or metric takes the outputs."""
        judge, measured = self.losses, self._metric.per_sample
        has_hook = measured in ("own", "loss") or (measured == "correct" and judge.hook("correct"))
        return judge.hook("loss") is None or not has_hook

    def _wanted_shapes(self, labels: Array) -> list[tuple[int, ...]]:
        """Return the shapes that outputs may have, that to be advised first."""
        if self.workload.task == "regression":
            return [labels.shape, *([(len(labels), 1)] if labels.ndim == 1 else [])]
        return [(*labels.shape, self.workload.num_classes)]

    def _what_of(self, labels: Array) -> str:
        if self.workload.task == "regression":
            return f"{len(labels)} samples with labels of shape {labels.shape}"
        classes = self.workload.num_classes
        if self.workload.task == "language_modelling":
            tokens = " and ".join(f"{size}" for size in labels.shape[1:])
            return f"{len(labels)} samples of {tokens} tokens out of {classes}"
        return f"{len(labels)} samples of {classes} classes"

    def _check_alone(self, few: Array, all_of_them: Array) -> list[str]:
        """Return a warning if a sample's outputs in an evaluation depend on those beside it."""
        if few.shape[1:] != all_of_them.shape[1:] or not len(few):
            return []
        size = max(float(np.abs(all_of_them).max()), 1e-6)
        if np.abs(few - all_of_them[: len(few)]).max() <= ALONE * size:
            return []
        return [
            f"Workload {self.workload.name}: in an evaluation its model's outputs for a sample "
            "depend on the other samples of the batch, so what it reaches depends on how the "
            "validation set is cut; look for batch statistics that are taken in eval mode too."
        ]

    def _check_per_sample(self, what: str, values: Array, num_samples: int) -> None:
        """Raise UserError for losses or answers that are not one finite number for each sample."""
        if values.shape != (num_samples,):
            raise self._error(
                f"{what} returns shape {values.shape} for {num_samples} samples; return one number "
                f"for each, ({num_samples},), without averaging."
            )
        if not np.isfinite(values).all():
            raise self._error(f"{what} returns NaN or infinite values before any training.")

    def _check_gradients(self, gradients: dict[str, Array | None]) -> list[str]:
        """Return a warning for parameters that get no gradient; UserError if none does, or of
        NaN."""
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
"""Beginning of the sentence, by which it is found in what a run has failed with."""
Shapes = Sequence[tuple[str, Sequence[int]]]
"""Name and shape of each parameter of a model, in its order."""


def may_differ(spec: RunSpec, workload: Workload) -> bool:
    """Whether workers of a run build a model each that is the user's own code."""
    is_known = isinstance(workload, LayerWorkload | NamedWorkload)
    return spec.num_workers > spec.replicas_per_process and not is_known


def check_workers(workload: Workload, own: Shapes, world: World) -> None:
    """Raise UserError, on all ranks alike, where one of them has built another model: gradients
    could not be summed. Names may differ: Keras counts the layers of a process."""
    shapes = json.dumps([shape for _, shape in own]).encode()
    if len({row[0] for row in world.gather([float(zlib.crc32(shapes))])}) > 1:
        raise UserError(
            f"{DIFFERENT}the parameters of workload {workload.name} have other shapes in another; "
            "let them depend on nothing that differs between processes (rank, environment, time)."
        )


def needs_check(spec: RunSpec) -> bool:
    """Whether a framework must be asked to tell that a run can begin as a spec says."""
    return _begins_otherwise(spec) or is_librarys(spec.optimizer)


def _begins_otherwise(spec: RunSpec) -> bool:
    return spec.weights != "none" or spec.frozen_epochs != 0 or spec.sync_batch_norm


def check_start(framework: str, workload: Workload, spec: RunSpec) -> list[str]:
    """Return sentences of weights that were drawn anew, and others on how a model begins; UserError
    for weights, a head, images, batch normalisation and an optimizer that cannot be."""
    if framework_of(spec.optimizer) == framework:
        find_part(framework, "optim").check_optimizer(spec)
    is_own = not isinstance(workload, LayerWorkload | NamedWorkload)
    asks_model = is_own and (spec.optimizer == "muon" or spec.precision == "fp16")
    if not (isinstance(workload, NamedWorkload) or _begins_otherwise(spec) or asks_model):
        return []
    model = find_part(framework, "model").build_model(workload, spec.seed)
    warnings: list[str] = find_part(framework, "named").start_from(model, workload, spec.weights)
    if spec.frozen_epochs:
        find_part(framework, "state").Freezing(model, workload)
    own: list[str] = find_part(framework, "probe").check_built(model, workload, spec)
    return warnings + own


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
        f"Workload {workload.name}: frozen_epochs freezes weights that are random; set "
        "weights to a file or to cached.",
    ]


def no_head(workload: Workload, names: list[str], what: str) -> UserError:
    """Return the error of a model whose parts (`what`: parameters, layers) have these names."""
    shown = ", ".join([*names[:2], "...", *names[-2:]] if len(names) > 4 else names)
    return UserError(
        f"frozen_epochs: workload {workload.name}: its attribute head ({workload.head}) must be "
        f"what the names of some of its {what} begin with, and not of all ({shown})."
    )
