"""Arrays as tensors on the worker's device."""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from raybench.backends.gpus import gpu_memory_bytes
from raybench.data.memory import available_bytes

ALIGNMENT = 64
"""Bytes: kernels on a CPU end the process where a tensor's memory is aligned to less."""


WORDS = {4: tf.float32, 2: tf.float16}
"""By their bytes, what uint8 is gathered as: `GatherV2` has kernels for these on GPUs."""


def to_tensor(array: np.ndarray) -> tf.Tensor:
    """Return an array on the device; a CPU takes one of a mapped file where it is."""
    is_aligned = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if not is_aligned or not array.flags.writeable or has_gpus():
        return copied(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def copied(array: np.ndarray) -> tf.Tensor:
    """Return a copy of an array on the device."""
    return tf.constant(array, type_here(array.dtype))


def type_here(dtype: np.dtype) -> tf.DType:
    """Return the type that an array has as a tensor: int32 stays in the host's memory whatever
    device it is for, so a GPU is given int64."""
    kind = tf.as_dtype(dtype)
    return tf.int64 if kind == tf.int32 and has_gpus() else kind


def gathered(tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Traced: return rows of a tensor, by a kernel of the device that it is on."""
    shape = tensor.shape[1:]
    size = word_bytes(shape)
    if tensor.dtype != tf.uint8 or size is None:
        return tf.gather(tensor, rows)
    words = tf.bitcast(tf.reshape(tensor, [-1, math.prod(shape) // size, size]), WORDS[size])
    return tf.reshape(tf.bitcast(tf.gather(words, rows), tf.uint8), [-1, *shape])


def word_bytes(shape: Sequence[int]) -> int | None:
    """Return the bytes of the words that a sample of bytes is made of; None of an odd number."""
    return next((size for size in WORDS if math.prod(shape) % size == 0), None)


def has_gpus() -> bool:
    """Whether tensors of this process lie on a GPU."""
    return bool(tf.config.get_visible_devices("GPU"))


def free_bytes(share: float = 1) -> int:
    """Return the bytes that are free where tensors lie: the machine's, or of this worker's `share`
    of its first GPU; none where that tells nothing: data are then read batch by batch.

    What TensorFlow holds of a GPU without using it is free: it gives nothing back.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return available_bytes()
    name = gpus[0].name.split("/device:")[-1]  # in a cluster the whole one begins with its task
    used = int(tf.config.experimental.get_memory_info(name)["current"])
    return max(0, int(gpu_memory_bytes() * min(share, 1)) - used)
