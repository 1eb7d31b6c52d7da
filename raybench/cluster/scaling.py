"""What an autoscaler is asked for: the resources of the groups that wait, and of those at work."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

import ray

from raybench.cluster.admission import Admission
from raybench.cluster.ray_internals.autoscaler import bundles_of, request

AGAIN_S = 30.0
"""A request is sent again after this many seconds: another job's may have taken its place."""
Bundles = Sequence[Mapping[str, float]]


class Scaling:
    """One request for the whole pool, updated as the waiting changes; lives in its event loop."""

    def __init__(self, *, is_on: bool, send: Callable[[Bundles], None] = request) -> None:
        """`is_on`: whether the cluster has an autoscaler; without one nothing is sent."""
        self._is_on, self._send = is_on, send
        self._asked: list[dict[str, float]] | None = None
        """What stands; None until something was sent: it may be what a killed driver has left."""
        self._sent = 0.0

    async def ask(self, admission: Admission) -> None:
        """Ask for what waits now and for what would be kept beside it; for nothing if none does.

        The first time in any case: a request stands until another takes its place, and the hosts
        that a killed driver has asked for would be kept, and paid for, without end.
        A request that Ray does not take is sent again at the next look.
        """
        groups = admission.needed()
        wanted = bundles_of(groups, admission.taken) if groups else []
        is_old = bool(wanted) and time.monotonic() - self._sent > AGAIN_S
        if not self._is_on or (wanted == self._asked and not is_old):
            return
        try:
            await asyncio.to_thread(self._send, wanted)
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            logging.getLogger(__name__).warning("the autoscaler was not asked: %s", error)
            return
        self._asked, self._sent = wanted, time.monotonic()
