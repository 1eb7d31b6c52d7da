"""What a user's training loop needs from TensorFlow and Keras. Mirrors torch/own.py."""

from typing import Any

import keras
import tensorflow as tf

from raybench.training.adapter import LoopAdapter, Setting
from raybench.training.memory import Memory
from raybench.training.tensorflow.loop import GpuMemory
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
"""Global settings of TensorFlow and Keras that one run could leave changed for the next, as getters
and setters. Deterministic operations (`enable_op_determinism`) are not included, because they
cannot be switched off."""


class Adapter(LoopAdapter):
    """Functions of TensorFlow that a user's loop needs; see `LoopAdapter`.

    With several workers, the loop must build its model in the scope of `Run.strategy`.
    """

    _world: World

    def begin(self, seed: int) -> None:
        """Seed Python, numpy and TensorFlow; called in the loop's thread."""
        keras.utils.set_random_seed(seed)

    def synchronize(self) -> None:
        """Wait until the devices have finished their work."""
        if self._world.gpus:
            tf.test.experimental.sync_devices()

    def memory(self) -> Memory:
        """Return a `Memory` that measures this worker's peak memory from now on."""
        return GpuMemory(len(self._world.gpus)) if self._world.gpus else Memory()

    def end(self) -> None:
        """Release models and traced functions."""
        keras.backend.clear_session()

    def pack(self, state: Any) -> tuple[str, bytes]:
        """Convert a state that the user saves to bytes; see `LoopAdapter.pack`. It is plain data
        and arrays, or a model, of which the weights are saved."""
        return super().pack(state.get_weights() if isinstance(state, keras.Model) else state)
