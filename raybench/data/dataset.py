"""Datasets with a training, a validation and a test split, in one form for both frameworks.

The inputs of a split are an array, an object that reads samples on demand, or a dict of such inputs
by name.

The order of the samples in an epoch depends only on the seed and the epoch. The samples of a batch
that a worker processes depend only on its rank and the number of workers. Workers therefore need no
communication to agree on them, and they are the same in both frameworks.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from raybench.data.memory import is_beyond_memory
from raybench.spec.dataset_spec import Task
from raybench.spec.errors import ErrorCode, UserError

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]  # positions of samples in a split
INPUT_TYPES = tuple(np.dtype(kind) for kind in (np.uint8, np.float32, np.int32, np.int64))
"""Allowed data types of inputs."""


class OnDemand(Protocol):
    """Protocol for inputs that are read batch by batch: an object with these three members.

    raybench discards each batch after its step, so a split may be larger than memory. Calls come
    from several threads, but only one at a time. Batches are read in training order; with `augment`
    and a `prefetch` above 1, the order is only approximate. The same row must always return the
    same sample; otherwise, runs cannot be repeated or resumed.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all samples: (N, H, W, C), (N, features), (N, tokens), or (N,)."""
        ...

    @property
    def dtype(self) -> npt.DTypeLike:
        """NumPy data type: uint8 (pixels), float32, int32 or int64 (tokens, codes)."""
        ...

    def __getitem__(self, rows: Rows, /) -> Array:
        """Return the samples at `rows`, which may be in any order and may contain duplicates.

        Returns:
            A new array of `dtype` and shape (len(rows), *shape[1:]).
        """
        ...


One = Array | OnDemand
"""A single input of a split."""
Inputs = One | dict[str, One]
"""All inputs of a split: a single input, or several inputs by name."""
Batch = Array | dict[str, Array]  # inputs of a batch of samples, in memory


class Selected:
    """Selected rows of an array or of `OnDemand` inputs, which are read when a batch needs them."""

    def __init__(self, inputs: One, rows: Rows) -> None:
        self.inputs, self.rows = inputs, rows
        self.shape = (len(rows), *inputs.shape[1:])
        self.dtype = inputs.dtype

    def __getitem__(self, rows: Rows, /) -> Array:
        """Return the samples at the given positions within the selection."""
        return read_one(self.inputs, self.rows[rows])


def _select(inputs: One, rows: Rows | slice) -> One:
    """Return the samples at `rows`, in that order.

    `OnDemand` inputs are not read yet, and neither is a memory-mapped array if too many of its
    samples are selected (see `is_beyond_memory`).
    """
    if isinstance(inputs, np.ndarray):
        if isinstance(rows, slice) or not is_beyond_memory(inputs, len(rows)):
            return inputs[rows]
        return Selected(inputs, rows)
    if isinstance(inputs, Selected):
        return Selected(inputs.inputs, inputs.rows[rows])
    return Selected(inputs, np.arange(inputs.shape[0])[rows])


def read_one(inputs: One, rows: Rows) -> Array:
    """Return the samples at `rows` as a new array in memory.

    Raises:
        UserError: `OnDemand` inputs return an array that does not match their `shape` and `dtype`,
            or that contains NaN or infinite values.
    """
    samples = inputs[rows]
    if isinstance(inputs, np.ndarray | Selected):
        return samples
    name, expected = type(inputs).__name__, (np.dtype(inputs.dtype), (len(rows), *inputs.shape[1:]))
    is_array = isinstance(samples, np.ndarray)
    actual = (samples.dtype, samples.shape) if is_array else (type(samples).__name__,)
    if actual != expected:
        raise UserError(
            f"{name}[rows] returned {' '.join(map(str, actual))} for {len(rows)} rows; by its "
            f"shape and dtype, it must return a numpy array of {expected[0]} {expected[1]}.",
            ErrorCode.USER_CODE,
        )
    finite = np.isfinite(samples).reshape(len(samples), -1).all(axis=1)
    if not finite.all():
        raise UserError(
            f"{name}[rows] returned NaN or infinite inputs, first in sample "
            f"{rows[int(np.argmin(finite))]}; remove or replace them.",
            ErrorCode.INVALID_DATA,
        )
    return np.require(samples, requirements=["C", "W"])


def _check_one(inputs: One) -> None:
    """Raise UserError unless an input is an array or `OnDemand`, with an allowed data type."""
    shape, kind = getattr(inputs, "shape", None), getattr(inputs, "dtype", None)
    try:
        is_known = kind is not None and np.dtype(kind) in INPUT_TYPES
    except TypeError:  # the dtype of another library
        is_known = False
    if not is_known or not isinstance(shape, tuple) or not shape:
        raise UserError(
            "The inputs of a split must be a numpy array, or an object with shape (N, ...), dtype "
            "and [rows], of uint8 (pixels), float32 (numbers), int32 or int64 (tokens); found "
            f"{_type_text(inputs)}.",
            ErrorCode.INVALID_DATA,
        )


def _type_text(values: Any) -> str:
    """Return the class, and if known the data type and shape, of an object for a message."""
    known = (getattr(values, key, None) for key in ("dtype", "shape"))
    return " ".join([type(values).__name__, *(str(item) for item in known if item is not None)])


InputShape = tuple[int, ...] | dict[str, tuple[int, ...]]
"""Shape of one sample; a dict of shapes for named inputs."""

Old = TypeVar("Old")
New = TypeVar("New")


def each(inputs: "Old | dict[str, Old]", change: Callable[[Old], New]) -> "New | dict[str, New]":
    """Apply a function to a single input, or to each of several inputs by name.

    Returns:
        The result of the function, or a dict of its results by name.
    """
    if isinstance(inputs, dict):
        return {name: change(value) for name, value in inputs.items()}
    return change(inputs)


def parts(inputs: "Old | dict[str, Old]") -> list[Old]:
    """Return inputs as a list: the single input, or all inputs of a dict sorted by name."""
    return [inputs[name] for name in sorted(inputs)] if isinstance(inputs, dict) else [inputs]


def shown(shapes: InputShape) -> str:
    """Return the shapes of inputs as text for a message, such as `(28, 28, 1)` or
    `image (28, 28, 1), age (1,)`."""
    if not isinstance(shapes, dict):
        return str(tuple(shapes))
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())


def _check_inputs(inputs: Inputs) -> int:
    """Check the inputs of a split, and return the number of samples.

    Raises:
        UserError: An input is neither an array nor `OnDemand`, or inputs differ in length.
    """
    named = inputs if isinstance(inputs, dict) else {"": inputs}
    if not named or not all(isinstance(name, str) for name in named):
        raise UserError(
            "A dict of inputs needs at least one entry, and names that are strings.",
            ErrorCode.INVALID_DATA,
        )
    for array in named.values():
        _check_one(array)
    lengths = {name: int(array.shape[0]) for name, array in named.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {number}" for name, number in lengths.items())
        raise UserError(
            f"The inputs of a split differ in their number of samples: {counts}.",
            ErrorCode.INVALID_DATA,
        )
    return next(iter(lengths.values()))


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
    computes samples when a batch needs them (see `OnDemand`). Labels are always an array.

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
        number, labels, weights = _check_inputs(self.inputs), self.labels, self.weights
        is_array = isinstance(labels, np.ndarray)
        if not is_array or labels.dtype not in LABEL_TYPES or labels.ndim not in (1, 2):
            raise UserError(
                "The labels of a split must be a numpy array of int64 or float32, (N,) or "
                f"(N, outputs); found {_type_text(labels)}.",
                ErrorCode.INVALID_DATA,
            )
        if number != len(labels):
            raise UserError(
                f"A split has {number} inputs but {len(labels)} labels; every input needs one.",
                ErrorCode.INVALID_DATA,
            )
        is_array = isinstance(weights, np.ndarray) and weights.dtype == np.float32
        if weights is not None and not (is_array and weights.shape == (number,)):
            raise UserError(
                f"The weights of a split must be a numpy array of float32 and shape ({number},); "
                f"found {_type_text(weights)}.",
                ErrorCode.INVALID_DATA,
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_on_demand(self) -> bool:
        """Whether any input is read on demand (`OnDemand`) instead of being an array."""
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
        """Return a split with only the samples at `indices`, in that order.

        Inputs that are read on demand are not read yet.
        """
        weights = None if self.weights is None else self.weights[indices]
        inputs = each(self.inputs, lambda inputs: _select(inputs, indices))
        return Split(inputs, self.labels[indices], weights)


@dataclass(frozen=True)
class Dataset:
    """Training, validation and test split, and what their inputs and labels mean.

    The search compares trials on the validation split. The test split is evaluated only at the end
    of confirmation runs and of `raybench train`.

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
    """Number by which regression labels were divided to standardize them, float32 of shape () or
    (outputs,). Errors are multiplied by it, so that all metrics except the loss are in the original
    unit. None means 1."""
    label_offset: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    """Offset that was subtracted from regression labels before the division, float32 of shape () or
    (outputs,). None means 0."""
    vocabulary: tuple[str, ...] = ()
    """Tokens, in the order of their ids; empty if the inputs are not tokens."""
    encoding: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """How raw samples were encoded as inputs, as JSON values under one key: `columns`, the encoders
    of a table (see `sources.encode`); `tokens`, the kind of tokens of texts; or `white`, the pixel
    value of white in images of more than 8 bits. None for all other inputs."""

    @property
    def splits(self) -> dict[str, Split]:
        """Splits by name: `train`, `validation`, `test`."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def num_train_samples(self) -> int:
        """Number of training samples in one epoch, including repetitions."""
        return len(self.train) * self.repeat

    @property
    def input_shape(self) -> InputShape:
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
    """Return the fields of a dataset except the splits, as JSON values keyed by field name."""
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
    """Return the inputs, labels and weights of all splits, keyed as by `named_arrays`."""
    arrays: dict[str, Any] = {}
    for name, split in dataset.splits.items():
        arrays |= named_arrays(split, name)
    return arrays


def named_arrays(split: Split, part: str) -> dict[str, One]:
    """Return the inputs, labels and weights of a split, keyed by names such as `train-labels`.

    The names can be used as file names.
    """
    if isinstance(split.inputs, dict):
        prefix = f"{part}-input-"
        arrays = {prefix + quote(name, safe=""): array for name, array in split.inputs.items()}
    else:
        arrays = {f"{part}-inputs": split.inputs}
    arrays[f"{part}-labels"] = split.labels
    return arrays if split.weights is None else arrays | {f"{part}-weights": split.weights}


def split_of_arrays(arrays: Mapping[str, Any], part: str) -> Split:
    """Rebuild the split named `part` from the arrays that `named_arrays` returned."""
    prefix = f"{part}-input-"
    inputs = arrays.get(f"{part}-inputs")
    if inputs is None:
        inputs = {
            unquote(name.removeprefix(prefix)): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
    return Split(inputs, arrays[f"{part}-labels"], arrays.get(f"{part}-weights"))


def num_of(size: int | float | str | None, total: int, *, typical: int) -> int:
    """Return the number of samples of a held-out split.

    Args:
        size: Size as set by the user: a number of samples (int), a fraction of `total` (float),
            "none" for an empty split, or None for the default size.
        total: Number of samples from which the split is cut.
        typical: Default number of samples.
    """
    if size is None or isinstance(size, str):
        return typical if size is None else 0
    return max(1, round(size * total)) if isinstance(size, float) else size


_STREAM = 1  # makes the order independent of the initial weights, which use the same seed


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> Rows:
    """Return the order of the samples in an epoch: a permutation of 0 .. num_samples - 1, int64.

    `num_samples` includes repetitions (`Dataset.num_train_samples`); take the result modulo
    `len(dataset.train)` to index the arrays.
    """
    return np.random.default_rng([_STREAM, epoch, seed]).permutation(num_samples)


def batches(num_samples: int, *, size: int, least: int, first: int = 0) -> Iterator[slice]:
    """Yield the batches of an epoch, each as a slice into the sample order (`epoch_order`).

    Args:
        num_samples: Number of samples in the epoch.
        size: Number of samples in a batch.
        least: Minimum size of the last batch; if fewer samples remain, they are added to the
            previous batch.
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
