"""Nodes that have been given notice: their runs are saved before they go.

The pool asks, and tells all workers of a group alike. `ray.train.get_preemption_info` knows the
same from the same place, by way of an actor for each group, seconds of its start, and a barrier.
"""

import asyncio
import time
from collections.abc import Callable, Collection

from raybench.cluster.ray_internals.draining import draining_nodes

LOOK_S = 2.0
"""Seconds between two looks; notices come half a minute ahead, or more."""


class DepartingNodes:
    """What Ray says of its nodes, asked at most every LOOK_S; lives in the pool's event loop."""

    def __init__(
        self,
        *,
        is_local: bool,
        ask: Callable[[], frozenset[str]] = draining_nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A Ray of our own on this machine (`is_local`) is never asked: its node goes with us."""
        self._is_local, self._ask, self._clock = is_local, ask, clock
        self._nodes: frozenset[str] = frozenset()
        self._looked_at = float("-inf")

    async def any_of(self, nodes: Collection[str]) -> bool:
        """Whether one of these nodes, by Ray's ids, is about to go."""
        if self._is_local or not nodes:
            return False
        if self._clock() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock()
            self._nodes = await asyncio.to_thread(self._ask)
        return not self._nodes.isdisjoint(nodes)
