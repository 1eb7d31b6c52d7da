"""TensorFlow's and Keras's side of a user's own training loop. Mirrors torch's."""

from typing import Any

import keras
import tensorflow as tf

from raybench.training import own
from raybench.training.settings import Setting
from raybench.training.tensorflow.world import World

SETTINGS: tuple[Setting, ...] = (
    (keras.config.floatx, keras.config.set_floatx),
    (keras.config.epsilon, keras.config.set_epsilon),
    (keras.config.image_data_format, keras.config.set_image_data_format),
    (lambda: keras.config.dtype_policy().name, keras.config.set_dtype_policy),
    (
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
    (tf.config.get_soft_device_placement, tf.config.set_soft_device_placement),
    (tf.config.functions_run_eagerly, tf.config.run_functions_eagerly),
    (tf.config.optimizer.get_jit, tf.config.optimizer.set_jit),
)
"""Switches of TensorFlow and Keras that one trial may leave for the next. Deterministic operations
(`enable_op_determinism`) cannot be switched off again."""


class Part(own.Part):
    """Own loops in TensorFlow; with several workers a model is built in the scope of
    `Run.strategy`."""

    def begin(self, world: World, seed: int) -> None:
        """Seed a run."""
        keras.utils.set_random_seed(seed)

    def synchronise(self, world: World) -> None:
        """Wait for the device."""
        if world.gpus:
            tf.test.experimental.sync_devices()

    def end(self) -> None:
        """Release models and traced functions."""
        keras.backend.clear_session()

    def pack(self, state: Any) -> tuple[str, bytes]:
        """Return a kind and the bytes of plain data and arrays; of a model its weights."""
        return super().pack(state.get_weights() if isinstance(state, keras.Model) else state)
