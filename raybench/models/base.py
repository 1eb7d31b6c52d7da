"""Base class of workloads (a model with its data), and the shape of the data that a model needs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from raybench.data.dataset import Dataset, InputShape
from raybench.models.layers import Layer
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import Metric
from raybench.spec.run import DatasetSpec, RunSpec

if TYPE_CHECKING:
    import keras
    import torch

Hook = Callable[[Any, Any], Any]
"""Function (outputs, labels) that returns a tensor of shape (N,), with one value per sample."""


class Workload:
    """Base class for your own model and its data.

    Set `name`, `input_shape` and `num_classes`, and write `build_torch`, `build_keras` or both. The
    option `--workload my_module:MyWorkload` then trains the model. Parameters of `__init__` are
    settings of the model, which a search-space file can search under `space.model`.

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
    | input: images | (N, C, H, W) float32 | (N, H, W, C) float32 |
    | input: uint8 pixels | scaled to 0..1 | the same |
    | input: tokens, codes, masks | int64, unchanged | the same |
    | input: several named inputs | one dict of tensors | the same |
    | output: classification | logits (N, num_classes) | the same |
    | output: regression | (N,) or (N, outputs), in the scale of the labels | the same |
    | output: language modeling | logits (N, tokens, num_classes) | the same |

    The model is built again for every run, after the framework has been seeded. It must return
    logits, not probabilities. raybench handles devices, parallelism and precision. By default,
    batch normalization uses only the samples of its own worker.
    """

    name: str
    """Short name, shown in tables."""
    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """Shape of one sample: (H, W, C) for an image (in both frameworks), (features,) for a vector,
    (tokens,) for a text; a dict of shapes for named inputs."""
    num_classes: int
    """Number of classes, or of token ids of a language model; not needed for a regression."""
    task: Task = "classification"
    """`classification`, `regression` or `language_modelling`; must equal the task of the dataset,
    unless the workload defines its own loss."""
    metric: Metric | None = None
    """Metric that the workload itself defines, such as `Metric(name="dice", direction="max")`; the
    methods `torch_metric` and `keras_metric` compute it. By default, `objective.metric` is used."""

    head: str | None = None
    """Prefix of the names of all parameters (torch) or layers (Keras) in the head, the last part of
    the model. Required for `frozen_epochs`."""

    torch_loss: Hook | None = None
    """Method (outputs, labels) -> losses of shape (N,), one per sample. By default, the loss is the
    cross entropy (its mean over the tokens for a language model). For a regression, it is the
    squared error, averaged over the outputs."""
    torch_metric: Hook | None = None
    """Method (outputs, labels) -> values of `metric` of shape (N,), one per sample."""
    keras_loss: Hook | None = None
    """The same as `torch_loss`, for Keras. Losses that the model adds by regularizers or `add_loss`
    are always included. Required if the model is compiled or overrides `train_step`."""
    keras_metric: Hook | None = None
    """The same as `torch_metric`, for Keras."""

    def build_torch(self) -> "torch.nn.Module":
        """Return a new model (`torch.nn.Module`); required for framework torch."""
        raise missing_method(self, "build_torch", "framework torch")

    def build_keras(self) -> "keras.Model":
        """Return a new model (`keras.Model`); required for framework tensorflow."""
        raise missing_method(self, "build_keras", "framework tensorflow")

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return the data; required for `dataset: workload`.

        Splits must depend only on `spec.split_seed`, so that all runs of a study and all workers
        use the same splits. raybench applies `spec.limit` and `spec.repeat` afterwards. Additional
        parameters of this method are settings that a space file can search under `space.data`. The
        data must not depend on settings of the model: one dataset is loaded for all their values.

        Args:
            spec: Value of the key `dataset` of the run spec.

        Returns:
            Dataset with three splits. Inputs that do not fit into memory may be an object with
            `shape`, `dtype` and `[rows]` instead of an array; see
            `raybench.data.dataset.OnDemand`.
        """
        del spec
        raise missing_method(self, "load_dataset", "dataset 'workload'")


BUILD_METHODS = {"torch": "build_torch", "tensorflow": "build_keras"}
"""Name of the method of a workload that builds its model, keyed by framework."""


class LayerWorkload(Workload):
    """A workload defined by a list of layers; its initial weights are the same in both
    frameworks."""

    input_shape: tuple[int, ...]
    """Shape of one sample; there is only one input."""
    layers: tuple[Layer, ...]
    """Layers of the network in order; the last one must be `Dense(num_classes)`."""


class OwnLoop(Workload):
    """A user's own training loop, which builds its model and loads its data itself.

    See `spec.own_loop` and `training.own`.
    """

    def __init__(self, name: str, function: Callable[[Any], object] | None) -> None:
        """Create the workload.

        Args:
            name: Value of the key `workload` of the run spec.
            function: The user's function, which takes a `raybench.Run`; None for a command.
        """
        self.name, self.function = name, function


Kind = Literal["pixels", "numbers", "tokens"]
"""Meaning of an array of inputs, which follows from its data type: `pixels` are uint8, `numbers`
are float32, and `tokens` are other integers."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """Properties of a dataset that a model depends on, such as the shape of one sample and the
    task."""

    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """Shape of one sample: (H, W, C), (features,) or (tokens,); a dict of shapes for named
    inputs."""
    num_outputs: int
    """Number of outputs of a model for one sample, or for one token of a language model."""
    task: Task = "classification"
    """Task of the data."""
    vocabulary_size: int | None = None
    """Number of token ids; None if unknown, or if the inputs are not tokens."""
    kind: Kind | None = None
    """Meaning of the inputs; None if unknown, or for named inputs."""

    @classmethod
    def of(cls, dataset: Dataset) -> "DataShape":
        """Return the properties of a dataset."""
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
    """Return the number of token ids of a dataset; None if unknown.

    If the dataset does not state it, it is the largest token id plus one.
    """
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
    """Return the error for a workload that lacks a method; `use` says what requires the method,
    such as "framework torch"."""
    return UserError(
        f"Workload {workload.name} has no {method}, so it cannot run with {use}; write the method, "
        f"or set another {use.partition(' ')[0]}.",
        ErrorCode.UNSUPPORTED,
    )


def missing_hook(workload: Workload, metric: Metric, hook: str) -> UserError:
    """Return the error for a workload that defines a metric, but lacks the method `hook` to compute
    it."""
    return UserError(
        f"Workload {workload.name} has the metric {metric.name} but no {hook} to compute it; "
        f"write {hook}(self, outputs, labels), which returns one value for each sample.",
        ErrorCode.MISSING,
    )


def refuse_label_smoothing(spec: RunSpec, workload: Workload) -> None:
    """Raise UserError if `label_smoothing` is set, but the loss of the workload would ignore it."""
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
    """Return the error for a workload whose attribute `head` does not select a part of the model.

    The prefix `head` must match some, but not all, of the model's parameters or layers.

    Args:
        workload: The workload.
        names: Names of the parameters or layers; empty if the model has not been built.
        kind: "parameters" or "layers".
    """
    names_text = ", ".join([*names[:2], "...", *names[-2:]] if len(names) > 4 else names)
    return UserError(
        f"frozen_epochs: workload {workload.name}: its attribute head ({workload.head}) must be "
        f"the prefix of the names of some of its {kind}, but not of "
        f"all{f' ({names_text})' if names_text else ''}.",
        ErrorCode.INVALID_MODEL,
    )
