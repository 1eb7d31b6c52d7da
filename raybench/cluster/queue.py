"""Queue of requests for worker groups: why each trial waits, and when it gets a group."""

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
from raybench.spec.run import ResourceRequest
from raybench.spec.text import counted
from raybench.stats.record import Failure

RESEND_S = 30.0
"""Seconds after which the request to the autoscaler is sent again, in case another job's request
has replaced it."""
LOOK_S = 2.0
"""Seconds between two checks of the nodes and of the resources that other jobs use. This is often
enough, since Ray announces the shutdown of a node at least half a minute before."""


@dataclass(frozen=True)
class WaitingTrial:
    """A trial's unanswered request for a worker group: how long the trial has waited, and why."""

    what: str
    """Description of the missing resources, or of the trial that is served first."""
    seconds: float
    """Seconds since the request."""
    short_s: float
    """Seconds for which the cluster was too small: the group would not have fitted even if all
    other worker groups of raybench had been closed. Summed over all requests of the trial."""


class RequestQueue:
    """Requests for worker groups that the `ResourceScheduler` has not served yet.

    The answer to each request is a future. All methods run in the pool's event loop. If the cluster
    has an autoscaler, one request to it covers all groups that the pool needs.
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
            available: Function that returns each node's free resources according to Ray, by node
                id.
            nodes: Function that returns Ray's list of nodes.
            leaving: Function that returns the ids of nodes that are about to be shut down.
            autoscale: Requests resource bundles from the autoscaler.
            on_lost: Called with the numbers of idle groups whose workers were lost with a node.
        """
        self._scheduler, self._options, self._available = scheduler, options, available
        self._list_nodes, self._list_leaving, self._on_lost = nodes, leaving, on_lost
        self._autoscale = autoscale
        self._leaving: frozenset[str] = frozenset()
        """Ids of all nodes whose shutdown was announced at any time."""
        self._requests: dict[str, tuple[asyncio.Future[Reservation], float]] = {}
        """Future and time (`time.monotonic`) of each request, by trial."""
        self._short_s: dict[str, float] = {}
        """`WaitingTrial.short_s`, by trial."""
        self._sent: list[dict[str, float]] | None = None
        """Last request to the autoscaler; None before the first one, when the request of an earlier
        driver that was killed may still be valid."""
        self._sent_at = 0.0
        """Time of the last request to the autoscaler (`time.monotonic`)."""

    async def wait(self, trial: str, request: ResourceRequest) -> tuple[Reservation, str | None]:
        """Wait, without a time limit, until resources for a worker group are reserved.

        Returns:
            The reservation, and a description of what the trial waited for (None if it did not have
            to wait).

        Raises:
            RunFailed: The request was cancelled.
        """
        granted: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._requests[trial], waited_for = (granted, time.monotonic()), None
        self._scheduler.submit(trial, request)
        try:
            await self._look_and_admit()
            while not granted.done():
                waited_for = missing(self._scheduler).get(trial, waited_for)
                is_short, began = self._scheduler.is_short(request), time.monotonic()
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
                await self._request_machines()

    async def started(self, start: Awaitable[WorkerGroup], nodes: Sequence[int]) -> WorkerGroup:
        """Await the start of a group on `nodes` and return the group.

        Raises:
            HostLeaves: The start failed, and one of the nodes is leaving the cluster.
            RunFailed: The start failed for another reason.
        """
        try:
            return await start
        except RunFailed:
            await self.refresh_nodes()
            for node in (self._scheduler.nodes[number] for number in nodes):
                if node.id in self._leaving:
                    message = f"host {node.name} is leaving the cluster"
                    raise HostLeaves(Failure.WORKER_LOST, message) from None
            raise

    def admit(self) -> None:
        """Serve all requests for which resources are free now: set the results of their futures."""
        for reservation in self._scheduler.admit():
            assert reservation.trial is not None
            granted, _ = self._requests[reservation.trial]
            if not granted.done():
                granted.set_result(reservation)

    def cancel(self, trial: str) -> None:
        """Cancel a trial's request, if there is one; its `wait` then raises RunFailed."""
        self._scheduler.cancel(trial)
        granted, _ = self._requests.pop(trial, (None, 0.0))
        if granted is not None and not granted.done():
            granted.set_exception(RunFailed(STOPPED, "the run was stopped"))

    def forget(self, trial: str) -> None:
        """Delete the waiting time (`WaitingTrial.short_s`) of a trial that is over."""
        self._short_s.pop(trial, None)

    def trials(self) -> list[str]:
        """Return the names of the trials that wait for a worker group."""
        return list(self._requests)

    def waiting(self) -> dict[str, WaitingTrial]:
        """Return the unanswered requests by trial."""
        now = time.monotonic()
        return {
            trial: WaitingTrial(what, now - self._requests[trial][1], self._short_s.get(trial, 0.0))
            for trial, what in missing(self._scheduler).items()
            if trial in self._requests
        }

    async def refresh_nodes(self) -> None:
        """Update the scheduler's nodes and the resources that other jobs use on them.

        Does nothing if raybench has started Ray itself, on this machine only.
        """
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
        """Update nodes and resources, serve requests, and request machines from the autoscaler."""
        await self.refresh_nodes()
        self.admit()
        await self._request_machines()

    async def _request_machines(self) -> None:
        """Request machines from the autoscaler: for all busy groups and all groups that trials wait
        for, or none if no trial waits.

        The first request is sent even if it is empty, to replace the request of an earlier driver
        that was killed, whose machines would otherwise be billed indefinitely. If sending fails,
        the next check tries again.
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
    """Return what each trial in the queue waits for, in words, by trial."""
    head = scheduler.head
    reason = "" if head is None else _reason(scheduler, scheduler.waiting[head])
    reasons: dict[str, str] = {}
    for trial, request in scheduler.waiting.items():
        if not scheduler.fits(request):
            present = [node for node in scheduler.nodes if not node.is_gone]
            reasons[trial] = f"{_needed_and_present(request, present)} in total; hosts must join"
        elif trial == head:
            reasons[trial] = reason
        else:
            reasons[trial] = f"its turn, after trial {head}, which waits for {reason}"
    return reasons


def _reason(scheduler: ResourceScheduler, request: ResourceRequest) -> str:
    """Return what the trial at the head of the queue waits for: resources, or memory for more
    worker processes."""
    idle = [
        reservation for reservation in scheduler.reservations.values() if reservation.trial is None
    ]
    if scheduler.lay_out(request, without=idle) is None:
        nodes = zip(scheduler.free(without=idle), scheduler.nodes, strict=True)
        free = [free_node for free_node, empty_node in nodes if empty_node.room(request)]
        count = num_nodes(request, scheduler.nodes)
        return f"{_needed_and_present(request, free)} free (needed on {counted(count, 'host')})"
    alive = sum(reservation.request.num_workers for reservation in scheduler.busy)
    return (
        f"memory for {request.num_workers} more worker processes: {alive} of at most "
        f"{scheduler.max_workers} are at work"
    )


def _needed_and_present(request: ResourceRequest, nodes: Sequence[Node]) -> str:
    """Return the resources that a group needs and those of each host: `2 CPUs: 1 on host a, 1 on
    host b`."""
    need, has = f"{request.cpus:g} CPU{'' if request.cpus == 1 else 's'}", "{0.cpus:g}"
    if request.gpus:
        model = f"{request.accelerator_type} " if request.accelerator_type else ""
        need += f" and {request.gpus:g} {model}GPU{'' if request.gpus == 1 else 's'}"
        has += " CPU and {0.gpus:g} GPU"
    hosts = (f"{has.format(node)} on host {node.name or node.id[:8]}" for node in nodes)
    return f"{need}: {', '.join(hosts) or 'no host'}"
