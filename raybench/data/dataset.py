"""Datasets: training, validation and test split, the same for both frameworks.

The order of samples depends only on the seed, the epoch, the rank and the number of workers, so
each worker can compute it without communication, and it is the same in both frameworks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from raybench.data.inputs import Array as Array
from raybench.data.inputs import (
    Batch,
    Inputs,
    One,
    Rows,
    check_inputs,
    each,
    parts,
    read_one,
    select,
)
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError

SPLITS = ("train", "validation", "test")
# Labels are int64 for classes and tokens, float32 for a regression.
LABEL_TYPES = (np.dtype(np.int64), np.dtype(np.float32))
IGNORED = -100
"""Label that marks tokens to be ignored by the loss and the metrics (language modeling)."""


@dataclass(frozen=True)
class Split:
    """A split of a dataset: samples and their labels.

    Inputs are an array, or a dict of arrays by name. Inputs of type `uint8` are pixels: they are
    stored and transferred as bytes, and the training step scales them by 1/255. Inputs of type
    `float32`, `int32` or `int64` (token ids, codes of categories, masks) are not changed.

    Instead of an array, inputs may be any object with `shape`, `dtype` and `[rows]` that reads or
    computes samples when a batch needs them (see `inputs.OnDemand`). Labels are always an array.

    Example:
        >>> images, labels = np.zeros((100, 28, 28, 1), np.uint8), np.zeros(100, np.int64)
        >>> len(raybench.Split(images, labels))
        100

    Raises:
        UserError: The arrays differ in length, or have an invalid type or shape.
    """

    inputs: Inputs
    """Inputs of shape (N, H, W, C), (N, features), (N, tokens) or (N,), and of type uint8, float32,
    int32 or int64."""
    labels: Array
    """Labels: for a classification, int64 class numbers (N,) from 0 to `num_classes - 1`; for a
    regression, float32 numbers (N,) or (N, outputs); for a language model, int64 token ids
    (N, tokens), where -100 marks tokens to ignore."""
    weights: Array | None = None
    """Weights of the samples in the training loss, (N,) float32; None means that all are 1."""

    def __post_init__(self) -> None:
        number = check_inputs(self.inputs)
        if number != len(self.labels):
            raise UserError(
                f"A split has {number} inputs but {len(self.labels)} labels; every input needs "
                "one.",
                ErrorCode.INVALID_DATA,
            )
        if self.labels.dtype not in LABEL_TYPES or self.labels.ndim not in (1, 2):
            raise UserError(
                "The labels of a split must be int64 or float32, (N,) or (N, outputs); found "
                f"{self.labels.dtype} {self.labels.shape}.",
                ErrorCode.INVALID_DATA,
            )
        weights = self.weights
        if weights is not None and (weights.dtype != np.float32 or weights.shape != (number,)):
            raise UserError(
                f"The weights of a split must be float32 of shape ({number},); found "
                f"{weights.dtype} {weights.shape}.",
                ErrorCode.INVALID_DATA,
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_on_demand(self) -> bool:
        """Whether any input is read on demand (`inputs.OnDemand`) instead of being an array."""
        return not all(isinstance(inputs, np.ndarray) for inputs in parts(self.inputs))

    @property
    def arrays(self) -> Batch:
        """Inputs as an array or a dict of arrays; not available for inputs that are read on
        demand."""
        assert not self.is_on_demand
        return self.inputs  # type: ignore[return-value]

    @property
    def array(self) -> Array:
        """Inputs as an array; only available if the inputs are a single array."""
        assert isinstance(self.inputs, np.ndarray)
        return self.inputs

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the inputs; only available if the inputs are not a dict."""
        assert not isinstance(self.inputs, dict)
        return np.dtype(self.inputs.dtype)

    def read(self, rows: Rows) -> Batch:
        """Return the inputs at `rows`, in that order, as new arrays."""
        return each(self.inputs, lambda inputs: read_one(inputs, rows))

    def take(self, indices: Rows | slice) -> "Split":
        """Return a split with only the samples at `indices`, in that order; inputs that are read on
        demand are not read yet."""
        weights = None if self.weights is None else self.weights[indices]
        return Split(select(self.inputs, indices), self.labels[indices], weights)


