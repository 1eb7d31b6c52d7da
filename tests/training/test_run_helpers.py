import itertools
from dataclasses import replace

import numpy as np
import pytest
from local import Place, zeros

from raybench.spec.run import RunSpec
from raybench.training.base import Step
from raybench.training.steps import (
    make_step,
    take_until,
    training_steps,
    warm_up_step,
    warm_up_steps,
)

SIZES = [1, 2, 7, 8, 9, 33, 48]


def worlds(num_workers):
    return [Place(rank, num_workers) for rank in range(num_workers)]


def steps_of(batch, *, workers=1, per_worker=8, accumulate=1):
    spec = RunSpec(num_workers=workers, batch_size_per_worker=per_worker, accumulate=accumulate)
    return [make_step(spec, np.asarray(batch), world, 40.0) for world in worlds(workers)]


def counted(steps):
    """Indices that count: those of weight above 0."""
    return np.concatenate([step.indices[step.weights > 0] for step in steps])


def epoch(spec, data, num_epochs=1):
    """All steps of whole epochs, by rank."""
    total = data.num_train_samples * num_epochs
    return [
        take_until(training_steps(spec, data, world), total)[0]
        for world in worlds(spec.num_workers)
    ]


def test_weights_of_samples_are_theirs_in_every_step():
    data, weights = zeros(50), np.arange(50, dtype=np.float32) / 24.5
    data = replace(data, train=replace(data.train, weights=weights))
    for steps in epoch(RunSpec(num_workers=2, batch_size_per_worker=8, accumulate=2), data):
        for number, step in enumerate(steps):
            size = 32 if number == 0 else 18
            real = step.indices > 0  # padding is of sample 0, whose own weight is 0 here
            np.testing.assert_allclose(
                step.weights[real], weights[step.indices][real] / size, rtol=1e-6
            )
            assert not step.weights[~real].any()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("workers", "per_worker", "accumulate"),
    [(1, 48, 1), (2, 24, 1), (3, 8, 2), (4, 12, 1), (4, 3, 4), (2, 8, 4)],
)
def test_a_batch_is_shared_out_whole_with_weights_that_sum_to_one(
    size, workers, per_worker, accumulate
):
    batch = np.random.default_rng(size).permutation(1000)[:size]
    steps = steps_of(batch, workers=workers, per_worker=per_worker, accumulate=accumulate)
    np.testing.assert_array_equal(counted(steps), batch)
    weights = np.concatenate([step.weights.ravel() for step in steps])
    assert weights.sum(dtype=np.float64) == pytest.approx(1.0, rel=1e-6)
    assert sum(step.num_samples for step in steps) == size
    np.testing.assert_allclose(weights[weights > 0], 1.0 / size, rtol=1e-6)
    for step in steps:
        assert step.indices.shape == step.weights.shape
        assert (step.indices.dtype, step.weights.dtype) == (np.int64, np.float32)
        passes, width = step.indices.shape
        assert 1 <= passes <= accumulate
        assert 1 <= width <= per_worker
        if step.weights.any():
            assert (step.weights == 0).sum() < passes, "padding is less than a sample a pass"
        else:
            assert step.indices.shape == (1, 1), "an empty share"
        assert step.learning_rate == 40.0


