"""Seeds fix all random numbers of a user's model: those of Python, numpy and the framework."""

import random
from typing import Any

import numpy as np
import pytest
from framework_models import model_module
from local_runs import dataset_of, first_steps, new_trainer, single_worker, small_spec

from raybench.models.base import Workload
from raybench.training.base import find_part

ROWS = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
DATA = dataset_of(ROWS, (ROWS[:, 0] > 0).astype(np.int64))


class Drawn(Workload):
    """Model with weights drawn by numpy and Python; in torch the forward pass draws noise too."""

    name, input_shape, num_classes = "drawn", (4,), 2

    def weights(self) -> np.ndarray:
        drawn = np.random.normal(size=(4, 2)) + random.random()  # noqa: NPY002
        return drawn.astype(np.float32)

    def build_torch(self) -> Any:
        import torch

        class Model(torch.nn.Linear):
            def forward(self, inputs: Any) -> Any:
                noise = random.gauss(0, 1) + np.random.normal()  # noqa: NPY002
                return super().forward(inputs + noise * self.training)

        model = Model(4, 2)
        model.weight.data = torch.tensor(self.weights().T)
        return model

    def build_keras(self) -> Any:
        import keras

        weights = self.weights()  # first, because layers of Keras draw seeds from Python's `random`
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.set_weights([weights, np.zeros(2)])
        return model


def kernel(framework: str, seed: int) -> np.ndarray:
    model = model_module(framework).build_model(Drawn(), seed)
    return model.weight.detach().numpy().T if framework == "torch" else model.get_weights()[0]


def test_equal_seeds_build_equal_models_in_both_frameworks():
    np.testing.assert_array_equal(kernel("torch", 7), kernel("tensorflow", 7))
    np.testing.assert_array_equal(kernel("torch", 7), kernel("torch", 7))
    assert not np.allclose(kernel("torch", 7), kernel("torch", 8))


def test_ranks_draw_different_numbers():
    torch = pytest.importorskip("torch")
    state = find_part("torch", "state")
    drawn = []
    for rank in (0, 1, 0):
        state.seed_replicas([torch.device("cpu")], 7 * 1_000_003 + rank)
        drawn.append((random.random(), np.random.normal(), float(torch.rand(()))))  # noqa: NPY002
    assert drawn[0] == drawn[2]
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.parametrize("draws", [1, 2])
def test_resumed_run_draws_the_numbers_of_an_uninterrupted_one(draws):
    """`random.gauss` stores every second number for the next call."""
    pytest.importorskip("torch")
    spec = small_spec("torch", batch_size_per_worker=16, optimizer="sgd")
    world = single_worker("torch")
    steps = first_steps(spec, DATA, world, 96)

    def trainer() -> Any:
        created, _, _ = new_trainer(spec, workload=Drawn(), dataset=DATA, world=world)
        created.warm_up(steps[0])
        return created

    whole, resumed = trainer(), trainer()
    whole.restore(whole.state())  # the second trainer has drawn from the same generators
    whole.train(steps[:draws])
    state = whole.state()
    expected = whole.train(steps[draws:])
    resumed.restore(state)
    resumed.warm_up(steps[0])
    assert resumed.train(steps[draws:]) == expected
    for parameter, resumed_parameter in zip(
        whole._model.parameters(), resumed._model.parameters(), strict=True
    ):
        assert parameter.equal(resumed_parameter)
