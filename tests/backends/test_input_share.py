"""Data in memory keeps no training waiting, and both frameworks say so."""

import time
from typing import Any

import numpy as np
import pytest
from local import FRAMEWORKS, small_spec, train

from raybench.backends.base import Step
from raybench.backends.memory import Room
from raybench.data.dataset import Split

ROWS, WIDTH, STEPS = 64, 250_000, 6
"""64 MB, so that taking a batch of them lasts far longer than saying which ones."""


def take_batches(framework: str, split: Split, steps: list[Step]) -> float:
    """Take the batches of some steps; return the seconds that a part says were waited."""
    part: Any
    room = Room(2**30)
    if framework == "torch":
        import torch

        from raybench.backends.torch import parts as torch_parts

        part = torch_parts.part_of(split, torch.device("cpu"), 0, room)
        for batch in part.batches(steps):
            assert batch.inputs.shape == (ROWS, WIDTH)
    else:
        import tensorflow as tf

        from raybench.backends.tensorflow import parts as tf_parts

        part = tf_parts.part_of(split, 0, room)
        for inputs, _, _, indices, _, _ in part.batches(steps):
            for index in range(len(indices)):
                assert tf.gather(inputs, indices[index, 0]).shape == (ROWS, WIDTH)
    return float(part.waited_seconds())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_taking_a_batch_from_memory_is_no_waiting(framework: str) -> None:
    inputs = np.random.default_rng(0).random((ROWS, WIDTH), np.float32)
    split = Split(inputs, np.zeros(ROWS, np.int64))
    rows = np.random.default_rng(1).permutation(ROWS).reshape(1, ROWS)
    weights = np.full((1, ROWS), 1 / ROWS, np.float32)
    steps = [Step(indices=rows, weights=weights, learning_rate=0.1, num_samples=rows.size)] * STEPS
    take_batches(framework, split, steps[:1])
    started = time.perf_counter()
    waited = take_batches(framework, split, steps)
    assert 0 < waited < 0.5 * (time.perf_counter() - started)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_in_memory_waits_for_next_to_nothing(framework: str) -> None:
    curve, trainer = train(small_spec(framework, record_steps=True))
    trainer.close()
    for point in curve:
        assert point.input_s == point.ledger["input"]
    assert 0 < curve[-1].ledger["input"] < 0.5 * curve[-1].train_s
