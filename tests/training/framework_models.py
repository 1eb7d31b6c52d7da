"""Helpers for models of both frameworks: their modules, and conversion of arrays."""

from types import ModuleType

import numpy as np
import pytest

import raybench.training.tensorflow  # noqa: F401  sets what Keras reads at import
from raybench.spec.metric import ACCURACY
from raybench.training.base import find_part


def model_module(framework: str) -> ModuleType:
    pytest.importorskip(framework)
    return find_part(framework, "model")


def losses_and_values(framework: str, workload, outputs, labels, metric=ACCURACY, scale=1.0):
    """Return the loss of each sample and the values that the metric averages, as arrays."""
    module = model_module(framework)
    outputs, labels = to_framework(outputs, framework), to_framework(labels, framework)
    scale = to_framework(np.asarray(scale, np.float32), framework)
    losses, values = module.Losses(workload, metric, scale=scale).losses_and_values(outputs, labels)
    return to_numpy(losses), to_numpy(values)


def to_framework(array: np.ndarray, framework: str):
    if framework == "torch":
        import torch

        return torch.from_numpy(array)
    import tensorflow as tf

    return tf.constant(array)


def to_numpy(tensor) -> np.ndarray:
    return tensor.detach().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def assert_all_close(arrays, expected_arrays, **tolerance) -> None:
    """Compare arrays of different shapes pair by pair, as `np.testing.assert_allclose` does."""
    for array, expected in zip(arrays, expected_arrays, strict=True):
        np.testing.assert_allclose(array, expected, **tolerance)


def logits(framework: str, model, inputs: np.ndarray) -> np.ndarray:
    prepared = model_module(framework).prepare_inputs(to_framework(inputs, framework))
    if framework == "torch":
        return to_numpy(model.eval()(prepared))
    return to_numpy(model(prepared, training=False))
