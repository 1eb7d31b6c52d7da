"""Scheduling of worker groups: which trial gets a group now, on which nodes, and why others wait.

`ResourceScheduler` is pure bookkeeping without Ray, so tests can run it on thousands of made-up
trials. Requests are served in the order in which they arrive, each as soon as all workers of its
group fit on the nodes. Therefore a trial with many workers cannot starve. A trial with a
reservation needs nothing else, so trials cannot deadlock. There are two exceptions to the order:

- A trial that would not fit even on empty nodes is skipped until nodes are added.
- If the trial at the head of the queue can use no idle group and there is no room for a new group,
  a later trial that can use an idle group may overtake the head. At most MAX_OVERTAKEN trials may,
  and only if the head needs GPUs or runs on a cluster: elsewhere, idle groups take no room.

`RequestQueue` uses this scheduler to answer requests of the pool. It follows the nodes of the
cluster and the resources that other jobs use, and requests machines from an autoscaler.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from raybench.cluster.layout import Node, as_nodes, lay_out, num_nodes
from raybench.cluster.protocol import STOPPED, HostLeaves, RunFailed
from raybench.cluster.ray_internals import nodes as internals
from raybench.cluster.worker_group import PoolOptions, WorkerGroup
from raybench.spec.run import ResourceRequest
from raybench.spec.text import counted
from raybench.stats.record import Failure

MAX_OVERTAKEN = 8
"""Maximum number of trials that may overtake the same head of the queue because they can use an
idle group. Each of them saves the start of a group (10 to 26 s). A limit of 16 would save less than
a tenth of the remaining starts."""


@dataclass(eq=False)
class Reservation:
    """Resources reserved for one worker group, which is alive or about to start."""

    group: int
    """Number of the worker group."""
    request: ResourceRequest
    nodes: tuple[int, ...]
    """Index of each worker's node."""
    trial: str | None
    """Trial that uses the group; None while the group is idle."""
    is_new: bool = True
    """Whether the group's workers have to be started."""
    evict: tuple[int, ...] = ()
    """Numbers of the groups that must be closed before the workers start."""
    last_used: int = 0
    """Number of releases of any groups until this group was last released."""


