"""The base class of a user's own models, and the description of the shape of their data."""

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
"""Function (outputs, labels) -> one number per sample, (N,), as a tensor of the framework."""


class Workload:
    """Base class for your own model and its data.

    Set `name`, `input_shape` and `num_classes`, and write `build_torch`, `build_keras` or both.
    `--workload my_module:MyWorkload` then trains the model. Parameters of `__init__` are settings
    that a space file (the YAML of a search) can search under `space.model`.

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
    | tokens, codes, masks | int64, unchanged | the same |
    | named inputs | one dict of tensors | the same |
    | the model returns | logits (N, num_classes) | the same |
    | in a regression | (N,) or (N, outputs), in the scale of the labels | the same |
    | in language modeling | logits (N, tokens, num_classes) | the same |

    The model is built again for every run, after the framework has been seeded, and returns logits,
    not probabilities. raybench handles devices, parallelism and precision. Batch normalization uses
    only the samples of each worker.
    """

    name: str
    """Short name, shown in tables."""
    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """Shape of one sample: (H, W, C) for an image, in both frameworks, (features,) for a vector,
    (tokens,) for a text; a dict of shapes for named inputs."""
    num_classes: int
    """Number of classes, or of token ids of a language model; not needed for a regression."""
    task: Task = "classification"
    """`classification`, `regression` or `language_modelling`; must be the task of the data, unless
    the workload defines its own loss."""
    metric: Metric | None = None
    """A metric that the workload defines, computed by `torch_metric` and `keras_metric`:
    `Metric(name="dice", direction="max")`. By default, `objective.metric` is used."""

    head: str | None = None
    """Common prefix of the names of the head's parameters (torch) or layers (Keras), which
    `frozen_epochs` needs."""

    torch_loss: Hook | None = None
    """Method (outputs, labels) -> loss of each sample (N,). The default is cross entropy (its mean
    over the tokens of a language model), or the squared error (its mean over the outputs of a
    regression)."""
    torch_metric: Hook | None = None
    """Method (outputs, labels) -> value of `metric` for each sample (N,)."""
    keras_loss: Hook | None = None
    """The same as `torch_loss`, for Keras. Regularization losses and `add_loss` of the model are
    always included. Required if the model is compiled or has a training step of its own."""
    keras_metric: Hook | None = None
    """The same as `torch_metric`, for Keras."""

    def build_torch(self) -> "torch.nn.Module":
        """Return a new model; required for framework torch."""
        raise missing_method(self, "build_torch", "framework torch")

    def build_keras(self) -> "keras.Model":
        """Return a new model; required for framework tensorflow."""
        raise missing_method(self, "build_keras", "framework tensorflow")

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return the data; required for dataset `workload`.

        Splits must depend only on `spec.split_seed`, so that all runs of a study and all workers
        use the same splits. raybench applies `spec.limit` and `spec.repeat` afterwards. Additional
        parameters of this method are settings that a space file can search under `space.data`.

        Args:
            spec: The key `dataset` of the run spec.

        Returns:
            The three splits. Inputs that do not fit into memory may be an object with `shape`,
            `dtype` and `[rows]` instead of an array (`raybench.data.inputs.OnDemand`).
        """
        del spec
        raise missing_method(self, "load_dataset", "dataset 'workload'")


class LayerWorkload(Workload):
    """A workload defined by its layers, built with the same initial weights in both frameworks."""

    input_shape: tuple[int, ...]
    """Shape of one sample; there is only one input."""
    layers: tuple[Layer, ...]
    """The layers in order; the last one must be `Dense(num_classes)`."""


class OwnLoop(Workload):
    """A user's own training loop, which builds its model and loads its data itself.

    See `spec.own_loop` and `training.own`.
    """

    def __init__(self, name: str, function: Callable[[Any], object] | None) -> None:
        """Create the workload; `function` takes a `raybench.Run`, and is None for a command."""
        self.name, self.function = name, function


Kind = Literal["pixels", "numbers", "tokens"]
"""Kind of an array of inputs, by its type: uint8, float32, or integers."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """What a model must know about its data: the shape of one sample, and the task."""

    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """(H, W, C) for an image, (features,) or (tokens,); a dict of shapes for named inputs."""
    num_outputs: int
    """Number of outputs of a model for one sample, or for one token of a language model."""
    task: Task = "classification"
    """Task of the data."""
    vocabulary_size: int | None = None
    """Number of token ids; None if unknown, or if the inputs are not tokens."""
    kind: Kind | None = None
    """Kind of the inputs; None if unknown, or for named inputs."""

    @classmethod
    def of(cls, dataset: Dataset) -> "DataShape":
        """Return the shape of a dataset."""
        kind: Kind | None = None
        if not isinstance(dataset.train.inputs, dict):
            kinds_by_type: dict[str, Kind] = {"u": "pixels", "f": "numbers", "i": "tokens"}
            kind = kinds_by_type[dataset.train.dtype.kind]
        return cls(
            input_shape=as_tuples(dataset.input_shape),
            num_outputs=dataset.num_outputs,
            task=dataset.task,
            vocabulary_size=_vocabulary_size(dataset, kind),
            kind=kind,
        )


def _vocabulary_size(dataset: Dataset, kind: Kind | None) -> int | None:
    """Return the dataset's number of token ids, or its largest id plus one; None if unknown."""
    splits = dataset.splits.values()
    if (
        dataset.num_tokens is not None
        or kind != "tokens"
        or any(split.is_on_demand for split in splits)
    ):
        return dataset.num_tokens
    return 1 + max(int(split.array.max(initial=0)) for split in splits)


