"""Queue of requests for worker groups: what each trial waits for, and when it gets a group."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raybench.cluster.layout import Node, as_nodes, num_nodes
from raybench.cluster.protocol import STOPPED, HostLeaves, RunFailed
from raybench.cluster.ray_internals import nodes as internals
from raybench.cluster.resource_scheduler import Reservation, ResourceScheduler
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import Placement
from raybench.spec.text import counted

RESEND_S = 30.0
"""Seconds after which a request to the autoscaler is sent again, in case another job's request has
replaced it."""
LOOK_S = 2.0
"""Seconds between two checks of the nodes and of the resources that other jobs use. Ray announces
the end of a node at least half a minute before."""


@dataclass(frozen=True)
class Request:
    """A trial's request for a worker group: how long the trial has waited, and for what."""

    what: str
    """Description of the missing resources, or of the trial ahead in the queue."""
    seconds: float
    """Seconds since the request."""
    short_s: float
    """Seconds, over all requests of the trial, in which the group would not have fitted even
    without our other groups, because machines were missing."""


class RequestQueue:
    """Requests to the scheduler, each answered by a future; runs in the pool's event loop.

    If the cluster has an autoscaler, all needs of the pool are sent to it as a single request.
    """

    def __init__(
        self,
        scheduler: ResourceScheduler,
        options: PoolOptions,
        available: Callable[[], Mapping[str, Mapping[str, float]]] = internals.available,
        *,
        nodes: Callable[[], Sequence[Mapping[str, Any]]] = ray.nodes,
        leaving: Callable[[], frozenset[str]] = internals.draining_nodes,
        autoscale: Callable[[Sequence[Mapping[str, float]]], None] = internals.request,
        on_lost: Callable[[list[int]], None] = lambda groups: None,
    ) -> None:
        """Create an empty queue.

        Args:
            scheduler: The scheduler with the pool's reservations.
            options: Options of the pool.
            available: Returns each node's free resources according to Ray.
            nodes: Returns the nodes listed by Ray.
            leaving: Returns the ids of nodes that are about to be shut down.
            autoscale: Requests the given resource bundles from the autoscaler.
            on_lost: Called with the numbers of idle groups that were lost with a node.
        """
        self._scheduler, self._options, self._available = scheduler, options, available
        self._list_nodes, self._list_leaving, self._on_lost = nodes, leaving, on_lost
        self._autoscale = autoscale
        self._leaving: frozenset[str] = frozenset()
        """Ids of all nodes whose shutdown was ever announced."""
        self._requests: dict[str, tuple[asyncio.Future[Reservation], float]] = {}
        """Future of each trial's request, and the time of the request (`monotonic`)."""
        self._short_s: dict[str, float] = {}
        """`Request.short_s` of each trial."""
        self._sent: list[dict[str, float]] | None = None
        self._sent_at = 0.0
        """Last request to the autoscaler; None before the first one, when a request of a killed
        driver may still be valid."""

    async def wait(self, trial: str, placement: Placement) -> tuple[Reservation, str | None]:
        """Wait for a worker group, without a time limit.

        Returns:
            The reservation, and a description of what the trial waited for (None if for nothing).

        Raises:
            RunFailed: The request was cancelled.
        """
        granted: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._requests[trial], waited_for = (granted, time.monotonic()), None
        self._scheduler.submit(trial, placement)
        try:
            await self._look_and_admit()
            while not granted.done():
                waited_for = missing(self._scheduler).get(trial, waited_for)
                is_short, began = self._scheduler.is_short(placement), time.monotonic()
                await asyncio.wait({granted}, timeout=LOOK_S)
                if is_short:
                    waited = time.monotonic() - began
                    self._short_s[trial] = self._short_s.get(trial, 0.0) + waited
                if not granted.done() and next(iter(self._scheduler.waiting)) == trial:
                    await self._look_and_admit()
            return granted.result(), waited_for
        finally:
            self._requests.pop(trial, None)
            if not self._requests:
                await self._tell_autoscaler()

    async def started(self, start: Awaitable[WorkerGroup], nodes: Sequence[int]) -> WorkerGroup:
        """Await the start of a group on `nodes` and return the group.

        Raises:
            HostLeaves: The start failed, and one of the nodes is leaving the cluster.
            RunFailed: The start failed for another reason.
        """
        try:
            return await start
        except RunFailed:
            await self.look()
            for node in (self._scheduler.nodes[number] for number in nodes):
                if node.id in self._leaving:
                    message = f"host {node.name} is leaving the cluster"
                    raise HostLeaves("worker_lost", message) from None
            raise

    def admit(self) -> None:
        """Grant all requests that can be served now."""
        for reservation in self._scheduler.admit():
            assert reservation.trial is not None
            granted, _ = self._requests[reservation.trial]
            if not granted.done():
                granted.set_result(reservation)

    def cancel(self, trial: str) -> None:
        """End a trial's request, if there is one."""
        self._scheduler.cancel(trial)
        granted, _ = self._requests.pop(trial, (None, 0.0))
        if granted is not None and not granted.done():
            granted.set_exception(RunFailed(STOPPED, "the run was stopped"))

    def forget(self, trial: str) -> None:
        """Delete the waiting time of a trial that is over."""
        self._short_s.pop(trial, None)

    def trials(self) -> list[str]:
        """Return the names of the trials that wait."""
        return list(self._requests)

    def waiting(self) -> dict[str, Request]:
        """Return what each waiting trial waits for and how long it has waited, by trial."""
        now = time.monotonic()
        return {
            trial: Request(what, now - self._requests[trial][1], self._short_s.get(trial, 0.0))
            for trial, what in missing(self._scheduler).items()
            if trial in self._requests
        }

    async def look(self) -> None:
        """Update the nodes and the resources that other jobs use; does nothing on a local Ray."""
        if self._options.is_local:
            return
        free, entries, leaving = await asyncio.to_thread(
            lambda: (self._available(), self._list_nodes(), self._list_leaving())
        )
        self._leaving |= leaving
        scheduler = self._scheduler
        if entries and (lost := scheduler.update(as_nodes(entries, leaving))):
            self._on_lost(lost)
        scheduler.taken = internals.taken_by_others(scheduler.nodes, scheduler.held(), free)

    async def _look_and_admit(self) -> None:
        await self.look()
        self.admit()
        await self._tell_autoscaler()

    async def _tell_autoscaler(self) -> None:
        """Request machines for all busy and waiting groups, or none if no trial waits.

        The first request is sent even if empty, to replace that of a killed driver, whose machines
        would otherwise be billed indefinitely. If sending fails, the next check tries again.
        """
        groups = self._scheduler.needed()
        wanted = internals.resource_bundles(groups, self._scheduler.taken) if groups else []
        is_old = bool(wanted) and time.monotonic() - self._sent_at > RESEND_S
        if not self._options.scales or (wanted == self._sent and not is_old):
            return
        try:
            await asyncio.to_thread(self._autoscale, wanted)
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            logging.getLogger(__name__).warning("the request to the autoscaler failed: %s", error)
            return
        self._sent, self._sent_at = wanted, time.monotonic()


