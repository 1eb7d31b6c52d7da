"""The inputs of a split: one array, one object on demand, or a dict of these by name."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from raybench.core.errors import UserError
from raybench.data import on_demand
from raybench.data.on_demand import Array, OnDemand, Rows

One = Array | OnDemand
Inputs = One | dict[str, Array | OnDemand]
Batch = Array | dict[str, Array]
"""Inputs of some samples, in memory."""

InputShape = tuple[int, ...] | dict[str, tuple[int, ...]]
"""Of one sample; of inputs by name each its own."""

Old = TypeVar("Old")
New = TypeVar("New")


def each(inputs: "Old | dict[str, Old]", change: Callable[[Old], New]) -> "New | dict[str, New]":
    """Return `change` of the one input, or of each input of a dict by the same names."""
    if isinstance(inputs, dict):
        return {name: change(one) for name, one in inputs.items()}
    return change(inputs)


def parts(inputs: "Old | dict[str, Old]") -> list[Old]:
    """Return the one input, or those of a dict, in the order of their names."""
    return [inputs[name] for name in sorted(inputs)] if isinstance(inputs, dict) else [inputs]


def num_rows(inputs: Inputs) -> int:
    """Return the number of samples; all inputs of a dict have as many."""
    return int(parts(inputs)[0].shape[0])


def sample_shape(inputs: Inputs) -> InputShape:
    """Return the shape of one sample, of a dict each by its name."""
    return each(inputs, lambda one: tuple(one.shape[1:]))


def shown(shapes: InputShape) -> str:
    """Return shapes for a sentence: `(28, 28, 1)`, or those of inputs by their names."""
    if not isinstance(shapes, dict):
        return str(tuple(shapes))
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())


def is_on_demand(inputs: Inputs) -> bool:
    """Whether any of the inputs is read when it is asked for."""
    return not all(isinstance(one, np.ndarray) for one in parts(inputs))


def select(inputs: Inputs, rows: Rows | slice) -> Inputs:
    """Return the samples at `rows`, in that order; of those on demand none is read."""
    return each(inputs, lambda one: on_demand.select(one, rows))


def read_rows(inputs: Inputs, rows: Rows) -> Batch:
    """Return the samples at `rows` as arrays that can be written to; see `on_demand.read_rows`."""
    return each(inputs, lambda one: on_demand.read_rows(one, rows))


def repeated_first(inputs: One, number: int) -> Array:
    """Return the first sample of one input so many times."""
    first = on_demand.read_rows(inputs, np.zeros(1, np.int64))
    return np.repeat(first, number, axis=0)


def check_inputs(inputs: Inputs) -> None:
    """Raise UserError for what can be neither arrays of samples nor samples on demand."""
    if not isinstance(inputs, dict):
        on_demand.check_inputs(inputs)
        return
    if not inputs or not all(isinstance(name, str) for name in inputs):
        raise UserError("Inputs by name need at least one name, and names that are text.")
    for one in inputs.values():
        on_demand.check_inputs(one)
    lengths = {name: int(one.shape[0]) for name, one in inputs.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {number}" for name, number in lengths.items())
        raise UserError(f"The inputs of a split must be as many of each name, found {shown}.")
