"""Splits read on demand: runs equal those with data in memory, and waiting is on the clock."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from checkpointed_runs import curve_values, model_arrays, spec_of
from local_runs import UNLIMITED, new_trainer, single_worker, train
from task_data import LazyArray, on_demand

from raybench.data.load import load_dataset
from raybench.spec.run import DatasetSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.run import run
from raybench.training.steps import take_until, training_steps

DATA = DatasetSpec(name="digits", limit=90)
TRAIN_LOSS = 4
"""Column of the training loss in `curve_values`."""


def assert_same_curve(curve: list[Evaluation], other: list[Evaluation]) -> None:
    """Compare curves bit by bit, except mean losses: TensorFlow sums these in float32 over the
    steps of a call."""
    first, second = curve_values(curve), curve_values(other)
    np.testing.assert_allclose(first[:, TRAIN_LOSS], second[:, TRAIN_LOSS], rtol=1e-6)
    np.testing.assert_array_equal(
        np.delete(first, TRAIN_LOSS, axis=1), np.delete(second, TRAIN_LOSS, axis=1)
    )


def prefetch_threads() -> list[str]:
    """Return the names of the threads that prepare batches."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("raybench-prefetch")]


def test_run_on_demand_equals_the_run_in_memory(framework: str) -> None:
    dataset = load_dataset(DATA)
    passes = {"accumulate": 2, "batch_size_per_worker": 8}
    spec = spec_of(framework, "adam", prefetch=3, precision="bf16", **passes)
    curve, in_memory = train(spec, dataset=dataset)
    lazy = on_demand(dataset)
    lazy_curve, trainer = train(spec, dataset=lazy)
    assert_same_curve(curve, lazy_curve)
    np.testing.assert_equal(model_arrays(in_memory, framework), model_arrays(trainer, framework))
    assert trainer.evaluate("test", slice(3, 70)) == in_memory.evaluate("test", slice(3, 70))
    steps = training_steps(spec, dataset, single_worker(framework))
    rows = [step.indices.ravel() for step in take_until(steps, 180)[0]]
    assert isinstance(lazy.train.inputs, LazyArray)
    assert np.concatenate(lazy.train.inputs.requests).tolist() == np.concatenate(rows).tolist()
    assert all(name.startswith("raybench-prefetch") for name in lazy.train.inputs.threads)
    trainer.close()
    assert prefetch_threads() == []


@pytest.mark.parametrize(
    ("framework", "prefetch", "num_waits"),
    [("torch", 0, 20), ("torch", 2, 1), ("tensorflow", 0, 20)],
)
def test_waiting_for_data_is_on_the_clock(framework: str, prefetch: int, num_waits: int) -> None:
    """Prefetching may hide all waiting except for the first batch of an interval."""
    pytest.importorskip(framework)
    wait_s, samples = 0.015, 80
    changes = {"epochs": 1.0, "batch_size_per_worker": 4, "eval_every_samples": samples}
    spec = spec_of(framework, "sgd", prefetch=prefetch, **changes)
    dataset = load_dataset(DatasetSpec(name="digits", limit=samples))
    curve, trainer = train(spec, dataset=on_demand(dataset, wait_s))
    trainer.close()
    assert curve[-1].samples == samples
    assert wait_s * num_waits <= curve[-1].ledger["input"] < curve[-1].ledger["train"]


class Torn(LazyArray):
    """Array whose fifth batch cannot be read."""

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        if len(self.requests) == 4:
            raise OSError("picture 17 is torn")
        return super().__getitem__(rows)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_error_in_data_of_the_user_ends_the_run_with_its_message(prefetch: int) -> None:
    dataset = load_dataset(DATA)
    torn = replace(dataset, train=replace(dataset.train, inputs=Torn(dataset.train.array)))
    spec = spec_of("torch", "sgd", prefetch=prefetch, eval_every_samples=None)
    trainer, data, world = new_trainer(spec, dataset=torn)
    with pytest.raises(OSError, match="picture 17 is torn") as caught:
        list(run(spec, data, trainer, world, Ledger("setup")))
    assert caught.traceback[-1].name == "__getitem__", "the traceback ends in the user's code"
    trainer.close()
    assert prefetch_threads() == []


def test_stopped_run_prepares_no_more_batches() -> None:
    dataset = on_demand(load_dataset(DATA))
    spec = spec_of("torch", "sgd", prefetch=4, objective=UNLIMITED, epochs=50.0)
    trainer, _, world = new_trainer(spec, dataset=dataset)
    points = run(spec, dataset, trainer, world, Ledger("setup"))
    next(points)
    points.close()
    assert isinstance(dataset.train.inputs, LazyArray)
    count = len(dataset.train.inputs.requests)
    time.sleep(0.05)
    assert count == len(dataset.train.inputs.requests) == 3, "48 samples and no prefetched ones"
    trainer.close()
    assert prefetch_threads() == []
