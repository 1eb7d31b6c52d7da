"""Evaluations take no more memory than training, and as many samples at once as that allows."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from framework_models import backend
from local import alone, new_trainer, small_spec

from raybench.data.dataset import Dataset, Split
from raybench.models.base import Workload
from raybench.training import memory
from raybench.training.base import BaseTrainer
from raybench.training.memory import fitting_batch
from raybench.training.steps import warm_up_step

MIB = 2**20


@pytest.mark.parametrize(
    ("few", "most", "taken", "room", "size"),
    [
        (16, 1024, 8, 0, 1024),  # so little that it is always there
        (16, 1024, 1024, 512, 16),  # no more than training is known to take
        (16, 1024, 1024, 3000, 32),
        (16, 1000, 1024, 65_000, 1000),
        (64, 128, 4000, 9000, 128),
        (1, 1024, 100, 1600, 16),
    ],
)
def test_the_samples_that_fit(few: int, most: int, taken: int, room: int, size: int) -> None:
    noise = memory.NOISE_BYTES
    assert fitting_batch(few, most, taken * MIB + noise, room * MIB) == size


ROWS = np.random.default_rng(0).normal(size=(3, 96, 4)).astype(np.float32)
DATA = Dataset("rows", 2, *(Split(one, (one[:, 0] > 0).astype(np.int64)) for one in ROWS))
WIDE = MIB  # numbers for each sample between small inputs and small outputs


class Wide(Workload):
    """Four numbers in, two out, and `WIDE` in between."""

    name, input_shape, num_classes = "wide", (4,), 2
    width = WIDE

    def build_torch(self) -> Any:
        import torch

        width = self.width

        class Model(torch.nn.Linear):
            def forward(self, inputs: Any) -> Any:
                wide = inputs.repeat(1, width // 4) + self.bias[0]
                return super().forward(wide.reshape(len(inputs), -1, 4).mean(1))

        return Model(4, 2)

    def build_keras(self) -> Any:
        import keras

        width = self.width

        class Model(keras.layers.Layer):
            def call(self, inputs: Any) -> Any:
                wide = keras.ops.tile(inputs, (1, width // 4)) + 1.0
                return keras.ops.mean(keras.ops.reshape(wide, (-1, width // 4, 4)), 1)

        return keras.Sequential([keras.Input((4,)), Model(), keras.layers.Dense(2)])


class Narrow(Wide):
    width = 4


def warmed_up(framework: str, workload: Workload) -> BaseTrainer:
    backend(framework)
    spec = small_spec(framework, batch_size_per_worker=2)
    trainer, dataset, _ = new_trainer(spec, workload=workload, dataset=DATA)
    trainer.warm_up(warm_up_step(spec, dataset, alone(framework)))
    return trainer


@pytest.mark.skipif(not memory.RESET.exists(), reason="no /proc")
def test_evaluations_take_fewer_samples_of_a_wide_model(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The totals stay equal. TensorFlow needs a separate process: it keeps freed memory, so that no
    peak shows after a large model."""
    if framework == "tensorflow" and "RAYBENCH_FRESH" not in os.environ:
        test = f"{__file__}::{test_evaluations_take_fewer_samples_of_a_wide_model.__name__}"
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
        child = subprocess.run(
            [*command, f"{test}[tensorflow]"],
            env=os.environ | {"RAYBENCH_FRESH": "1"},
            capture_output=True,
            text=True,
        )
        assert child.returncode == 0, child.stdout[-2000:]
        assert "1 passed" in child.stdout
        return
    monkeypatch.setattr(memory, "FREE_BYTES", 64 * MIB)
    monkeypatch.setattr(memory, "NOISE_BYTES", 0)
    trainer: Any = warmed_up(framework, Wide())
    assert 2 <= trainer._evaluation_batch <= 64
    found = trainer.evaluate("validation", slice(0, 96))
    trainer._evaluation_batch = 32
    whole = trainer.evaluate("validation", slice(0, 96))
    assert found.samples == whole.samples == 96
    assert (found.value, found.loss) == pytest.approx((whole.value, whole.loss))
    trainer.close()


def test_evaluations_of_a_small_model_take_many_samples(framework: str) -> None:
    trainer: Any = warmed_up(framework, Narrow())
    assert trainer._evaluation_batch == {"torch": 128, "tensorflow": 1024}[framework]
    trainer.close()
