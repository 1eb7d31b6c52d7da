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


def pack_state(arrays: list[Array], own: list[int], rows: list[list[float]]) -> bytes:
    """Return the state of a run: all variables' values on rank 0; `rows` as `own_numbers` gives.

    `own` are the positions of the arrays that the rows are of.
    """
    named = {f"{index:06d}": _plain(array) for index, array in enumerate(arrays)}
    buffer = io.BytesIO()
    ranks = {"own": np.array(own, np.int64), "ranks": np.array(rows)}
    np.savez(buffer, allow_pickle=False, **ranks, **named)
    return buffer.getvalue()


def unpack_state(
    state: bytes, model: keras.Model, optimizer: keras.optimizers.Optimizer, rank: int
) -> float:
    """Give the variables of both, in this order, what `pack_state` was given; return the seconds.

    UserError if they are of another model, or were written by something else.
    """
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            own, row = arrays["own"].tolist(), arrays["ranks"][rank]
            saved = [arrays[name] for name in sorted(set(arrays.files) - {"own", "ranks"})]
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise not_ours(error) from None
    variables = model.variables + optimizer.variables
    check_same_model(
        {f"variable {index}": array.shape for index, array in enumerate(saved)},
        {f"variable {index}": tuple(one.shape) for index, one in enumerate(variables)},
    )
    first = 1
    for index in own:
        shape, size = saved[index].shape, saved[index].size
        saved[index] = row[first : first + size].reshape(shape).astype(saved[index].dtype)
        first += size
    set_values(variables, saved)
    return float(row[0])


def differing(arrays: list[Array], gather: Gather) -> list[int]:
    """Return the positions of arrays that are not the same on all ranks.

    They are random streams, and averages over each worker's own samples.
    """
    sums = gather([float(zlib.crc32(array.tobytes())) for array in arrays])
    return [index for index, column in enumerate(zip(*sums, strict=True)) if len(set(column)) > 1]


def own_numbers(input_s: float, arrays: list[Array], own: list[int]) -> list[float]:
    """Return what this rank has of its own: seconds of waiting for data, and the arrays `own`.

    float64 holds their 32 bits.
    """
    return [input_s, *(float(number) for index in own for number in arrays[index].flat)]


def values_of(variables: list[keras.Variable]) -> list[Array]:
    """Return this rank's values."""
    return [tf.convert_to_tensor(variable.value).numpy() for variable in variables]


def set_values(variables: list[keras.Variable], values: list[Array]) -> None:
    """Give the variables what `values_of` returned."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def seed_layers(model: keras.Model, seed: int) -> None:
    """Give every dropout layer its own stream, a function of `seed`."""
    position = 0
    for layer in all_layers(model):
        generator = getattr(layer, "seed_generator", None)
        if generator is not None:
            state = np.array([seed % 2**32, position], dtype=np.uint32)
            generator.state.assign(state)
            position += 1


def _plain(array: Array) -> Array:
    """Return it in a type that numpy writes without pickle; float32 holds every bfloat16."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array
