"""The steps of replicas in one process: each has the samples of the worker in its place."""

import numpy as np
import pytest

from raybench.spec.run import RunSpec
from raybench.training.base import Step
from raybench.training.steps import make_step, warm_up_step
from tests.training.test_run_helpers import FakeWorld, counted, dataset, steps_of

SIZES = [1, 2, 3, 7, 8, 9, 31, 32, 33, 47, 48]


def spec_of(replicas: int, per_worker: int = 8, accumulate: int = 1) -> RunSpec:
    return RunSpec(
        framework="tensorflow",
        strategy="single_process",
        num_workers=replicas,
        batch_size_per_worker=per_worker,
        accumulate=accumulate,
    )


def parts(step: Step, replicas: int) -> list[Step]:
    """What each replica takes of a step: an equal part of its columns."""
    columns = zip(
        np.split(step.indices, replicas, axis=1),
        np.split(step.weights, replicas, axis=1),
        strict=True,
    )
    return [
        Step(indices=i, weights=w, learning_rate=step.learning_rate, num_samples=i.size)
        for i, w in columns
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("replicas", "per_worker", "accumulate"), [(2, 24, 1), (3, 8, 2), (4, 12, 1), (4, 3, 4)]
)
def test_each_replica_has_its_workers_samples(
    size: int, replicas: int, per_worker: int, accumulate: int
) -> None:
    batch = np.arange(100, 100 + size)
    spec = spec_of(replicas, per_worker, accumulate)
    step = make_step(spec, batch, FakeWorld(0, 1), lambda samples: samples, 40)
    assert step.indices.shape == step.weights.shape
    assert step.weights.sum() == pytest.approx(1)
    assert step.indices.shape[1] <= replicas * per_worker
    workers = steps_of(batch, workers=replicas, per_worker=per_worker, accumulate=accumulate)
    for own, worker in zip(parts(step, replicas), workers, strict=True):
        np.testing.assert_array_equal(counted([own]), counted([worker]))
        assert own.learning_rate == worker.learning_rate
        if size == replicas * per_worker * accumulate:  # full: pass by pass
            np.testing.assert_array_equal(own.indices, worker.indices)
            np.testing.assert_array_equal(own.weights, worker.weights)


@pytest.mark.parametrize("size", SIZES)
def test_data_parallel_cuts_a_pass_where_replicas_meet(size: int) -> None:
    """It scatters a batch as `chunk` does."""
    torch = pytest.importorskip("torch")
    batch = np.arange(100, 100 + size)
    step = make_step(spec_of(4), batch, FakeWorld(0, 1), lambda _: 0.0, 0)
    for number, rows in enumerate(step.indices):
        chunks = torch.from_numpy(rows).chunk(4)
        expected = [part.indices[number] for part in parts(step, 4)]
        assert [chunk.tolist() for chunk in chunks] == [part.tolist() for part in expected]


def test_the_warm_up_has_the_shape_of_a_full_step() -> None:
    spec = spec_of(2, per_worker=8, accumulate=2)
    assert warm_up_step(spec, dataset(), FakeWorld(0, 1)).indices.shape == (2, 16)
