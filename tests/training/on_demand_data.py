"""Data on demand for the tests: an array behind a counter and a wait."""

import threading
import time
from dataclasses import replace

import numpy as np

from raybench.data.dataset import Dataset, Split


class Kept:
    """An array that is given away by rows: after `wait_s`, and noting who asked for which."""

    def __init__(self, array: np.ndarray, wait_s: float = 0.0) -> None:
        self._array, self._wait_s = array, wait_s
        self.shape, self.dtype = array.shape, array.dtype
        self.asked: list[np.ndarray] = []
        self.threads: set[str] = set()

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        self.asked.append(rows.copy())
        self.threads.add(threading.current_thread().name)
        time.sleep(self._wait_s)
        return self._array[rows]


def on_demand(dataset: Dataset, wait_s: float = 0.0) -> Dataset:
    """Return the same samples on demand; those that are not trained on without a wait."""
    return replace(
        dataset,
        train=Split(Kept(dataset.train.array, wait_s), dataset.train.labels),
        validation=Split(Kept(dataset.validation.array), dataset.validation.labels),
        test=Split(Kept(dataset.test.array), dataset.test.labels),
    )
