"""Splits that are read on demand: runs equal those in memory, and waiting is on the clock."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from continued import all_of, facts, spec_of
from local import FOR_EVER, alone, new_trainer, train
from task_data import Kept, on_demand

from raybench.data.load import load_dataset
from raybench.spec.run import DatasetSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.run import run
from raybench.training.steps import take_until, training_steps

DATA = DatasetSpec(name="digits", limit=90)
TRAIN_LOSS = 4  # its column in `facts`


def assert_same_curve(curve: list[Evaluation], other: list[Evaluation]) -> None:
    """Compare curves bit by bit, except for mean losses, which TensorFlow sums in float32 over the
    steps of a call."""
    one, two = facts(curve), facts(other)
    np.testing.assert_allclose(one[:, TRAIN_LOSS], two[:, TRAIN_LOSS], rtol=1e-6)
    np.testing.assert_array_equal(*(np.delete(all_, TRAIN_LOSS, axis=1) for all_ in (one, two)))


def prefetching() -> list[str]:
    """Names of the threads that prepare batches."""
    return [one.name for one in threading.enumerate() if one.name.startswith("raybench-prefetch")]


def test_a_run_on_demand_is_the_run_in_memory(framework: str) -> None:
    dataset = load_dataset(DATA)
    passes = {"accumulate": 2, "batch_size_per_worker": 8}
    spec = spec_of(framework, "adam", prefetch=3, precision="bf16", **passes)
    curve, expected = train(spec, dataset=dataset)
    lazy = on_demand(dataset)
    other, trainer = train(spec, dataset=lazy)
    assert_same_curve(curve, other)
    np.testing.assert_equal(all_of(expected, framework), all_of(trainer, framework))
    assert trainer.evaluate("test", slice(3, 70)) == expected.evaluate("test", slice(3, 70))
    steps = training_steps(spec, dataset, alone(framework))
    wanted = [step.indices.ravel() for step in take_until(steps, 180)[0]]
    assert isinstance(lazy.train.inputs, Kept)
    assert np.concatenate(lazy.train.inputs.asked).tolist() == np.concatenate(wanted).tolist()
    assert all(name.startswith("raybench-prefetch") for name in lazy.train.inputs.threads)
    trainer.close()
    assert prefetching() == []


@pytest.mark.parametrize(
    ("framework", "prefetch", "num_waits"),
    [("torch", 0, 20), ("torch", 2, 1), ("tensorflow", 0, 20)],
)
def test_what_is_waited_for_is_on_the_clock(framework: str, prefetch: int, num_waits: int) -> None:
    """Prefetching may hide all of it, except for the first batch of an interval."""
    pytest.importorskip(framework)
    wait_s, samples = 0.015, 80
    changes = {"epochs": 1.0, "batch_size_per_worker": 4, "eval_every_samples": samples}
    spec = spec_of(framework, "sgd", prefetch=prefetch, **changes)
    dataset = load_dataset(DatasetSpec(name="digits", limit=samples))
    curve, trainer = train(spec, dataset=on_demand(dataset, wait_s))
    trainer.close()
    assert curve[-1].samples == samples
    assert wait_s * num_waits <= curve[-1].ledger["input"] < curve[-1].ledger["train"]


class Torn(Kept):
    """Data whose fifth batch cannot be read."""

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        if len(self.asked) == 4:
            raise OSError("picture 17 is torn")
        return super().__getitem__(rows)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_the_users_data_raise_ends_the_run_with_their_reason(prefetch: int) -> None:
    dataset = load_dataset(DATA)
    torn = replace(dataset, train=replace(dataset.train, inputs=Torn(dataset.train.array)))
    spec = spec_of("torch", "sgd", prefetch=prefetch, eval_every_samples=None)
    trainer, data, world = new_trainer(spec, dataset=torn)
    with pytest.raises(OSError, match="picture 17 is torn") as caught:
        list(run(spec, data, trainer, world, Ledger("setup")))
    assert caught.traceback[-1].name == "__getitem__", "the place in the user's file"
    trainer.close()
    assert prefetching() == []


def test_a_run_that_is_stopped_leaves_no_batch_under_way() -> None:
    dataset = on_demand(load_dataset(DATA))
    spec = spec_of("torch", "sgd", prefetch=4, objective=FOR_EVER, epochs=50.0)
    trainer, _, world = new_trainer(spec, dataset=dataset)
    points = run(spec, dataset, trainer, world, Ledger("setup"))
    next(points)
    points.close()
    assert isinstance(dataset.train.inputs, Kept)
    count = len(dataset.train.inputs.asked)
    time.sleep(0.05)
    assert count == len(dataset.train.inputs.asked) == 3, "48 samples, and nothing ahead of them"
    trainer.close()
    assert prefetching() == []
