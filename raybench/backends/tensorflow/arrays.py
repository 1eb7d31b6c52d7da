"""Arrays as tensors on the worker's device."""

import numpy as np
import tensorflow as tf

ALIGNMENT = 64
"""Bytes: kernels on a CPU end the process where a tensor's memory is aligned to less."""


def to_tensor(array: np.ndarray) -> tf.Tensor:
    """Return an array on the device; a CPU takes one of a mapped file where it is."""
    is_aligned = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if not is_aligned or tf.config.list_logical_devices("GPU"):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
