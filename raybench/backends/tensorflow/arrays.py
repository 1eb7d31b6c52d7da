"""A dataset's arrays as tensors on the worker's device."""

import numpy as np
import tensorflow as tf

from raybench.data.dataset import Split

ALIGNMENT = 64
"""Bytes: kernels on a CPU end the process where a tensor's memory is aligned to less."""


def on_device(split: Split) -> tuple[tf.Tensor, tf.Tensor]:
    """Return inputs and labels on the device."""
    return to_tensor(split.inputs), to_tensor(split.labels)


def to_tensor(array: np.ndarray) -> tf.Tensor:
    """Return an array on the device; a CPU takes one of a mapped file where it is."""
    is_aligned = array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0
    if not is_aligned or tf.config.list_logical_devices("GPU"):
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def any_rows(tensor: tf.Tensor) -> tf.TensorSpec:
    """Return the signature of as many rows as there may be."""
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def noise_like(part: tuple[tf.Tensor, tf.Tensor], num_rows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Random inputs with the first labels: throw-away data of the same shape and type."""
    inputs, labels = part[0][:num_rows], part[1][:num_rows]
    if inputs.dtype == tf.uint8:
        noise = tf.random.uniform(tf.shape(inputs), 0, 256, tf.int32)
        return tf.cast(noise, tf.uint8), labels
    return tf.random.normal(tf.shape(inputs), dtype=inputs.dtype), labels
