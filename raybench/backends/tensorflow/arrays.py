"""Arrays as tensors on the worker's device."""

import sys

import numpy as np
import tensorflow as tf

from raybench.backends.gpu_load import gpu_memory_bytes
from raybench.data.memory import available_bytes

ALIGNMENT = 64
"""Bytes: kernels on a CPU end the process where a tensor's memory is aligned to less."""


def to_tensor(array: np.ndarray) -> tf.Tensor:
    """Return an array on the device; a CPU takes one of a mapped file where it is."""
    is_aligned = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if not is_aligned or not array.flags.writeable or tf.config.list_logical_devices("GPU"):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def free_bytes() -> int:
    """Return the bytes that are free where tensors lie: the machine's, or the first GPU's."""
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return available_bytes()
    total = gpu_memory_bytes()
    if total is None:  # nobody can say: as much as it needs, and what fails says so
        return sys.maxsize
    used = tf.config.experimental.get_memory_info(gpus[0].name.replace("/device:", ""))
    return total - int(used["current"])
