"""All that training goes on from, as bytes: model, optimizer, random states. Mirrors torch's.

Variables in their order, which is that of their making: an `.npz` file of numbers alone, read
without pickle.
"""

import io
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from raybench.backends.saved import check_same_model, not_ours
from raybench.backends.tensorflow.internals import all_layers

Array = npt.NDArray[Any]
Gather = Callable[[list[float]], list[list[float]]]


Copies = list[list[tf.Variable]]
"""Of each replica in this process (one, or all that there are), its copy of all variables."""


def copies_of(variables: list[keras.Variable], strategy: tf.distribute.Strategy) -> Copies:
    """Return each replica's own copy of the variables."""
    each = [strategy.experimental_local_results(variable.value) for variable in variables]
    return [list(copies) for copies in zip(*each, strict=True)]


def pack_state(
    arrays: list[Array], own: list[int], rows: list[list[float]], *, is_frozen: bool
) -> bytes:
    """Return the state of a run: the first replica's values; `rows` as `own_numbers` gives.

    `own` are the positions of the arrays that the rows are of.
    """
    named = {f"{index:06d}": _plain(array) for index, array in enumerate(arrays)}
    buffer = io.BytesIO()
    ranks = {"own": np.array(own, np.int64), "ranks": np.array(rows)}
    np.savez(buffer, allow_pickle=False, is_frozen=np.array(is_frozen), **ranks, **named)
    return buffer.getvalue()


def unpack_state(state: bytes, copies: Copies, rank: int) -> tuple[float, bool]:
    """Give the copies of this rank's replicas what `pack_state` was given; return the seconds, and
    whether the backbone was frozen.

    UserError if they are of another model, or were written by something else.
    """
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            own, rows = arrays["own"].tolist(), arrays["ranks"][rank : rank + len(copies)]
            is_frozen = "is_frozen" in arrays and bool(arrays["is_frozen"])
            saved = [arrays[name] for name in sorted(arrays.files) if name.isdigit()]
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise not_ours(error) from None
    check_same_model(
        {f"variable {index}": array.shape for index, array in enumerate(saved)},
        {f"variable {index}": tuple(one.shape) for index, one in enumerate(copies[0])},
    )
    for variables, row in zip(copies, rows, strict=True):
        first = 1
        for index in own:
            shape, size = saved[index].shape, saved[index].size
            saved[index] = row[first : first + size].reshape(shape).astype(saved[index].dtype)
            first += size
        set_values(variables, saved)
    return float(rows[0][0]), is_frozen


def differing(replicas: list[list[Array]], gather: Gather) -> list[int]:
    """Return the positions of arrays that are not the same on all ranks and their replicas.

    They are random streams, and averages over each worker's own samples.
    """
    sums: list[list[float]] = []
    for arrays in replicas:
        sums += gather([float(zlib.crc32(array.tobytes())) for array in arrays])
    return [index for index, column in enumerate(zip(*sums, strict=True)) if len(set(column)) > 1]


def own_numbers(input_s: float, arrays: list[Array], own: list[int]) -> list[float]:
    """Return what a replica has of its own: seconds of waiting for data, and the arrays `own`.

    float64 holds their 32 bits.
    """
    return [input_s, *(float(number) for index in own for number in arrays[index].flat)]


def values_of(variables: list[tf.Variable]) -> list[Array]:
    """Return a replica's values."""
    return [variable.numpy() for variable in variables]


def set_values(variables: list[tf.Variable], values: list[Array]) -> None:
    """Give the variables what `values_of` returned."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.cast(value, variable.dtype))


def seed_layers(model: keras.Model, strategy: tf.distribute.Strategy, seed: int) -> None:
    """Give every dropout layer its own stream, a function of `seed`; of the replicas in this
    process the second that of `seed` + 1, and so on."""
    found = [getattr(layer, "seed_generator", None) for layer in all_layers(model)]
    states = [generator.state for generator in found if generator is not None]
    for replica, own in enumerate(copies_of(states, strategy)):
        for position, state in enumerate(own):
            state.assign(np.array([(seed + replica) % 2**32, position], dtype=np.uint32))


def _plain(array: Array) -> Array:
    """Return it in a type that numpy writes without pickle; float32 holds every bfloat16."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array
