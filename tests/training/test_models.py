"""The two frameworks agree: parameter counts, logits, losses, saved weights."""

import numpy as np
import pytest
from framework_models import (
    backend,
    logits,
    losses_and_values,
    to_framework,
    to_numpy,
)

from raybench.models.base import DataShape, Workload
from raybench.models.find import find_workload


def samples(workload: Workload, num_samples: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    inputs = rng.integers(0, 256, (num_samples, *workload.input_shape), dtype=np.uint8)
    return inputs, rng.integers(0, workload.num_classes, num_samples)


def test_the_seed_fixes_the_weights(framework):
    workload = find_workload("deep_mlp")
    inputs, _ = samples(workload)
    module = backend(framework)
    first, again, other = (
        logits(framework, module.build_model(workload, seed), inputs) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_dropout_acts_in_training_alone_and_follows_the_seed(framework):
    workload = find_workload("cnn7", DataShape(input_shape=(32, 32, 3), num_outputs=10))
    module = backend(framework)
    prepared = module.prepare_inputs(to_framework(samples(workload)[0], framework))

    def in_training(seed: int) -> np.ndarray:
        model = module.build_model(workload, seed)
        if framework == "torch":
            return to_numpy(model.train()(prepared))
        return to_numpy(model(prepared, training=True))

    np.testing.assert_array_equal(in_training(1), in_training(1))
    model = module.build_model(workload, 1)
    assert (in_training(1) != logits(framework, model, samples(workload)[0])).any()


def test_inputs_are_scaled_and_turned(framework):
    images = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    prepared = to_numpy(backend(framework).prepare_inputs(to_framework(images, framework)))
    assert prepared.dtype == np.float32
    expected = images.transpose(0, 3, 1, 2) if framework == "torch" else images
    np.testing.assert_allclose(prepared, expected / 255, rtol=1e-6)


def test_float_inputs_are_used_as_they_are(framework):
    vectors = np.array([[-1.0, 300.0]], np.float32)
    prepared = to_numpy(backend(framework).prepare_inputs(to_framework(vectors, framework)))
    np.testing.assert_array_equal(prepared, vectors)


def test_losses_and_answers_are_per_sample(framework):
    outputs = np.array([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]], np.float32)
    loss, correct = losses_and_values(
        framework, find_workload("mnist_small"), outputs, np.array([0, 1, 0])
    )
    expected = [np.log1p(np.exp(-2.0)), np.log(2.0), np.log1p(np.exp(1.0))]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_array_equal(correct, np.array([1, 0, 0], np.float32))


@pytest.mark.parametrize("name", ["mnist_small", "mnist_large", "small_resnet"])
def test_saved_weights_come_back(framework, name):
    workload = find_workload(name)
    module = backend(framework)
    model, other = (module.build_model(workload, seed) for seed in (1, 2))
    inputs, _ = samples(workload)
    assert (logits(framework, model, inputs) != logits(framework, other, inputs)).any()
    module.load_weights(other, module.save_weights(model))
    np.testing.assert_array_equal(
        logits(framework, model, inputs), logits(framework, other, inputs)
    )