def as_tuples(shape: Any) -> InputShape:
    """Return a shape, or a dict of shapes, with lists converted to tuples."""
    if isinstance(shape, dict):
        return {name: tuple(axes) for name, axes in shape.items()}
    return tuple(shape)


def missing_method(workload: Workload, method: str, use: str) -> UserError:
    """Return the error for a workload that lacks the method that `use` needs."""
    return UserError(
        f"Workload {workload.name} has no {method}, so it cannot run with {use}.",
        ErrorCode.UNSUPPORTED,
    )


def missing_hook(workload: Workload, metric: Metric, hook: str) -> UserError:
    """Return the error for a workload that lacks the method that computes its own metric."""
    return UserError(
        f"Workload {workload.name} has the metric {metric.name} but no {hook} to compute it; "
        f"write {hook}(self, outputs, labels), which returns one value for each sample.",
        ErrorCode.MISSING,
    )


def refuse_label_smoothing(spec: RunSpec, workload: Workload) -> None:
    """Raise UserError if `label_smoothing` is set and the loss would ignore it."""
    loss = workload.torch_loss if spec.framework == "torch" else workload.keras_loss
    if not spec.label_smoothing or not (loss or workload.task == "regression"):
        return
    why = "defines its own loss" if loss else "predicts numbers, not classes"
    raise UserError(
        f"label_smoothing: {spec.label_smoothing:g}: workload {workload.name} {why}; leave it "
        f"out{', or smooth the labels there' if loss else ''}.",
        ErrorCode.CONFLICT,
    )


def head_error(workload: Workload, names: Sequence[str], kind: str) -> UserError:
    """Return the error for a `head` that is the prefix of no name, or of all names, in a model.

    `names` are the names of its "parameters" or "layers" (`kind`), if the model has been built.
    """
    names_text = ", ".join([*names[:2], "...", *names[-2:]] if len(names) > 4 else names)
    return UserError(
        f"frozen_epochs: workload {workload.name}: its attribute head ({workload.head}) must be "
        f"the prefix of the names of some of its {kind}, but not of "
        f"all{f' ({names_text})' if names_text else ''}.",
        ErrorCode.INVALID_MODEL,
    )
