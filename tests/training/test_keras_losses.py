"""Penalties, `add_loss` and random layers of a Keras model are trained as in `model.fit`; compiled
models and custom training steps are refused."""

import functools
from functools import partial
from typing import Any

import numpy as np
import pytest
from framework_models import assert_all_close, model_module
from local_runs import first_steps, new_trainer, small_spec
from regularised import Penalised

from raybench.data.dataset import Dataset, Split, epoch_order
from raybench.models.base import Workload
from raybench.spec.errors import ErrorCode
from raybench.spec.metric import ACCURACY
from raybench.spec.run import RunSpec
from raybench.training.base import find_part
from raybench.training.model_check import check_model
from tests.refusals import refused

pytest.importorskip("tensorflow")
model_module("tensorflow")
SAMPLES, BATCH, RATE = 64, 16, 0.05
DRAWN = np.random.default_rng(0)
PIXELS = DRAWN.normal(size=(3 * SAMPLES, 8, 8, 1)).astype(np.float32)
CLASSES = DRAWN.integers(0, 10, 3 * SAMPLES)
SPLITS = zip(np.split(PIXELS, 3), np.split(CLASSES, 3), strict=True)
DATA = Dataset("drawn", 10, *(Split(*both) for both in SPLITS))


def spec_of(**changes: Any) -> RunSpec:
    settings = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": RATE}
    return small_spec("tensorflow", **(settings | {"batch_size_per_worker": BATCH} | changes))


def trained(workload: Workload, **changes: Any) -> tuple[list[np.ndarray], float]:
    """Return weights and mean training loss after an epoch."""
    spec = spec_of(**changes)
    trainer, _, world = new_trainer(spec, workload=workload, dataset=DATA)
    steps = first_steps(spec, DATA, world, SAMPLES)
    loss = trainer.train(steps) / len(steps)
    weights = [variable.numpy() for variable in trainer._model.trainable_variables]
    trainer.close()
    return weights, loss


@functools.cache
def fitted() -> tuple[list[np.ndarray], float]:
    """Return weights and loss after `model.fit` on the same samples in the same order."""
    import keras

    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_dtype_policy("float32")  # a run may have changed it
    model = Penalised().build_keras()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, momentum=0.9), loss)
    order = epoch_order(SAMPLES, seed=0, epoch=0)
    x, y = DATA.train.array[order], DATA.train.labels[order]
    history = model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0)
    weights = [variable.numpy() for variable in model.trainable_variables]
    return weights, history.history["loss"][0]


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({}, 1e-5),
        ({"precision": "bf16"}, 2e-2),
        ({"compile": "xla", "accumulate": 2, "batch_size_per_worker": BATCH // 2}, 1e-5),
    ],
)
def test_penalties_are_trained_as_in_fit(changes, tolerance):
    weights, loss = trained(Penalised(), **changes)
    expected, expected_loss = fitted()
    assert loss == pytest.approx(expected_loss, rel=tolerance)
    assert_all_close(weights, expected, atol=tolerance)


def workload_with_methods(compiled: bool = False, **methods: Any) -> Workload:
    """Return a workload whose model class has these methods, or whose model is compiled."""

    class Own(Workload):
        name, input_shape, num_classes = "own", (8, 8, 1), 10

        def build_keras(self) -> Any:
            import keras

            inputs = keras.Input((8, 8, 1))
            outputs = keras.layers.Dense(10)(keras.layers.Flatten()(inputs))
            model = type("Own", (keras.Model,), methods)(inputs, outputs)
            if compiled:
                model.compile("sgd", "sparse_categorical_crossentropy")
            return model

    return Own()


def custom_loss(outputs: Any, labels: Any) -> Any:
    return outputs[:, 0] ** 2


@pytest.mark.parametrize("name", ["compiled", "train_step", "compute_loss", "fit"])
def test_model_with_its_own_training_step_is_refused(name):
    workload = workload_with_methods(**{name: lambda self, *args, **kwargs: {"loss": 0.0}})
    with refused(ErrorCode.INVALID_MODEL, name, "keras_loss", "raybench.integrations.Keras"):
        check_model("tensorflow", workload, ACCURACY, PIXELS[:8], CLASSES[:8])
    workload.keras_loss = custom_loss
    assert check_model("tensorflow", workload, ACCURACY, PIXELS[:8], CLASSES[:8]) == []


def flip() -> Any:
    import keras

    return keras.layers.RandomFlip()


def noise(has_generator):
    """Return a layer that draws from a generator in a dict, or from the global state of Keras."""
    import keras

    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.stored = {"a": [keras.random.SeedGenerator(7)]} if has_generator else {"a": [None]}

        def call(self, inputs, training=False):
            drawn = keras.random.normal(keras.ops.shape(inputs), seed=self.stored["a"][0])
            return inputs + drawn if training else inputs

    return Noise()


@pytest.mark.parametrize("make", [flip, partial(noise, True), partial(noise, False)])
def test_random_numbers_differ_by_worker_and_are_restored(make):
    """A worker draws the same numbers again after its state was restored."""
    import keras
    import tensorflow as tf

    state = find_part("tensorflow", "state")

    def outputs(rank: int) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8, 8, 1)), keras.Sequential([make()])])
        streams = state.seed_layers(model, tf.distribute.get_strategy(), rank)
        saved = [stream.numpy() for stream in streams]
        first = np.asarray(model(PIXELS[:16], training=True))
        for stream, value in zip(streams, saved, strict=True):
            stream.assign(value)
        return [first, np.asarray(model(PIXELS[:16], training=True))]

    (first, restored), (other_worker, _) = outputs(0), outputs(1)
    assert not np.allclose(first, other_worker)
    np.testing.assert_array_equal(first, restored)