@dataclass
class ResourceScheduler:
    """Reservations of the worker groups, and the trials that wait for a reservation.

    An idle group keeps its GPUs reserved, because its processes occupy GPU memory. It keeps its CPU
    cores reserved only on a cluster, where other jobs would take them.

    Args:
        nodes: Total resources of every node.
        max_workers: Maximum number of worker processes, including idle ones.
        on_cluster: True for a cluster, whose nodes may come and go; False for a local Ray
            instance.
        taken: (CPU cores, GPUs) that other jobs use, one pair for each node of `nodes`; empty if
            there are no other jobs.
    """

    nodes: Sequence[Node]
    max_workers: int = 10**9
    on_cluster: bool = False
    taken: Sequence[tuple[float, float]] = ()
    reservations: dict[int, Reservation] = field(default_factory=dict)
    """Reservations, keyed by the number of the worker group."""
    waiting: dict[str, ResourceRequest] = field(default_factory=dict)
    """Requests of the waiting trials, keyed by trial name, oldest first."""
    _num_overtaken: int = 0
    """Number of trials that have overtaken the current head of the queue."""
    _num_releases: int = 0
    """Number of times that a group was released."""
    _next_group: int = 0
    """Number of the next new worker group."""

    @property
    def head(self) -> str | None:
        """First waiting trial that would fit on empty nodes; None if there is none."""
        return next((trial for trial, request in self.waiting.items() if self.fits(request)), None)

    @property
    def busy(self) -> list[Reservation]:
        """Reservations of the groups that trials use."""
        return [
            reservation
            for reservation in self.reservations.values()
            if reservation.trial is not None
        ]

    def fits(self, request: ResourceRequest) -> bool:
        """Whether the group would fit on empty nodes."""
        return num_nodes(request, self.nodes) > 0

    def submit(self, trial: str, request: ResourceRequest) -> None:
        """Put a trial at the end of the queue."""
        assert self.on_cluster or self.fits(request), (
            f"{request} can never fit: refuse it before the search starts"
        )
        self.waiting[trial] = request

    def cancel(self, trial: str) -> None:
        """Remove a trial from the queue, if it waits."""
        if trial == self.head:
            self._num_overtaken = 0
        self.waiting.pop(trial, None)

    def admit(self) -> list[Reservation]:
        """Assign groups to all waiting trials that can get one now; return these reservations."""
        admitted: list[Reservation] = []
        while (head := self.head) is not None:
            reservation = self._overtake(head) or self._reserve(head)
            if reservation is None:
                break
            assert reservation.trial is not None
            self.cancel(reservation.trial)
            admitted.append(reservation)
        return admitted

    def release(self, trial: str) -> int | None:
        """Mark the trial's group as idle; return its number, or None if the trial has no group."""
        self._num_releases += 1
        for number, reservation in self.reservations.items():
            if reservation.trial == trial:
                reservation.trial, reservation.last_used = None, self._num_releases
                return number
        return None

    def remove(self, group: int) -> None:
        """Delete the reservation of a group that was closed or has crashed."""
        self.reservations.pop(group, None)

    def update(self, present: Sequence[Node]) -> list[int]:
        """Set the nodes that are in the cluster now.

        A node that has left keeps its index, without resources, and is restored when it returns.

        Returns:
            Numbers of the idle groups that have lost a node. Their reservations are deleted, and
            the caller must end their processes. Reservations of busy groups stay until the loss of
            a worker is noticed.
        """
        present_by_id = {node.id: node for node in present}
        gone = [replace(node, cpus=0, gpus=0) for node in self.nodes]
        updated = [present_by_id.pop(node.id, gone[n]) for n, node in enumerate(self.nodes)]
        self.nodes = [*updated, *present_by_id.values()]
        lost = [
            reservation.group for reservation in self._idle() if self._has_lost_a_node(reservation)
        ]
        for number in lost:
            del self.reservations[number]
        return lost

    def is_short(self, request: ResourceRequest) -> bool:
        """Whether the group would not fit now even if all other worker groups were closed."""
        return self.lay_out(request, without=self.reservations.values()) is None

    def needed(self) -> list[ResourceRequest]:
        """Return the requests of all busy groups and of all groups that trials wait for.

        The list is empty if no trial waits.
        """
        if not self.waiting:
            return []
        return [reservation.request for reservation in self.busy] + [*self.waiting.values()]

    def held(self) -> list[tuple[float, float]]:
        """Return the CPU cores and GPUs that busy and idle groups have reserved on every node."""
        held = [(0.0, 0.0)] * len(self.nodes)
        for reservation in self.reservations.values():
            cpus, gpus = self._held_by_worker(reservation)
            for node in reservation.nodes:
                held[node] = held[node][0] + cpus, held[node][1] + gpus
        return held

    def accelerators(self, reservation: Reservation) -> tuple[str, ...]:
        """Return the distinct GPU models in a worker group; empty if it has no GPUs."""
        models = {self.nodes[node].accelerator for node in reservation.nodes}
        return tuple(sorted(models - {""})) if reservation.request.gpus_per_worker else ()

    def lay_out(
        self, request: ResourceRequest, *, without: Collection[Reservation]
    ) -> tuple[int, ...] | None:
        """Choose a node for every worker of a new group.

        Args:
            request: Number and resources of the workers.
            without: Reservations whose resources count as free.

        Returns:
            The index of each worker's node; None if the workers do not fit now.
        """
        return lay_out(request, self.free(without=without), self.nodes)

    def free(self, *, without: Collection[Reservation] = ()) -> list[Node]:
        """Return the free resources of every node; resources of the reservations `without` count as
        free, too."""
        free = list(self.nodes)
        for node, (cpus, gpus) in enumerate(self.taken):
            if not free[node].is_gone:
                free[node] = free[node].without(cpus, gpus)
        for reservation in self.reservations.values():
            for node in reservation.nodes if reservation not in without else ():
                free[node] = free[node].without(*self._held_by_worker(reservation))
        return free

    def _overtake(self, head: str) -> Reservation | None:
        """Assign an idle group to a trial behind the head of the queue and return its reservation.

        This happens only on a cluster or if the head needs GPUs, and only if the head can use no
        idle group and there is no room for a new group. Returns None if no trial may overtake.
        """
        request = self.waiting[head]
        blocks_when_idle = self.on_cluster or request.gpus_per_worker > 0
        if not blocks_when_idle or self._num_overtaken == MAX_OVERTAKEN:
            return None
        if self._idle(request) or self._find_room(request, []) is not None:
            return None
        for trial, other in self.waiting.items():
            if self._idle(other):
                self._num_overtaken += 1
                return self._reserve(trial)
        return None

    def _reserve(self, trial: str) -> Reservation | None:
        """Assign an idle group to a trial, or reserve resources for a new group, and return the
        reservation.

        If necessary, other idle groups are closed for the new group. Returns None if neither is
        possible now.
        """
        request = self.waiting[trial]
        if usable := self._idle(request):
            if not self._can_wake(usable[-1]):
                return None
            usable[-1].trial, usable[-1].is_new, usable[-1].evict = trial, False, ()
            return usable[-1]
        idle = self._idle()
        evict: list[Reservation] = []
        while (nodes := self._find_room(request, evict)) is None:
            if not idle:
                return None
            evict.append(idle.pop(0))
        # `evict` was filled beginning with the group unused for longest. It may contain groups
        # whose resources are not needed after all; keep these alive.
        for idle_group in list(evict):
            others = [other for other in evict if other is not idle_group]
            if (layout := self._find_room(request, others)) is not None:
                evict, nodes = others, layout
        for closed in evict:
            del self.reservations[closed.group]
        number = self._next_group
        self._next_group += 1
        closing = tuple(closed.group for closed in evict)
        reservation = Reservation(number, request, nodes, trial, evict=closing)
        self.reservations[number] = reservation
        return reservation

    def _idle(self, request: ResourceRequest | None = None) -> list[Reservation]:
        """Return the reservations of the idle groups, those unused for longest first.

        With `request`, only groups that a trial with this request can use are returned.
        """
        idle = [
            reservation
            for reservation in self.reservations.values()
            if reservation.trial is None
            and (request is None or request == reservation.request)
            and not (request and self._has_lost_a_node(reservation))
        ]
        return sorted(idle, key=lambda reservation: reservation.last_used)

    def _has_lost_a_node(self, reservation: Reservation) -> bool:
        """Whether any node of a worker group has left the cluster."""
        return any(self.nodes[node].is_gone for node in reservation.nodes)

    def _can_wake(self, idle: Reservation) -> bool:
        """Whether the CPU cores that an idle group needs are free on its nodes.

        Always True on a cluster, where idle groups keep their cores. GPUs are always kept.
        """
        free, cpus = self.free(), idle.request.cpus_per_worker
        return self.on_cluster or all(
            free[node].cpus >= idle.nodes.count(node) * cpus for node in set(idle.nodes)
        )

    def _find_room(
        self, request: ResourceRequest, evicted: Collection[Reservation]
    ) -> tuple[int, ...] | None:
        """Choose a node for every worker of a new group, as if the groups `evicted` were closed.

        Returns the index of each worker's node, or None if the workers do not fit on the nodes or
        would exceed `max_workers`.
        """
        others = (
            reservation for reservation in self.reservations.values() if reservation not in evicted
        )
        alive = sum(reservation.request.num_workers for reservation in others)
        if alive and alive + request.num_workers > self.max_workers:
            return None
        return self.lay_out(request, without=evicted)

    def _held_by_worker(self, reservation: Reservation) -> tuple[float, float]:
        """Return the number of CPU cores and of GPUs that each worker of a group has reserved."""
        holds_cpus = reservation.trial is not None or self.on_cluster
        cpus = reservation.request.cpus_per_worker if holds_cpus else 0
        return cpus, reservation.request.gpus_per_worker


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
            available: Function that returns each node's free resources according to Ray, keyed by
                node id.
            nodes: Function that returns Ray's list of nodes.
            leaving: Function that returns the ids of nodes that are about to be shut down.
            autoscale: Function that requests resource bundles from the autoscaler.
            on_lost: Function that is called with the numbers of idle groups whose workers were lost
                together with a node.
        """
        self._scheduler, self._options, self._available = scheduler, options, available
        self._list_nodes, self._list_leaving, self._on_lost = nodes, leaving, on_lost
        self._autoscale = autoscale
        self._leaving: frozenset[str] = frozenset()
        """Ids of all nodes whose shutdown was announced at any time."""
        self._requests: dict[str, tuple[asyncio.Future[Reservation], float]] = {}
        """Future and time (`time.monotonic`) of each request, keyed by trial name."""
        self._short_s: dict[str, float] = {}
        """`WaitingTrial.short_s` of each trial, keyed by trial name."""
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
        """Return the names of the trials that are waiting for a worker group."""
        return list(self._requests)

    def waiting(self) -> dict[str, WaitingTrial]:
        """Return the unanswered requests, keyed by trial name."""
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
        that was killed; its machines would otherwise be billed indefinitely. If sending fails, the
        next check tries again.
        """
        groups = self._scheduler.needed()
        wanted = internals.resource_bundles(groups, self._scheduler.taken) if groups else []
        is_old = bool(wanted) and time.monotonic() - self._sent_at > RESEND_S
        if not self._options.grows or (wanted == self._sent and not is_old):
            return
        try:
            await asyncio.to_thread(self._autoscale, wanted)
        except (ray.exceptions.RayError, RuntimeError, OSError) as error:
            logging.getLogger(__name__).warning("the request to the autoscaler failed: %s", error)
            return
        self._sent, self._sent_at = wanted, time.monotonic()


def missing(scheduler: ResourceScheduler) -> dict[str, str]:
    """Return descriptions of what the trials in the queue wait for, keyed by trial name."""
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
    """Return a description of what the trial at the head of the queue waits for: resources, or
    memory for more worker processes."""
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
    """Return a text with the resources that a group needs and those that each host has, such as
    `2 CPUs: 1 on host a, 1 on host b`."""
    need, has = f"{request.cpus:g} CPU{'' if request.cpus == 1 else 's'}", "{0.cpus:g}"
    if request.gpus:
        model = f"{request.accelerator_type} " if request.accelerator_type else ""
        need += f" and {request.gpus:g} {model}GPU{'' if request.gpus == 1 else 's'}"
        has += " CPU and {0.gpus:g} GPU"
    hosts = (f"{has.format(node)} on host {node.name or node.id[:8]}" for node in nodes)
    return f"{need}: {', '.join(hosts) or 'no host'}"
