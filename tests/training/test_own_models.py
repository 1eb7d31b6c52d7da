"""A user's own workload in both frameworks: builders, hooks, what is found in its layers."""

import numpy as np
import pytest
from framework_models import backend, logits, losses_and_values
from local import train

from raybench.data.dataset import Dataset, Split
from raybench.models.base import Workload
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec


class Own(Workload):
    """A user's workload with both builders and every hook."""

    name = "own"
    input_shape = (4,)
    num_classes = 3

    def build_torch(self):
        import torch

        return torch.nn.Linear(4, 3)

    def build_keras(self):
        import keras

        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    def torch_loss(self, outputs, labels):
        return outputs[:, 0] * 0 + 5

    def torch_correct(self, outputs, labels):
        return labels == 1

    keras_loss = torch_loss
    keras_correct = torch_correct


def test_a_users_own_model_and_hooks(framework):
    module = backend(framework)
    first, again, other = (module.build_model(Own(), seed) for seed in (1, 1, 2))
    assert module.num_parameters(first) == 15
    inputs = np.ones((2, 4), np.float32)
    assert (logits(framework, first, inputs) == logits(framework, again, inputs)).all()
    assert (logits(framework, first, inputs) != logits(framework, other, inputs)).any()
    outputs = logits(framework, first, inputs)
    loss, correct = losses_and_values(framework, Own(), outputs, np.array([0, 1]))
    np.testing.assert_array_equal(loss, [5, 5])
    np.testing.assert_array_equal(correct, np.array([0, 1], np.float32))


class Normalised(Workload):
    """An own model with batch normalisation: of each worker's samples, or of all workers'."""

    name, input_shape, num_classes = "normalised", (4,), 3

    def __init__(self, synchronized: bool) -> None:
        self.synchronized = synchronized

    def build_torch(self):
        import torch

        norm = torch.nn.SyncBatchNorm if self.synchronized else torch.nn.BatchNorm1d
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Sequential(norm(3)))

    def build_keras(self):
        import keras

        norm = keras.layers.BatchNormalization(synchronized=self.synchronized)
        inside = keras.Sequential([keras.Input((3,)), norm])
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), inside])


def test_statistics_of_a_workers_own_batch_are_found(framework):
    module = backend(framework)
    assert module.batch_statistics(module.build_model(Normalised(synchronized=False), 0))
    assert not module.batch_statistics(module.build_model(Normalised(synchronized=True), 0))
    assert not module.batch_statistics(module.build_model(Own(), 0))


def test_an_epoch_that_leaves_one_sample_over_trains_with_batch_normalisation(framework):
    """torch: "Expected more than 1 value per channel"."""
    rng = np.random.default_rng(0)
    split = Split(rng.random((33, 4), np.float32), rng.integers(0, 3, 33))
    data = Dataset("one over", 3, split, split, split)
    spec = RunSpec(framework=framework, batch_size_per_worker=16, epochs=2.0)
    curve, _ = train(spec, workload=Normalised(synchronized=False), dataset=data)
    assert len(curve) == 2


def test_a_workload_without_the_builder_is_refused(framework):
    class Empty(Workload):
        name, input_shape, num_classes = "empty", (4,), 3

    with pytest.raises(UserError, match=f"empty has no build_.* with framework {framework}"):
        backend(framework).build_model(Empty(), 0)
