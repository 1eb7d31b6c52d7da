"""Division of batches into steps: shares of workers and replicas, passes, weights, warm-up."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from local_runs import RankContext, zeros_dataset

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


def contexts(num_workers):
    return [RankContext(rank, num_workers) for rank in range(num_workers)]


def steps_of(batch, *, workers=1, per_worker=8, accumulate=1):
    spec = RunSpec(num_workers=workers, batch_size_per_worker=per_worker, accumulate=accumulate)
    return [make_step(spec, np.asarray(batch), world, 40.0) for world in contexts(workers)]


def real_indices(steps):
    """Return the indices of samples with a weight above 0; others are padding."""
    return np.concatenate([step.indices[step.weights > 0] for step in steps])


def epoch(spec, data, num_epochs=1):
    """Return all steps of whole epochs, by rank."""
    total = data.num_train_samples * num_epochs
    return [
        take_until(training_steps(spec, data, world), total)[0]
        for world in contexts(spec.num_workers)
    ]


def test_sample_weights_are_kept_in_every_step():
    data, weights = zeros_dataset(50), np.arange(50, dtype=np.float32) / 24.5
    data = replace(data, train=replace(data.train, weights=weights))
    for steps in epoch(RunSpec(num_workers=2, batch_size_per_worker=8, accumulate=2), data):
        for number, step in enumerate(steps):
            size = 32 if number == 0 else 18
            is_real = step.indices > 0  # padding has index 0, whose weight is 0 here
            np.testing.assert_allclose(
                step.weights[is_real], weights[step.indices][is_real] / size, rtol=1e-6
            )
            assert not step.weights[~is_real].any()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("workers", "per_worker", "accumulate"),
    [(1, 48, 1), (2, 24, 1), (3, 8, 2), (4, 12, 1), (4, 3, 4), (2, 8, 4)],
)
def test_batch_is_divided_completely_with_weights_that_sum_to_one(
    size, workers, per_worker, accumulate
):
    batch = np.random.default_rng(size).permutation(1000)[:size]
    steps = steps_of(batch, workers=workers, per_worker=per_worker, accumulate=accumulate)
    np.testing.assert_array_equal(real_indices(steps), batch)
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
            assert (step.weights == 0).sum() < passes, "less than one padded sample per pass"
        else:
            assert step.indices.shape == (1, 1), "an empty share is one padded sample"
        assert step.learning_rate == 40.0


@pytest.mark.parametrize(("workers", "accumulate"), [(1, 1), (2, 1), (3, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("num_samples", [96, 97, 98, 101, 103])
def test_no_pass_has_a_single_sample(num_samples, workers, accumulate):
    """Batch normalization fails on a single sample."""
    spec = RunSpec(num_workers=workers, batch_size_per_worker=8, accumulate=accumulate)
    ranks = epoch(spec, zeros_dataset(num_samples))
    assert sorted(np.concatenate([real_indices(steps) for steps in ranks])) == [*range(num_samples)]
    for step in itertools.chain.from_iterable(ranks):
        passes, width = step.indices.shape
        assert passes <= accumulate
        assert 2 <= width <= 10
        assert np.count_nonzero(step.weights, axis=1).min() > 1


def test_learning_rate_follows_the_samples_of_all_workers():
    spec = RunSpec(
        num_workers=2, batch_size_per_worker=5, schedule="cosine", epochs=1.0, learning_rate=1.0
    )
    rates = [step.learning_rate for step in epoch(spec, zeros_dataset(40))[1]]
    assert rates == pytest.approx([0.5 * (1 + np.cos(np.pi * n / 4)) for n in range(4)])


def test_take_until_takes_whole_steps_and_continues():
    steps = training_steps(RunSpec(batch_size_per_worker=16), zeros_dataset(40), RankContext())
    sizes = []
    for num_samples in (1, 17, 16, 40):
        chunk, num_taken = take_until(steps, num_samples)
        assert num_taken == sum(len(real_indices([step])) for step in chunk)
        assert num_taken >= num_samples
        sizes.append([len(real_indices([step])) for step in chunk])
    # Batches of 16 + 16 + 8 per epoch; the number of samples exceeds the goal by less than one.
    assert sizes == [[16], [16, 8], [16], [16, 8, 16]]


@pytest.mark.parametrize("num_samples", [5, 100])
def test_warm_up_step_has_the_shape_of_the_first_step(num_samples):
    spec = RunSpec(num_workers=2, batch_size_per_worker=8, accumulate=2)
    data = zeros_dataset(num_samples)
    for world in contexts(2):
        warm = warm_up_step(spec, data, world)
        first, _ = next(training_steps(spec, data, world))
        assert warm.indices.shape == first.indices.shape
        assert warm.learning_rate == 0.0
        assert warm.indices.max() < num_samples


@pytest.mark.parametrize("num_samples", [9, 32, 33, 100])
def test_warm_up_steps_on_gpus_have_all_shapes_of_an_epoch(num_samples):
    spec = RunSpec(num_workers=2, batch_size_per_worker=8, gpus_per_worker=1)
    data = zeros_dataset(num_samples)
    for world in contexts(2):
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
    """Divide a step into the parts of its replicas, which have equally many columns."""
    columns = zip(
        np.split(step.indices, replicas, axis=1),
        np.split(step.weights, replicas, axis=1),
        np.split(step.shares, replicas, axis=1),
        strict=True,
    )
    return [
        Step(
            indices=indices,
            weights=weights,
            shares=shares,
            learning_rate=step.learning_rate,
            num_samples=indices.size,
        )
        for indices, weights, shares in columns
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("replicas", "per_worker", "accumulate"), [(2, 24, 1), (3, 8, 2), (4, 12, 1), (4, 3, 4)]
)
def test_replica_has_the_samples_of_the_worker_it_replaces(
    size: int, replicas: int, per_worker: int, accumulate: int
) -> None:
    batch = np.arange(100, 100 + size)
    spec = replicas_spec(replicas, per_worker, accumulate)
    step = make_step(spec, batch, RankContext(), 40.0)
    assert step.indices.shape == step.weights.shape
    assert step.weights.sum() == pytest.approx(1)
    assert step.indices.shape[1] <= replicas * per_worker
    workers = steps_of(batch, workers=replicas, per_worker=per_worker, accumulate=accumulate)
    for part, worker in zip(parts_of(step, replicas), workers, strict=True):
        np.testing.assert_array_equal(real_indices([part]), real_indices([worker]))
        assert part.learning_rate == worker.learning_rate
        if size == replicas * per_worker * accumulate:  # full batches agree pass by pass
            np.testing.assert_array_equal(part.indices, worker.indices)
            np.testing.assert_array_equal(part.weights, worker.weights)


@pytest.mark.parametrize("size", SIZES)
def test_data_parallel_divides_a_pass_as_expected(size: int) -> None:
    """`torch.nn.DataParallel` divides a batch like `Tensor.chunk`."""
    torch = pytest.importorskip("torch")
    batch = np.arange(100, 100 + size)
    step = make_step(replicas_spec(4), batch, RankContext(), 0.0)
    for number, rows in enumerate(step.indices):
        chunks = torch.from_numpy(rows).chunk(4)
        expected = [part.indices[number] for part in parts_of(step, 4)]
        assert [chunk.tolist() for chunk in chunks] == [part.tolist() for part in expected]
