"""Prefetched batches: number, threads, end. Runs with them are in test_on_demand.py."""

import gc
import threading
import time

import numpy as np
import pytest
from local import alone, augmented_batches, small_spec

from raybench.data.dataset import Dataset, Split
from raybench.training.reading import Prefetch, Reader
from raybench.training.steps import take_until, training_steps


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
def test_so_many_are_made_ahead_and_no_more(depth: int) -> None:
    made: list[int] = []
    prefetch = Prefetch(depth)
    for index, _ in enumerate(prefetch.each(made.append, range(12))):
        wanted = min(index + 1 + depth, 12)
        deadline = time.monotonic() + 120
        while len(made) < wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)
        assert len(made) == wanted
    prefetch.close()


def test_what_is_not_used_any_more_is_not_made() -> None:
    began, go = threading.Event(), threading.Event()
    made: list[int] = []

    def make(index: int) -> int:
        if index:
            began.set()
            go.wait(120)
        made.append(index)
        return index

    prefetch = Prefetch(4)
    batches = prefetch.each(make, range(50))
    assert next(batches) == 0
    assert began.wait(120)
    batches.close()
    go.set()
    prefetch.close()
    assert made == [0, 1], "the one under way is finished, the next three are not begun"


def test_one_that_is_forgotten_keeps_no_thread() -> None:
    """The worker of a failed run serves other runs."""
    prefetch = Prefetch(2)
    (name,) = set(prefetch.each(lambda _: threading.current_thread().name, range(3)))
    assert name in [one.name for one in threading.enumerate()]
    del prefetch
    gc.collect()
    deadline = time.monotonic() + 120
    while name in [one.name for one in threading.enumerate()]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_readers_work_side_by_side() -> None:
    """Four reads that wait for each other, which needs four threads."""
    meeting = threading.Barrier(4)

    def read(rows: np.ndarray) -> np.ndarray:
        meeting.wait(60)
        return rows

    split = Split(np.zeros((16, 1), np.float32), np.zeros(16, np.int64))
    prefetch = Reader(split, read).prefetch(4)
    assert len(list(prefetch.each(read, range(16)))) == 16
    prefetch.close()


class OneAtATime:
    """Samples on demand that no second thread may ask for meanwhile."""

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


def test_any_number_of_readers_gives_equal_batches(framework: str) -> None:
    augment = ["random_crop", "flip", "mixup", "color_jitter"]

    def batches(prefetch: int, inputs: OneAtATime | np.ndarray) -> list[list[np.ndarray]]:
        split = Split(inputs, np.arange(40) % 3)
        data = Dataset("pictures", 3, split, split, split)
        spec = small_spec(framework, batch_size_per_worker=4, prefetch=prefetch, augment=augment)
        steps = take_until(training_steps(spec, data, alone(framework)), 200)[0]
        return augmented_batches(spec, split, steps)

    asked = OneAtATime()
    one = batches(1, asked)
    assert len(one) == 50
    assert len(asked.threads) == 1
    for prefetch, inputs in ((0, asked), (4, asked), (4, asked.pixels)):
        np.testing.assert_equal(batches(prefetch, inputs), one)
