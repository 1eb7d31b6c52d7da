"""Data that TensorFlow takes where they are, and those it must copy."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize("offset", [0, 1, 4, 16, 64])
def test_arrays_of_any_alignment_are_trained_on(offset: int) -> None:
    """A tensor over memory aligned to less than 64 bytes ends the process in a kernel."""
    from raybench.backends.tensorflow.arrays import to_tensor
    from raybench.backends.tensorflow.loop import join

    join(rank=0, num_workers=1, device="cpu", num_threads=1)  # before TensorFlow's first use
    memory = np.zeros(4096 + 128 + offset, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    array = memory[start : start + 4096].reshape(64, 64)
    array[:] = np.arange(64)
    tensor = to_tensor(array)

    @tf.function
    def total(values: tf.Tensor) -> tf.Tensor:
        batch = tf.cast(tf.gather(values, [1, 3, 5]), tf.float32)
        return tf.reduce_sum(tf.linalg.matmul(batch, batch, transpose_b=True))

    assert float(total(tensor)) == 9 * float((np.arange(64.0) ** 2).sum())
    assert np.array_equal(tensor.numpy(), array)