@pytest.mark.parametrize(("workers", "accumulate"), [(1, 1), (2, 1), (3, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("num_samples", [96, 97, 98, 101, 103])
def test_no_worker_has_one_sample_alone_in_a_pass(num_samples, workers, accumulate):
    """Batch normalisation fails on one."""
    spec = RunSpec(num_workers=workers, batch_size_per_worker=8, accumulate=accumulate)
    ranks = epoch(spec, zeros(num_samples))
    assert sorted(np.concatenate([counted(steps) for steps in ranks])) == [*range(num_samples)]
    for step in itertools.chain.from_iterable(ranks):
        passes, width = step.indices.shape
        assert passes <= accumulate
        assert 2 <= width <= 10
        assert np.count_nonzero(step.weights, axis=1).min() > 1


def test_the_rate_follows_the_samples_of_all_workers():
    spec = RunSpec(
        num_workers=2, batch_size_per_worker=5, schedule="cosine", epochs=1.0, learning_rate=1.0
    )
    rates = [step.learning_rate for step in epoch(spec, zeros(40))[1]]
    assert rates == pytest.approx([0.5 * (1 + np.cos(np.pi * n / 4)) for n in range(4)])


def test_take_until_takes_whole_steps_and_goes_on_where_it_stopped():
    steps = training_steps(RunSpec(batch_size_per_worker=16), zeros(40), Place())
    sizes = []
    for wanted in (1, 17, 16, 40):
        chunk, seen = take_until(steps, wanted)
        assert seen == sum(len(counted([step])) for step in chunk)
        assert seen >= wanted
        sizes.append([len(counted([step])) for step in chunk])
    # 16 + 16 + 8 an epoch; the goal may be passed by less than one batch.
    assert sizes == [[16], [16, 8], [16], [16, 8, 16]]


@pytest.mark.parametrize("num_samples", [5, 100])
def test_warm_up_has_the_shape_of_the_first_step(num_samples):
    spec = RunSpec(num_workers=2, batch_size_per_worker=8, accumulate=2)
    data = zeros(num_samples)
    for world in worlds(2):
        warm = warm_up_step(spec, data, world)
        first, _ = next(training_steps(spec, data, world))
        assert warm.indices.shape == first.indices.shape
        assert warm.learning_rate == 0.0
        assert warm.indices.max() < num_samples


@pytest.mark.parametrize("num_samples", [9, 32, 33, 100])
def test_warm_up_on_gpus_has_every_shape_of_an_epoch(num_samples):
    spec = RunSpec(num_workers=2, batch_size_per_worker=8, gpus_per_worker=1)
    data = zeros(num_samples)
    for world in worlds(2):
        steps = training_steps(spec, data, world)
        epoch, _ = take_until(steps, num_samples)
        warm = {step.indices.shape for step in warm_up_steps(spec, data, world)}
        assert warm == {step.indices.shape for step in epoch} | {
            warm_up_step(spec, data, world).indices.shape
        }
        cores = spec.model_copy(update={"gpus_per_worker": 0})
        assert len(warm_up_steps(cores, data, world)) == 1


def replicas_spec(replicas: int, per_worker: int = 8, accumulate: int = 1) -> RunSpec:
    return RunSpec(
        framework="tensorflow",
        strategy="single_process",
        num_workers=replicas,
        batch_size_per_worker=per_worker,
        accumulate=accumulate,
    )


def parts_of(step: Step, replicas: int) -> list[Step]:
    """Return the part of each replica in a step: an equal part of its columns."""
    columns = zip(
        np.split(step.indices, replicas, axis=1),
        np.split(step.weights, replicas, axis=1),
        np.split(step.shares, replicas, axis=1),
        strict=True,
    )
    return [
        Step(indices=i, weights=w, shares=s, learning_rate=step.learning_rate, num_samples=i.size)
        for i, w, s in columns
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("replicas", "per_worker", "accumulate"), [(2, 24, 1), (3, 8, 2), (4, 12, 1), (4, 3, 4)]
)
def test_each_replica_has_its_workers_samples(
    size: int, replicas: int, per_worker: int, accumulate: int
) -> None:
    batch = np.arange(100, 100 + size)
    spec = replicas_spec(replicas, per_worker, accumulate)
    step = make_step(spec, batch, Place(), 40.0)
    assert step.indices.shape == step.weights.shape
    assert step.weights.sum() == pytest.approx(1)
    assert step.indices.shape[1] <= replicas * per_worker
    workers = steps_of(batch, workers=replicas, per_worker=per_worker, accumulate=accumulate)
    for own, worker in zip(parts_of(step, replicas), workers, strict=True):
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
    step = make_step(replicas_spec(4), batch, Place(), 0.0)
    for number, rows in enumerate(step.indices):
        chunks = torch.from_numpy(rows).chunk(4)
        expected = [part.indices[number] for part in parts_of(step, 4)]
        assert [chunk.tolist() for chunk in chunks] == [part.tolist() for part in expected]
