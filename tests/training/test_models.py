"""Models of both frameworks: dropout, inputs, hooks of the user, batch statistics."""

import numpy as np
import test_model_check
from framework_models import logits, losses_and_values, model_module, to_framework, to_numpy
from regularised import Regularised

from raybench.models.base import DataShape, Workload
from raybench.models.find import find_workload
from raybench.spec.metric import Metric


class Own(test_model_check.Own):
    """Workload of a user with both builders and all hooks."""

    num_classes = units = 3

    torch_loss = keras_loss = lambda self, outputs, labels: outputs[:, 0] * 0 + 5
    torch_metric = keras_metric = lambda self, outputs, labels: labels == 1
    metric = Metric(name="second", direction="max")


def samples(workload: Workload, num_samples: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    inputs = rng.integers(0, 256, (num_samples, *workload.input_shape), dtype=np.uint8)
    return inputs, rng.integers(0, workload.num_classes, num_samples)


def test_dropout_is_active_in_training_only_and_follows_the_seed(framework):
    workload = find_workload("cnn7", DataShape(input_shape=(32, 32, 3), num_outputs=10))
    module = model_module(framework)
    prepared = module.prepare_inputs(to_framework(samples(workload)[0], framework))

    def in_training(seed: int) -> np.ndarray:
        model = module.build_model(workload, seed)
        if framework == "torch":
            return to_numpy(model.train()(prepared))
        return to_numpy(model(prepared, training=True))

    np.testing.assert_array_equal(in_training(1), in_training(1))
    model = module.build_model(workload, 1)
    assert (in_training(1) != logits(framework, model, samples(workload)[0])).any()


def test_inputs_of_pixels_are_scaled_and_numbers_are_unchanged(framework):
    images = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    prepare_inputs = model_module(framework).prepare_inputs
    prepared = to_numpy(prepare_inputs(to_framework(images, framework)))
    assert prepared.dtype == np.float32
    expected = images.transpose(0, 3, 1, 2) if framework == "torch" else images
    np.testing.assert_allclose(prepared, expected / 255, rtol=1e-6)
    vectors = np.array([[-1.0, 300.0]], np.float32)
    prepared = to_numpy(prepare_inputs(to_framework(vectors, framework)))
    np.testing.assert_array_equal(prepared, vectors)


def test_user_hooks_are_used_and_parameters_are_counted(framework):
    module = model_module(framework)
    assert module.num_parameters(module.build_model(Own(), 1)) == 15
    outputs = np.zeros((2, 3), np.float32)
    labels = np.array([0, 1])
    loss, correct = losses_and_values(framework, Own(), outputs, labels, Own.metric)
    np.testing.assert_array_equal(loss, [5, 5])
    np.testing.assert_array_equal(correct, np.array([0, 1], np.float32))


def test_batch_statistics_are_detected(framework):
    module = model_module(framework)
    model = module.build_model(Regularised(), 0)
    assert module.batch_statistics(model)
    assert not module.batch_statistics(module.synchronize(model) or model)
    assert not module.batch_statistics(module.build_model(Own(), 0))
