"""What a training loop of the user's own needs of TensorFlow and Keras. Mirrors torch's."""

from typing import Any

import keras
import tensorflow as tf

from raybench.training import own
from raybench.training.tensorflow.world import World


class Part(own.Part):
    """That of TensorFlow; of several workers a model is built in the scope of `Run.strategy`."""

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
