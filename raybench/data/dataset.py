"""Datasets: three splits of samples and labels, the same for both frameworks.

The order of samples is a pure function of (seed, epoch, rank, number of workers), so both
frameworks and every worker can compute the order without communication.
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
# int64 for classes and tokens, float32 for the numbers of a regression.
LABEL_TYPES = (np.dtype(np.int64), np.dtype(np.float32))
IGNORED = -100
"""Label of tokens that the loss and the metrics ignore (language modeling)."""


@dataclass(frozen=True)
class Split:
    """Samples and their labels.

    Inputs are one array, or a dict of arrays by name. `uint8` inputs are pixels, stored and moved
    as bytes; the training step scales them by 1/255. Inputs of type `float32`, `int32` or `int64`
    (token ids, codes of categories, masks) are used as they are.

    Instead of an array, inputs may be any object with `shape`, `dtype` and `[rows]` that reads or
    computes samples when a batch needs them (`inputs.OnDemand`). Labels are always an array.

    Example:
        >>> images, labels = np.zeros((100, 28, 28, 1), np.uint8), np.zeros(100, np.int64)
        >>> len(raybench.Split(images, labels))
        100

    Raises:
        UserError: The arrays differ in length, or have a type or shape that is not listed below.
    """

    inputs: Inputs
    """(N, H, W, C), (N, features), (N, tokens), or (N,); uint8, float32, int32 or int64."""
    labels: Array
    """(N,) int64 classes from 0 to `num_classes - 1`; (N,) or (N, outputs) float32 numbers of a
    regression; or (N, tokens) int64 tokens, where -100 marks tokens to ignore."""
    weights: Array | None = None
    """(N,) float32 weights of the samples in the training loss; None means 1 for each."""

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
        """The inputs, which must not be read on demand: an array, or a dict of arrays."""
        assert not self.is_on_demand
        return self.inputs  # type: ignore[return-value]

    @property
    def array(self) -> Array:
        """The inputs, which must be a single array."""
        assert isinstance(self.inputs, np.ndarray)
        return self.inputs

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the inputs, which must not be a dict."""
        assert not isinstance(self.inputs, dict)
        return np.dtype(self.inputs.dtype)

    def read(self, rows: Rows) -> Batch:
        """Return the inputs at `rows`, in that order, as new arrays."""
        return each(self.inputs, lambda one: read_one(one, rows))

    def take(self, indices: Rows | slice) -> "Split":
        """Return a split of the samples at `indices`, in that order, without reading inputs that
        are read on demand."""
        weights = None if self.weights is None else self.weights[indices]
        return Split(select(self.inputs, indices), self.labels[indices], weights)


@dataclass(frozen=True)
class Dataset:
    """Training, validation and test split, and the meaning of their labels.

    The search compares trials on the validation split. The test split is used only for confirmed
    winners (the best configurations).

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
    """Repetitions of the training split in one epoch. The arrays are not copied: sample `i`
    of an epoch is `train[i % len(train)]`."""
    task: Task = "classification"
    """`classification`, `regression` or `language_modelling`."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; empty if classes have no names."""
    label_scale: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """Divisor of standardized regression labels, by which metrics are converted to the original
    unit: float32, () or (outputs,). None means 1."""
    label_offset: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """Offset that was subtracted before the division: float32, () or (outputs,). None means 0."""
    vocabulary: tuple[str, ...] = ()
    """Tokens, in the order of their ids; empty if the inputs are not tokens."""
    encoding: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """How raw samples were encoded as inputs, as JSON values: `columns` for a table (see
    `sources.encode`), the kind of `tokens` for texts, or the value of `white` for images of more
    than 8 bits. None if raw samples were not encoded."""

    @property
    def splits(self) -> dict[str, Split]:
        """The splits by name: `train`, `validation`, `test`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def num_train_samples(self) -> int:
        """Number of samples in one epoch, including repetitions."""
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
        """Number of token ids; None if the inputs are not tokens, or if it is unknown."""
        if self.vocabulary:
            return len(self.vocabulary)
        return self.num_classes if self.task == "language_modelling" else None

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """Names of the classes of a classification, or their numbers if they have no names."""
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
    """Return all fields of a dataset except the splits, as JSON values."""
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
    """Return the inputs, labels and weights of all splits by file name (see `named_arrays`)."""
    arrays: dict[str, Any] = {}
    for name, split in dataset.splits.items():
        arrays |= named_arrays(split, name)
    return arrays


def named_arrays(split: Split, part: str) -> dict[str, One]:
    """Return the inputs, labels and weights of a split by file name, such as `train-labels`."""
    if isinstance(split.inputs, dict):
        prefix = f"{part}-input-"
        arrays = {prefix + quote(name, safe=""): array for name, array in split.inputs.items()}
    else:
        arrays = {f"{part}-inputs": split.inputs}
    arrays[f"{part}-labels"] = split.labels
    return arrays if split.weights is None else arrays | {f"{part}-weights": split.weights}


def split_of_arrays(arrays: Mapping[str, Any], part: str) -> Split:
    """Rebuild the split `part` from arrays with the names of `named_arrays`."""
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
        part: A number of samples (int), a fraction of `total` (float), or "none" for no samples;
            None means `typical`.
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
    """Yield the batches of an epoch as slices of its order of samples.

    Args:
        num_samples: Number of samples in the epoch.
        size: Batch size.
        least: If fewer than `least` samples remain after a batch, they are added to that batch.
        first: Position of the first sample, to resume within an epoch.
    """
    while first < num_samples:
        end = first + size if num_samples - first - size >= least else num_samples
        yield slice(first, end)
        first = end


def shard(num_samples: int, *, rank: int, num_workers: int) -> slice:
    """Return one worker's contiguous part of `num_samples` samples.

    The parts of all ranks, in order, are all samples. Their sizes differ by at most one, so parts
    of a small batch may be empty.
    """
    return slice(rank * num_samples // num_workers, (rank + 1) * num_samples // num_workers)
