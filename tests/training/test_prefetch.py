"""Prefetched batches: their number, threads and end. `test_on_demand` trains with them."""

import gc
import threading
import time

import numpy as np
import pytest
from local_runs import augmented_batches, single_worker, small_spec

from raybench.data.dataset import Dataset, Split
from raybench.training.reading import Prefetch, Reader
from raybench.training.steps import take_until, training_steps


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_depth_is_the_number_of_batches_made_ahead(depth: int) -> None:
    made: list[int] = []
    prefetch = Prefetch(depth)
    for index, _ in enumerate(prefetch.each(made.append, range(12))):
        expected = min(index + 1 + depth, 12)
        deadline = time.monotonic() + 120
        while len(made) < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)
        assert len(made) == expected
    prefetch.close()


def test_closed_iterator_makes_no_more_batches() -> None:
    is_started, may_continue = threading.Event(), threading.Event()
    made: list[int] = []

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


def test_garbage_collected_prefetch_keeps_no_thread() -> None:
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


def test_readers_run_concurrently() -> None:
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
        self.lock, self.threads = threading.Lock(), set[str]()
        self.pixels = np.random.default_rng(0).integers(0, 256, self.shape, np.uint8)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        assert self.lock.acquire(blocking=False), "two threads at once"
        time.sleep(0.001)
        self.threads.add(threading.current_thread().name)
        self.lock.release()
        return self.pixels[rows]


def test_batches_are_equal_for_any_number_of_readers(framework: str) -> None:
    augment = ["random_crop", "flip", "mixup", "color_jitter"]

    def batches(prefetch: int, inputs: SingleThreadedArray | np.ndarray) -> list[list[np.ndarray]]:
        split = Split(inputs, np.arange(40) % 3)
        data = Dataset("pictures", 3, split, split, split)
        spec = small_spec(framework, batch_size_per_worker=4, prefetch=prefetch, augment=augment)
        steps = take_until(training_steps(spec, data, single_worker(framework)), 200)[0]
        return augmented_batches(spec, split, steps)

    array = SingleThreadedArray()
    expected = batches(1, array)
    assert len(expected) == 50
    assert len(array.threads) == 1
    for prefetch, inputs in ((0, array), (4, array), (4, array.pixels)):
        np.testing.assert_equal(batches(prefetch, inputs), expected)
