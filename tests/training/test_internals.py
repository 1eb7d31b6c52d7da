"""Canary tests of private names of TensorFlow and Keras that `tensorflow/internals.py` uses."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from worker_processes import run_python

import raybench.training.tensorflow  # noqa: F401  sets what must be set before tensorflow

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from raybench.training.tensorflow import internals as keras_internals  # noqa: E402


class NestedLayers(keras.layers.Layer):
    """Layer of a user with other layers in a list, a dict and an attribute."""

    def __init__(self):
        super().__init__()
        self.listed = [keras.layers.Dense(2), keras.layers.Dropout(0.5)]
        self.named = {"norm": keras.layers.BatchNormalization()}
        self.last = keras.layers.Dropout(0.1)

    def call(self, inputs):
        for layer in (*self.listed, self.named["norm"], self.last):
            inputs = layer(inputs)
        return inputs


def test_every_layer_is_found_once():
    nested, start = keras.Sequential([keras.Input((4,)), NestedLayers()]), keras.Input((4,))
    model = keras.Model(start, keras.layers.Dropout(0.2)(nested(start)))
    layers = keras_internals.all_layers(model)
    assert len(layers) == len(set(map(id, layers)))
    counts = Counter(type(layer).__name__ for layer in layers)
    assert (counts["Dropout"], counts["Dense"], counts["BatchNormalization"]) == (3, 1, 1)


def registered_gradients():
    return set(keras_internals._gradient_registry())


def traced_sum():
    """Trace a sum over workers, as in an optimizer's update; only this registers a gradient."""

    @tf.function
    def step(value):
        def replica(part):
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, tf.identity(part)
            )

        return tf.distribute.get_strategy().run(replica, args=(value,))

    return step(tf.ones(3))


def test_gradient_functions_of_traced_sums_are_unregistered():
    assert "MatMul" in registered_gradients()
    before = registered_gradients()
    traced_sum()
    assert registered_gradients() > before, (
        "tracing registers nothing: unregister_new_gradient_functions is not needed any more"
    )
    before = registered_gradients()
    with keras_internals.unregister_new_gradient_functions():
        np.testing.assert_array_equal(traced_sum(), np.ones(3))
    assert registered_gradients() == before


@pytest.mark.all
def test_both_frameworks_load_in_one_process():
    """Triton and TensorFlow abort the process if they are loaded in the wrong order."""
    modules = "raybench.training.tensorflow.model, raybench.training.torch.model, torch._dynamo"
    code = f"import {modules}, keras; assert keras.backend.backend() == 'tensorflow'"
    run_python("-c", code, cwd=Path(__file__).parents[2], TF_USE_LEGACY_KERAS="1")