@dataclass(frozen=True)
class Dataset:
    """Training, validation and test split, with the meaning of inputs and labels.

    The search compares trials on the validation split. The test split is used only for confirmation
    runs of the best configurations.

    Example:
        >>> inputs, labels = np.zeros((90, 4), np.float32), np.arange(90) % 3
        >>> thirds = [raybench.Split(inputs[n::3], labels[n::3]) for n in range(3)]
        >>> raybench.Dataset("mine", 3, *thirds).input_shape
        (4,)
    """

    name: str
    """Short name, shown in tables."""
    num_classes: int | None
    """Number of classes, or of token ids of a language model; None for regression."""
    train: Split
    validation: Split
    test: Split
    repeat: int = 1
    """Number of repetitions of the training split in one epoch. The arrays are not copied: sample
    `i` of an epoch is sample `i % len(train)` of the split."""
    task: Task = "classification"
    """`classification`, `regression` or `language_modelling`."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; empty if classes have no names."""
    label_scale: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """Divisor with which regression labels were standardized, float32 of shape () or (outputs,).
    Metrics are multiplied by it to convert them to the original unit. None means 1."""
    label_offset: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """Offset that was subtracted from regression labels before the division, float32 of shape () or
    (outputs,). None means 0."""
    vocabulary: tuple[str, ...] = ()
    """Tokens, in the order of their ids; empty if the inputs are not tokens."""
    encoding: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """Encoding of raw samples as inputs, as JSON values: the encoders of `columns` for a table (see
    `sources.encode`), the kind of `tokens` for texts, or the pixel value of `white` for images of
    more than 8 bits. None if raw samples were not encoded."""

    @property
    def splits(self) -> dict[str, Split]:
        """Splits by name: `train`, `validation`, `test`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def num_train_samples(self) -> int:
        """Number of training samples in one epoch, including repetitions."""
        return len(self.train) * self.repeat

    @property
    def input_shape(self) -> "tuple[int, ...] | dict[str, tuple[int, ...]]":
        """Shape of one sample: (H, W, C), (features,) or (tokens,); a dict for named inputs."""
        return each(self.train.inputs, lambda inputs: tuple(inputs.shape[1:]))

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model for one sample, or for one token of a language model."""
        if self.task == "regression":
            return 1 if self.train.labels.ndim == 1 else int(self.train.labels.shape[1])
        assert self.num_classes is not None
        return self.num_classes

    @property
    def num_tokens(self) -> int | None:
        """Number of token ids; None if the inputs are not tokens, or if the number is unknown."""
        if self.vocabulary:
            return len(self.vocabulary)
        return self.num_classes if self.task == "language_modelling" else None

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """Class names; class numbers as text if the classes are unnamed."""
        assert self.num_classes is not None
        return self.class_names or tuple(map(str, range(self.num_classes)))

    def original_labels(self, labels: Array) -> Array:
        """Convert standardized labels of a regression to their original unit."""
        scale = 1.0 if self.label_scale is None else self.label_scale
        offset = 0.0 if self.label_offset is None else self.label_offset
        original: Array = labels * scale + offset
        return original


_NOTHING = Split(np.zeros((0, 0), np.float32), np.zeros(0, np.int64))
NO_DATA = Dataset("workload", None, _NOTHING, _NOTHING, _NOTHING)
"""Empty dataset for a user's own training loop, which loads its data itself."""


