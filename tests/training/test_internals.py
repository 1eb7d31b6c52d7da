"""The private things of torch, TensorFlow and Keras are still what internals.py takes them for,
and what is done without them gives the same numbers."""

from pathlib import Path

import numpy as np
import pytest
from group import ran

import raybench.training.tensorflow  # noqa: F401  sets what must be set before tensorflow

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from raybench.training.tensorflow import internals as keras_internals  # noqa: E402


class Inside(keras.layers.Layer):
    """A user's layer that holds others in a list, a dict and an attribute."""

    def __init__(self):
        super().__init__()
        self.many = [keras.layers.Dense(2), keras.layers.Dropout(0.5)]
        self.named = {"norm": keras.layers.BatchNormalization()}
        self.last = keras.layers.Dropout(0.1)

    def call(self, inputs):
        for layer in (*self.many, self.named["norm"], self.last):
            inputs = layer(inputs)
        return inputs


def test_every_layer_is_found_once():
    nested, start = keras.Sequential([keras.Input((4,)), Inside()]), keras.Input((4,))
    model = keras.Model(start, keras.layers.Dropout(0.2)(nested(start)))
    found = keras_internals.all_layers(model)
    assert len(found) == len(set(map(id, found)))
    kinds = [type(one).__name__ for one in found]
    assert [kinds.count(one) for one in ("Dropout", "Dense", "BatchNormalization")] == [3, 1, 1]


def registered():
    return set(keras_internals._gradient_registry())


def traced_sum():
    """Trace a sum over workers, as an optimizer's update does; nothing else registers one."""

    @tf.function
    def step(value):
        def replica(part):
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.identity(part)
            )

        return tf.distribute.get_strategy().run(replica, args=(value,))

    return step(tf.ones(3))


def test_tensorflow_registers_gradients_where_they_are_forgotten():
    assert "MatMul" in registered()
    before = registered()
    traced_sum()
    assert registered() > before, (
        "nothing is left behind any more: unregister_new_gradient_functions can go"
    )
    before = registered()
    with keras_internals.unregister_new_gradient_functions():
        np.testing.assert_array_equal(traced_sum(), np.ones(3))
    assert registered() == before


@pytest.mark.all
def test_both_frameworks_share_a_process():
    """Triton and TensorFlow abort the process when they are loaded in the wrong order."""
    modules = "raybench.training.tensorflow.model, raybench.training.torch.model, torch._dynamo"
    code = f"import {modules}, keras; assert keras.backend.backend() == 'tensorflow'"
    ran("-c", code, cwd=Path(__file__).parents[2], TF_USE_LEGACY_KERAS="1")