def missing(scheduler: ResourceScheduler) -> dict[str, str]:
    """Return a description of what each waiting trial waits for, by trial."""
    head = scheduler.head
    reason = "" if head is None else _reason(scheduler, scheduler.waiting[head])
    reasons: dict[str, str] = {}
    for trial, placement in scheduler.waiting.items():
        if not scheduler.fits(placement):
            there = [node for node in scheduler.nodes if not node.is_gone]
            reasons[trial] = f"{_amounts(placement, there)} in total; hosts must join"
        elif trial == head:
            reasons[trial] = reason
        else:
            reasons[trial] = f"its turn, after trial {head}, which waits for {reason}"
    return reasons


def _reason(scheduler: ResourceScheduler, placement: Placement) -> str:
    idle = [
        reservation for reservation in scheduler.reservations.values() if reservation.trial is None
    ]
    if scheduler.lay_out(placement, without=idle) is None:
        nodes = zip(scheduler.free(without=idle), scheduler.nodes, strict=True)
        free = [now for now, ever in nodes if ever.room(placement)]
        count = num_nodes(placement, scheduler.nodes)
        return f"{_amounts(placement, free)} free (needed on {counted(count, 'host')})"
    alive = sum(reservation.placement.num_workers for reservation in scheduler.busy)
    return (
        f"memory for {placement.num_workers} more worker processes: {alive} of at most "
        f"{scheduler.max_workers} are at work"
    )


def _amounts(placement: Placement, nodes: Sequence[Node]) -> str:
    """Return what a group needs and what each host has: `2 CPUs: 1 on host a, 1 on host b`."""
    need, has = f"{placement.cpus:g} CPU{'' if placement.cpus == 1 else 's'}", "{0.cpus:g}"
    if placement.gpus:
        model = f"{placement.accelerator_type} " if placement.accelerator_type else ""
        need += f" and {placement.gpus:g} {model}GPU{'' if placement.gpus == 1 else 's'}"
        has += " CPU and {0.gpus:g} GPU"
    hosts = (f"{has.format(node)} on host {node.name or node.id[:8]}" for node in nodes)
    return f"{need}: {', '.join(hosts) or 'no host'}"
