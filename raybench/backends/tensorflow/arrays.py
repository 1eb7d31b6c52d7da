"""Arrays as tensors on the worker's device."""

import numpy as np
import tensorflow as tf

from raybench.backends.gpus import gpu_memory_bytes
from raybench.data.memory import available_bytes

ALIGNMENT = 64
"""Bytes: kernels on a CPU end the process where a tensor's memory is aligned to less."""


def to_tensor(array: np.ndarray) -> tf.Tensor:
    """Return an array on the device; a CPU takes one of a mapped file where it is."""
    is_aligned = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if not is_aligned or not array.flags.writeable or tf.config.list_logical_devices("GPU"):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


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