def about_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return all fields of a dataset except the splits, as JSON values by field name."""
    about = {entry.name: getattr(dataset, entry.name) for entry in fields(dataset)}
    for key in ("label_scale", "label_offset"):
        if about[key] is not None:
            about[key] = np.asarray(about[key], np.float32).tolist()
    for key in ("num_classes", "repeat"):  # may be numpy integers
        about[key] = None if about[key] is None else int(about[key])
    return {key: about[key] for key in about if key not in SPLITS}


def dataset_of(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> Dataset:
    """Rebuild a dataset from the results of `about_dataset` and `all_arrays`."""
    content = dict(about)
    for key in ("class_names", "vocabulary"):
        content[key] = tuple(content[key])
    for key in ("label_scale", "label_offset"):
        if content[key] is not None:
            content[key] = np.array(content[key], np.float32)
    content |= {part: split_of_arrays(arrays, part) for part in SPLITS}
    return Dataset(**content)


def all_arrays(dataset: Dataset) -> dict[str, Any]:
    """Return the inputs, labels and weights of all splits, by the names of `named_arrays`."""
    arrays: dict[str, Any] = {}
    for name, split in dataset.splits.items():
        arrays |= named_arrays(split, name)
    return arrays


def named_arrays(split: Split, part: str) -> dict[str, One]:
    """Return the inputs, labels and weights of a split by name, such as `train-labels`; the name
    can be used as a file name."""
    if isinstance(split.inputs, dict):
        prefix = f"{part}-input-"
        arrays = {prefix + quote(name, safe=""): array for name, array in split.inputs.items()}
    else:
        arrays = {f"{part}-inputs": split.inputs}
    arrays[f"{part}-labels"] = split.labels
    return arrays if split.weights is None else arrays | {f"{part}-weights": split.weights}


def split_of_arrays(arrays: Mapping[str, Any], part: str) -> Split:
    """Rebuild a split from arrays with the names of `named_arrays`; `part` is the name of the
    split."""
    prefix = f"{part}-input-"
    inputs = arrays.get(f"{part}-inputs")
    if inputs is None:
        inputs = {
            unquote(name.removeprefix(prefix)): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
    return Split(inputs, arrays[f"{part}-labels"], arrays.get(f"{part}-weights"))


def num_of(part: int | float | str | None, total: int, *, typical: int) -> int:
    """Return the number of samples of a held-out split.

    Args:
        part: Size of the split: a number of samples (int), a fraction of `total` (float), "none"
            for an empty split, or None for the default size.
        total: Number of samples from which the split is cut.
        typical: Default number of samples.
    """
    if part is None or isinstance(part, str):
        return typical if part is None else 0
    return max(1, round(part * total)) if isinstance(part, float) else part


_STREAM = 1  # makes these random numbers independent of the initial weights (same seed)


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> Rows:
    """Return the order of the samples in an epoch: a permutation of 0 .. num_samples - 1, int64.

    `num_samples` includes repetitions (`Dataset.num_train_samples`); take the result modulo
    `len(dataset.train)` to index the arrays.
    """
    return np.random.default_rng([_STREAM, epoch, seed]).permutation(num_samples)


def batches(num_samples: int, *, size: int, least: int, first: int = 0) -> Iterator[slice]:
    """Yield the batches of an epoch as slices of the order of samples.

    Args:
        num_samples: Number of samples in the epoch.
        size: Number of samples in a batch.
        least: Minimum size of the last batch; fewer remaining samples are added to the previous
            batch.
        first: Position of the first sample, to resume within an epoch.
    """
    while first < num_samples:
        end = first + size if num_samples - first - size >= least else num_samples
        yield slice(first, end)
        first = end


def shard(num_samples: int, *, rank: int, num_workers: int) -> slice:
    """Return the part of a batch that one worker processes, as a slice of its `num_samples`
    samples.

    The parts of all ranks, in order, make up the batch. Their sizes differ by at most one sample,
    so parts of a small batch may be empty.
    """
    return slice(rank * num_samples // num_workers, (rank + 1) * num_samples // num_workers)
