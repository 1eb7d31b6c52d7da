"""Batches prepared ahead by a thread, in their order; for any backend."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Batch = TypeVar("Batch")


class Prefetch:
    """Makes batches, `depth` of them while earlier ones are trained on; with 0 when asked for.

    One thread makes them one after another, so what reads the data needs no locks. It begins
    with the first batch of an interval and is done at its end: nothing is prepared off the
    training clock, and where a run stops, is saved or continued, no batch is under way.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._pool = ThreadPoolExecutor(1, "raybench-prefetch") if depth else None

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
        """End the thread, after the batch that it is making."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
