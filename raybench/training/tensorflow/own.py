"""What a training loop of the user's own needs of TensorFlow and Keras. Mirrors torch's."""

from typing import Any

import keras
import tensorflow as tf

from raybench.training.own import pack_arrays
from raybench.training.own import unpack_arrays as unpack
from raybench.training.tensorflow.world import World

__all__ = ["begin", "end", "pack", "prepare", "synchronise", "unpack"]


def begin(world: World, seed: int) -> None:
    """Seed a run."""
    keras.utils.set_random_seed(seed)


def synchronise(world: World) -> None:
    """Wait for the device."""
    if world.gpus:
        tf.test.experimental.sync_devices()


def prepare(model: keras.Model, world: World) -> keras.Model:
    """Return it as it is: of several workers it is built in the scope of `Run.strategy`."""
    return model


def end() -> None:
    """Release models and traced functions."""
    keras.backend.clear_session()


def pack(state: Any) -> tuple[str, bytes]:
    """Return a kind and the bytes of plain data and arrays; of a model its weights, as a list."""
    state = state.get_weights() if isinstance(state, keras.Model) else state
    return "arrays", pack_arrays(state)
