"""Done before any test module is imported."""

import contextlib

import pytest

# It settles the order in which LLVM's two users (Triton, TensorFlow) load; imports neither
# framework itself.
import raybench.training.tensorflow  # noqa: F401


@pytest.fixture(scope="session")
def tensorflow_on_one_thread() -> None:
    """TensorFlow takes its number of threads once a process, before its first use."""
    with contextlib.suppress(ImportError):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
