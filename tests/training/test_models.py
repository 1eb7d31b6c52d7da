"""The two frameworks agree: parameter counts, logits, losses, saved weights."""

import numpy as np
import pytest
from framework_models import (
    MODULES,
    backend,
    logits,
    losses_and_values,
    to_framework,
    to_numpy,
)

from raybench.models.base import DataShape, Workload
from raybench.models.find import find_workload
from raybench.spec.metric import ACCURACY

SHIPPED = {
    "mnist_small": ("mnist_small", (28, 28, 1), 402_442),
    "mnist_large": ("mnist_large", (28, 28, 1), 2_636_554),
    "mnist_large_dense": ("mnist_large_dense", (28, 28, 1), 4_104_202),
    "cnn7 32px": ("cnn7", (32, 32, 3), 124_490),
    "cnn7 128px": ("cnn7", (128, 128, 3), 173_642),
    "cifar_cnn": ("cifar_cnn", (32, 32, 3), 1_250_858),
    "deep_mlp": ("deep_mlp", (28, 28, 1), 75_850),
    "small_resnet 16px": ("small_resnet", (16, 16, 3), 413_514),
}


@pytest.fixture(params=SHIPPED)
def shipped(request) -> tuple[Workload, int]:
    name, input_shape, expected = SHIPPED[request.param]
    return find_workload(name, DataShape(input_shape=input_shape, num_outputs=10)), expected


def samples(workload: Workload, num_samples: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    inputs = rng.integers(0, 256, (num_samples, *workload.input_shape), dtype=np.uint8)
    return inputs, rng.integers(0, workload.num_classes, num_samples)


def test_num_parameters_of_the_built_model(framework, shipped):
    workload, expected = shipped
    module = backend(framework)
    assert module.num_parameters(module.build_model(workload, 0)) == expected


def test_cnn7_at_its_own_size(framework):
    module = backend(framework)
    assert module.num_parameters(module.build_model(find_workload("cnn7"), 0)) == 910_922


def test_equal_weights_give_equal_logits(shipped):
    workload, _ = shipped
    inputs, _ = samples(workload)
    results = [
        logits(framework, backend(framework).build_model(workload, seed=7), inputs)
        for framework in MODULES
    ]
    assert results[0].shape == (8, 10)
    assert np.abs(results[0]).max() > 1e-3
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-5)


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


def torch_losses(workload: Workload, inputs: np.ndarray, labels: np.ndarray) -> list[float]:
    """Losses of ten SGD steps; dropout is off, because its masks differ by framework."""
    import torch

    module = backend("torch")
    model = module.build_model(workload, seed=3).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        outputs = model(module.prepare_inputs(torch.from_numpy(inputs)))
        loss = module.Losses(workload, ACCURACY).losses(outputs, torch.from_numpy(labels)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def keras_losses(workload: Workload, inputs: np.ndarray, labels: np.ndarray) -> list[float]:
    import tensorflow as tf

    module = backend("tensorflow")
    model = module.build_model(workload, seed=3)
    variables = [variable.value for variable in model.trainable_variables]
    losses = []
    for _ in range(10):
        with tf.GradientTape() as tape:
            outputs = model(module.prepare_inputs(tf.constant(inputs)), training=False)
            loss = tf.reduce_mean(
                backend("tensorflow")
                .Losses(workload, ACCURACY)
                .losses(outputs, tf.constant(labels))
            )
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.05 * gradient)
        losses.append(float(loss))
    return losses


def test_ten_sgd_steps_give_equal_losses(shipped):
    workload, _ = shipped
    for framework in MODULES:
        backend(framework)
    inputs, labels = samples(workload, 16)
    in_torch = torch_losses(workload, inputs, labels)
    assert in_torch[-1] < in_torch[0]
    # Float32 rounding, ten steps long; the losses start at 2.3.
    in_keras = keras_losses(workload, inputs, labels)
    # Rounding grows from step to step: 2e-5 was seen after ten of the largest model.
    np.testing.assert_allclose(in_torch[0], in_keras[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(in_torch, in_keras, rtol=5e-5)


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


def test_saved_weights_come_back(framework, shipped):
    workload, _ = shipped
    module = backend(framework)
    model, other = (module.build_model(workload, seed) for seed in (1, 2))
    inputs, _ = samples(workload)
    assert (logits(framework, model, inputs) != logits(framework, other, inputs)).any()
    module.load_weights(other, module.save_weights(model))
    np.testing.assert_array_equal(
        logits(framework, model, inputs), logits(framework, other, inputs)
    )
