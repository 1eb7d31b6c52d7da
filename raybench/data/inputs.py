"""Inputs of a split: an array, an object that reads samples on demand, or a dict of such inputs."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from raybench.data.memory import is_beyond_memory
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
Batch = Array | dict[str, Array]  # the inputs of the samples of a batch, in memory


class Selected:
    """Selected rows of an array or of `OnDemand` inputs, which are read when a batch needs them."""

    def __init__(self, inputs: One, rows: Rows) -> None:
        self.inputs, self.rows = inputs, rows
        self.shape = (len(rows), *inputs.shape[1:])
        self.dtype = inputs.dtype

    def __getitem__(self, rows: Rows, /) -> Array:
        """Return the samples at the given positions within the selection."""
        return read_one(self.inputs, self.rows[rows])


def _select_one(inputs: One, rows: Rows | slice) -> One:
    """Return the samples of a single input at `rows`; see `select`."""
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
            f"{type(inputs).__name__} of {kind} {shape}.",
            ErrorCode.INVALID_DATA,
        )


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


def select(inputs: Inputs, rows: Rows | slice) -> Inputs:
    """Return the samples at `rows`, in that order, without reading `OnDemand` inputs yet.

    Memory-mapped arrays are not read yet either, if the selected samples would not fit into memory.
    """
    return each(inputs, lambda single: _select_one(single, rows))


def check_inputs(inputs: Inputs) -> int:
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
