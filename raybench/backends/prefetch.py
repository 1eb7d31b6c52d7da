"""Batches prepared ahead by threads, in their order; for any backend."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Batch = TypeVar("Batch")


class Prefetch:
    """Makes batches, `depth` of them while earlier ones are trained on; with 0 when asked for.

    One thread makes them one after another, so what reads the data needs no locks; or `readers`
    threads make as many at a time, and they still come in their order. Threads, not processes:
    numpy works on large arrays without the interpreter's lock. They begin with the first batch of
    an interval and are done at its end: nothing is prepared off the training clock, and where a run
    stops, is saved or continued, no batch is under way.
    """

    def __init__(self, depth: int, readers: int = 1) -> None:
        self._depth = depth
        self._pool = ThreadPoolExecutor(max(1, readers), "raybench-prefetch") if depth else None

    def each(self, make: Callable[[Item], Batch], items: Iterable[Item]) -> Iterator[Batch]:
        """Yield `make(item)` of all items; what one raises is raised where its batch would be."""
        if self._pool is None:
            yield from map(make, items)
            return
        waiting: deque[Future[Batch]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(make, item))
                if len(waiting) > self._depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # where training ended with an error
            for batch in waiting:
                batch.cancel()

    def close(self) -> None:
        """End the threads, after the batches that they are making."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
