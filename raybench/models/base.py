"""The class that a user writes to train a model of their own, and the shape of its data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from raybench.data.dataset import Dataset
from raybench.data.inputs import InputShape
from raybench.models.layers import Layer
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import Metric
from raybench.spec.run import DatasetSpec, RunSpec, Task

if TYPE_CHECKING:
    import keras
    import torch

Hook = Callable[[Any, Any], Any]
"""(outputs, labels) -> one number per sample, as a tensor of the framework."""


class Workload:
    """A model and its data. Subclass it, set the three attributes, write one build method or both.

    `--workload my_module:MyWorkload` then trains it. Parameters of `__init__` are settings that a
    space file can search under `space.model`.

    Example:
        >>> class MyWorkload(raybench.Workload):
        ...     name, input_shape, num_classes = "my_model", (28, 28, 1), 10
        ...
        ...     def build_torch(self):
        ...         return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        >>> MyWorkload().task
        'classification'

    | | torch | Keras |
    |---|---|---|
    | images arrive as | (N, C, H, W) float32 | (N, H, W, C) float32 |
    | pixels | uint8 data is scaled to 0..1 | the same |
    | tokens, codes, masks | int64 as they are | the same |
    | inputs by name | one dict of tensors | the same |
    | the model returns | logits (N, num_classes) | the same |
    | of a regression | (N,) or (N, outputs), in the labels' scale | the same |
    | of a language model | logits (N, tokens, num_classes) | the same |

    The model is built anew for every run, after the framework was seeded; it returns logits, not
    probabilities. raybench handles devices, parallelism and precision. Batch normalization uses
    each worker's own samples.
    """

    name: str
    """Short, for tables."""
    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """Shape of one sample: (H, W, C) of an image, in both frameworks; (features,) of a vector,
    (tokens,) of a text; a dict where inputs have names."""
    num_classes: int
    """Number of classes, or of tokens of a language model; not needed for a regression."""
    task: Task = "classification"
    """`classification`, `regression` or `language_modelling`: the task of the data, unless the
    workload has a loss of its own."""
    metric: Metric | None = None
    """A metric of its own, which `torch_metric` and `keras_metric` measure:
    `Metric(name="dice", direction="max")`. None leaves the choice to `objective.metric`."""

    head: str | None = None
    """Prefix of the names of the head's parameters (torch) or layers (Keras), for
    `frozen_epochs`."""

    torch_loss: Hook | None = None
    """Method (outputs, labels) -> loss of each sample (N,); by default cross entropy (the mean over
    the tokens of a language model), for a regression the squared error (mean over outputs)."""
    torch_metric: Hook | None = None
    """Method (outputs, labels) -> value of `metric` for each sample (N,)."""
    torch_correct: Hook | None = None
    """Method (outputs, labels) -> 1 or 0 for each sample (N,), whose mean is the accuracy; by
    default whether the largest logit is the label's."""
    keras_loss: Hook | None = None
    """Keras's counterpart of `torch_loss`; by default the loss that the model is compiled with, if
    any. Penalties and `add_loss` of a model are trained in any case."""
    keras_metric: Hook | None = None
    """Keras's counterpart of `torch_metric`."""
    keras_correct: Hook | None = None
    """Keras's counterpart of `torch_correct`."""

    def build_torch(self) -> "torch.nn.Module":
        """Return a new model; required for framework torch."""
        raise missing_method(self, "build_torch", "framework torch")

    def build_keras(self) -> "keras.Model":
        """Return a new model; required for framework tensorflow."""
        raise missing_method(self, "build_keras", "framework tensorflow")

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return the data; required for dataset `workload`.

        Splits must depend only on `spec.split_seed`, so that all runs of a study and all their
        workers have the same splits. raybench applies `spec.limit` and `spec.repeat` afterwards.
        Further parameters are settings that a space file can search under `space.data`.

        Args:
            spec: `dataset` of the run spec.

        Returns:
            The splits. Inputs that do not fit into memory may be read on demand, by an object with
            `shape`, `dtype` and `[rows]` in place of an array (`raybench.data.inputs.OnDemand`).
        """
        del spec
        raise missing_method(self, "load_dataset", "dataset 'workload'")


class LayerWorkload(Workload):
    """A workload given by its layers; both frameworks build it with equal initial weights."""

    input_shape: tuple[int, ...]
    """Shape of one sample of the one input."""
    layers: tuple[Layer, ...]
    """Layers in order; the last is `Dense(num_classes)`."""


class OwnLoop(Workload):
    """A user's own training loop, which builds its model and loads its data itself.

    See `spec.own_loop` and `training.own`.
    """

    def __init__(self, name: str, function: Callable[[Any], object] | None) -> None:
        """`function` takes a `raybench.Run`; None for a command."""
        self.name, self.function = name, function


Kind = Literal["pixels", "numbers", "tokens"]
"""Kind of one array of inputs, by its type: uint8, float32, whole numbers."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """The shape of one sample, and the task."""

    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """(H, W, C) of an image, (features,) or (tokens,); a dict for inputs by name."""
    num_outputs: int
    """Outputs of a model for one sample, or for one token of a language model."""
    task: Task = "classification"
    """Task of the data."""
    vocabulary_size: int | None = None
    """Number of token ids; None where the inputs are no tokens, or it is unknown."""
    kind: Kind | None = None
    """Kind of the inputs; None for inputs by name, or where it is unknown."""

    @classmethod
    def of(cls, dataset: Dataset) -> "DataShape":
        """Return the shape of a dataset."""
        kind: Kind | None = None
        if not isinstance(dataset.train.inputs, dict):
            by_type: dict[str, Kind] = {"u": "pixels", "f": "numbers", "i": "tokens"}
            kind = by_type[dataset.train.dtype.kind]
        return cls(
            input_shape=as_tuples(dataset.input_shape),
            num_outputs=dataset.num_outputs,
            task=dataset.task,
            vocabulary_size=_vocabulary_size(dataset, kind),
            kind=kind,
        )


def _vocabulary_size(dataset: Dataset, kind: Kind | None) -> int | None:
    """Return the number of token ids of the dataset, or else one more than its largest id."""
    splits = dataset.splits.values()
    if (
        dataset.num_tokens is not None
        or kind != "tokens"
        or any(one.is_on_demand for one in splits)
    ):
        return dataset.num_tokens
    return 1 + max(int(split.array.max(initial=0)) for split in splits)


def as_tuples(shape: Any) -> InputShape:
    """Return a shape with tuples in place of lists."""
    if isinstance(shape, dict):
        return {name: tuple(one) for name, one in shape.items()}
    return tuple(shape)


def missing_method(workload: Workload, method: str, use: str) -> UserError:
    """Return the error for a workload without the method that `use` needs."""
    return UserError(
        f"Workload {workload.name} has no {method}, so it cannot run with {use}.",
        ErrorCode.UNSUPPORTED,
    )


def missing_hook(workload: Workload, metric: Metric, hook: str) -> UserError:
    """Return the error for a workload without the hook that measures its own metric."""
    return UserError(
        f"Workload {workload.name} has the metric {metric.name} and no {hook} to measure it; "
        f"write {hook}(self, outputs, labels), which returns one value for each sample.",
        ErrorCode.MISSING,
    )


def refuse_label_smoothing(spec: RunSpec, workload: Workload) -> None:
    """Raise UserError if `label_smoothing` is set and the loss does not use it."""
    own = workload.torch_loss if spec.framework == "torch" else workload.keras_loss
    if spec.label_smoothing and (own or workload.task == "regression"):
        raise no_label_smoothing(spec.label_smoothing, workload, has_loss=own is not None)


def no_label_smoothing(smoothing: float, workload: Workload, *, has_loss: bool = True) -> UserError:
    """Return the error for `label_smoothing` with a loss that does not use it."""
    why = "has a loss of its own" if has_loss else "learns numbers, which are no classes"
    return UserError(
        f"label_smoothing: {smoothing:g}: workload {workload.name} {why}; leave it "
        f"out{', or smooth the labels there' if has_loss else ''}.",
        ErrorCode.CONFLICT,
    )


def head_error(workload: Workload, names: Sequence[str], what: str) -> UserError:
    """Return the error for a `head` that does not select some of a model's parts.

    Args:
        workload: Workload with the head.
        names: Names of the parts; empty before the model is built.
        what: Kind of the parts: parameters, layers.
    """
    shown = ", ".join([*names[:2], "...", *names[-2:]] if len(names) > 4 else names)
    return UserError(
        f"frozen_epochs: workload {workload.name}: its attribute head ({workload.head}) must be "
        f"what the names of some of its {what} begin with, and not of all"
        f"{f' ({shown})' if shown else ''}.",
        ErrorCode.INVALID_MODEL,
    )
