"""A seed fixes all that a model of the user's own draws from: Python, numpy and the framework."""

import random
from typing import Any

import numpy as np
import pytest
from framework_models import backend
from local import new_trainer, small_spec

from raybench.data.dataset import Dataset, Split
from raybench.models.base import Workload
from raybench.training.base import find_part
from raybench.training.steps import take_until, training_steps

ROWS = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
DATA = Dataset("rows", 2, *[Split(ROWS, (ROWS[:, 0] > 0).astype(np.int64))] * 3)


class Drawn(Workload):
    """A model whose weights are drawn by numpy and Python; in torch, its forward pass draws too."""

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

        weights = self.weights()  # first: Keras's layers draw their seeds from Python's numbers
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.set_weights([weights, np.zeros(2)])
        return model


def kernel(framework: str, seed: int) -> np.ndarray:
    model: Any = backend(framework).build_model(Drawn(), seed)
    return model.weight.detach().numpy().T if framework == "torch" else model.get_weights()[0]


def test_equal_seeds_build_equal_models_in_both_frameworks() -> None:
    np.testing.assert_array_equal(kernel("torch", 7), kernel("tensorflow", 7))
    np.testing.assert_array_equal(kernel("torch", 7), kernel("torch", 7))
    assert not np.allclose(kernel("torch", 7), kernel("torch", 8))


def test_ranks_draw_numbers_of_their_own() -> None:
    torch = pytest.importorskip("torch")
    state = find_part("torch", "state")
    seen = []
    for rank in (0, 1, 0):
        state.seed_replicas([torch.device("cpu")], 7 * 1_000_003 + rank)
        seen.append((random.random(), np.random.normal(), float(torch.rand(()))))  # noqa: NPY002
    assert seen[0] == seen[2]
    assert not set(seen[0]) & set(seen[1])


@pytest.mark.parametrize("draws", [1, 2])
def test_a_continued_run_draws_what_the_whole_one_does(draws: int) -> None:
    """`random.gauss` keeps every second number for the next call."""
    pytest.importorskip("torch")
    spec = small_spec("torch", batch_size_per_worker=16, optimizer="sgd")
    steps: Any = None

    def trainer() -> Any:
        nonlocal steps
        found, _, world = new_trainer(spec, workload=Drawn(), dataset=DATA)
        steps = steps or take_until(training_steps(spec, DATA, world), 96)[0]
        found.warm_up(steps[0])
        return found

    whole, rest = trainer(), trainer()
    whole.restore(whole.state())  # of a trainer whose numbers another has drawn from
    whole.train(steps[:draws])
    state = whole.state()
    expected = whole.train(steps[draws:])
    rest.restore(state)
    rest.warm_up(steps[0])
    assert rest.train(steps[draws:]) == expected
    for one, other in zip(whole._model.parameters(), rest._model.parameters(), strict=True):
        assert one.equal(other)
