"""The samples of a run: their division into steps (shares of workers and replicas, passes, weights,
warm-up) and batches that are read on demand and prefetched (number, threads, order, waiting)."""

import gc
import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from checkpointed_runs import curve_values, model_arrays, spec_of
from local_runs import (
    UNLIMITED,
    RankContext,
    augmented_batches,
    dataset_of,
    first_steps,
    new_trainer,
    single_worker,
    small_spec,
    train,
    zeros_dataset,
)
from task_data import LazyArray, on_demand

from raybench.data.dataset import Split
from raybench.data.load import load_dataset
from raybench.spec.run import DatasetSpec, RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training.base import Step
from raybench.training.run import run
from raybench.training.samples import (
    Prefetch,
    Reader,
    make_step,
    take_until,
    training_steps,
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


@pytest.mark.parametrize(
    ("num_samples", "accumulate"), [(5, 2), (9, 1), (32, 1), (33, 1), (100, 1), (100, 2)]
)
def test_warm_up_has_the_shape_of_the_first_step_and_on_gpus_of_all(num_samples, accumulate):
    spec = RunSpec(num_workers=2, batch_size_per_worker=8, accumulate=accumulate)
    on_gpus, data = spec.model_copy(update={"gpus_per_worker": 1}), zeros_dataset(num_samples)
    for world, steps in zip(contexts(2), epoch(spec, data), strict=True):
        (warm,) = warm_up_steps(spec, data, world)
        assert warm.indices.shape == steps[0].indices.shape
        assert warm.learning_rate == 0.0
        assert warm.indices.max() < num_samples
        shapes = {step.indices.shape for step in warm_up_steps(on_gpus, data, world)}
        assert shapes == {step.indices.shape for step in steps}


def replicas_spec(replicas: int, per_worker: int = 8, accumulate: int = 1) -> RunSpec:
    return RunSpec(
        framework="tensorflow",
        strategy="single_process",
        num_workers=replicas,
        batch_size_per_worker=per_worker,
        accumulate=accumulate,
    )


def parts_of(step: Step, replicas: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the indices and the weights of each replica, which have equally many columns."""
    columns = [np.split(array, replicas, axis=1) for array in (step.indices, step.weights)]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("replicas", "per_worker", "accumulate"), [(2, 24, 1), (3, 8, 2), (4, 12, 1), (4, 3, 4)]
)
def test_replica_has_the_samples_of_the_worker_it_replaces(size, replicas, per_worker, accumulate):
    batch = np.arange(100, 100 + size)
    spec = replicas_spec(replicas, per_worker, accumulate)
    step = make_step(spec, batch, RankContext(), 40.0)
    assert step.weights.sum() == pytest.approx(1)
    assert step.indices.shape[1] <= replicas * per_worker
    workers = steps_of(batch, workers=replicas, per_worker=per_worker, accumulate=accumulate)
    for (indices, weights), worker in zip(parts_of(step, replicas), workers, strict=True):
        np.testing.assert_array_equal(indices[weights > 0], real_indices([worker]))
        if size == replicas * per_worker * accumulate:  # full batches agree pass by pass
            np.testing.assert_array_equal(indices, worker.indices)
            np.testing.assert_array_equal(weights, worker.weights)


@pytest.mark.parametrize("size", SIZES)
def test_data_parallel_divides_a_pass_as_expected(size):
    """`torch.nn.DataParallel` divides a batch like `Tensor.chunk`."""
    torch = pytest.importorskip("torch")
    batch = np.arange(100, 100 + size)
    step = make_step(replicas_spec(4), batch, RankContext(), 0.0)
    for number, rows in enumerate(step.indices):
        chunks = torch.from_numpy(rows).chunk(4)
        expected = [indices[number].tolist() for indices, _ in parts_of(step, 4)]
        assert [chunk.tolist() for chunk in chunks] == expected


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_depth_is_the_number_of_batches_made_ahead(depth):
    made = []
    prefetch = Prefetch(depth)
    for index, _ in enumerate(prefetch.each(made.append, range(12))):
        expected = min(index + 1 + depth, 12)
        deadline = time.monotonic() + 120
        while len(made) < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)
        assert len(made) == expected
    prefetch.close()


def test_closed_iterator_makes_no_more_batches():
    is_started, may_continue = threading.Event(), threading.Event()
    made = []

    def make(index: int) -> int:
        if index:
            is_started.set()
            may_continue.wait(120)
        made.append(index)
        return index

    prefetch = Prefetch(4)
    batches = prefetch.each(make, range(50))
    assert next(batches) == 0
    assert is_started.wait(120)
    batches.close()
    may_continue.set()
    prefetch.close()
    assert made == [0, 1], "a started batch is finished, the next three are not started"


def test_garbage_collected_prefetch_keeps_no_thread():
    """The process of a failed run is reused by other runs."""
    prefetch = Prefetch(2)
    (name,) = set(prefetch.each(lambda _: threading.current_thread().name, range(3)))
    assert name in [thread.name for thread in threading.enumerate()]
    del prefetch
    gc.collect()
    deadline = time.monotonic() + 120
    while name in [thread.name for thread in threading.enumerate()]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_readers_run_concurrently():
    """Four reads wait for each other, which needs four threads."""
    barrier = threading.Barrier(4)

    def read(rows: np.ndarray) -> np.ndarray:
        barrier.wait(60)
        return rows

    split = Split(np.zeros((16, 1), np.float32), np.zeros(16, np.int64))
    prefetch = Reader(split, read).prefetch(4)
    assert len(list(prefetch.each(read, range(16)))) == 16
    prefetch.close()


class SingleThreadedArray:
    """Array whose rows must not be read by two threads at once."""

    shape, dtype = (40, 8, 8, 3), np.uint8

    def __init__(self) -> None:
        self.lock, self.threads = threading.Lock(), set()
        self.pixels = np.random.default_rng(0).integers(0, 256, self.shape, np.uint8)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        assert self.lock.acquire(blocking=False), "two threads at once"
        time.sleep(0.001)
        self.threads.add(threading.current_thread().name)
        self.lock.release()
        return self.pixels[rows]


def test_batches_are_equal_for_any_number_of_readers(framework):
    augment = ["random_crop", "flip", "mixup", "color_jitter"]

    def batches(prefetch: int, inputs: SingleThreadedArray | np.ndarray) -> list[list[np.ndarray]]:
        data = dataset_of(inputs, np.arange(40) % 3, 3)
        spec = small_spec(framework, batch_size_per_worker=4, prefetch=prefetch, augment=augment)
        steps = first_steps(spec, data, single_worker(framework), 200)
        return augmented_batches(spec, data.train, steps)

    array = SingleThreadedArray()
    expected = batches(1, array)
    assert len(expected) == 50
    assert len(array.threads) == 1
    for prefetch, inputs in ((0, array), (4, array), (4, array.pixels)):
        np.testing.assert_equal(batches(prefetch, inputs), expected)


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


def test_run_on_demand_equals_the_run_in_memory(framework):
    dataset = load_dataset(DATA)
    passes = {"accumulate": 2, "batch_size_per_worker": 8}
    spec = spec_of(framework, "adam", prefetch=3, precision="bf16", **passes)
    curve, in_memory = train(spec, dataset=dataset)
    lazy = on_demand(dataset)
    lazy_curve, trainer = train(spec, dataset=lazy)
    assert_same_curve(curve, lazy_curve)
    np.testing.assert_equal(model_arrays(in_memory, framework), model_arrays(trainer, framework))
    assert trainer.evaluate("test", slice(3, 70)) == in_memory.evaluate("test", slice(3, 70))
    steps = first_steps(spec, dataset, single_worker(framework), 180)
    rows = [step.indices.ravel() for step in steps]
    assert np.concatenate(lazy.train.inputs.requests).tolist() == np.concatenate(rows).tolist()
    assert all(name.startswith("raybench-prefetch") for name in lazy.train.inputs.threads)
    trainer.close()
    assert prefetch_threads() == []


@pytest.mark.parametrize(
    ("framework", "prefetch", "num_waits"),
    [("torch", 0, 20), ("torch", 2, 1), ("tensorflow", 0, 20)],
)
def test_waiting_for_data_is_on_the_clock(framework, prefetch, num_waits):
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
def test_error_in_data_of_the_user_ends_the_run_with_its_message(prefetch):
    dataset = load_dataset(DATA)
    torn = replace(dataset, train=replace(dataset.train, inputs=Torn(dataset.train.array)))
    spec = spec_of("torch", "sgd", prefetch=prefetch, eval_every_samples=None)
    trainer, data, world = new_trainer(spec, dataset=torn)
    with pytest.raises(OSError, match="picture 17 is torn") as caught:
        list(run(spec, data, trainer, world, Ledger("setup")))
    assert caught.traceback[-1].name == "__getitem__", "the traceback ends in the user's code"
    trainer.close()
    assert prefetch_threads() == []


def test_stopped_run_prepares_no_more_batches():
    dataset = on_demand(load_dataset(DATA))
    spec = spec_of("torch", "sgd", prefetch=4, objective=UNLIMITED, epochs=50.0)
    trainer, _, world = new_trainer(spec, dataset=dataset)
    points = run(spec, dataset, trainer, world, Ledger("setup"))
    next(points)
    points.close()
    count = len(dataset.train.inputs.requests)
    time.sleep(0.05)
    assert count == len(dataset.train.inputs.requests) == 3, "48 samples and no prefetched ones"
    trainer.close()
    assert prefetch_threads() == []
