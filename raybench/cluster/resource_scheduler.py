"""The scheduler: reservations of nodes for worker groups, and the queue of trials without a group.

It is pure bookkeeping without Ray, so tests can run it on thousands of made-up trials. Requests are
served in the order in which they arrive, each as soon as all workers of its group fit on the nodes.
Therefore a trial with many workers cannot starve. A trial with a reservation needs nothing else, so
trials cannot deadlock. There are two exceptions to the order:

- A trial that would not fit even on empty nodes is skipped until nodes are added.
- If idle groups must be closed for the trial at the head of the queue, a trial that can use an idle
  group may overtake the head, at most MAX_OVERTAKEN times.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from raybench.cluster.layout import Node, lay_out, num_nodes
from raybench.spec.run import ResourceRequest

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
    """When the group was released last, as the number of releases of all groups until then."""


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
        taken: CPU cores and GPUs that other jobs use on each node, in the order of `nodes`; empty
            if there are no other jobs.
    """

    nodes: Sequence[Node]
    max_workers: int = 10**9
    on_cluster: bool = False
    taken: Sequence[tuple[float, float]] = ()
    reservations: dict[int, Reservation] = field(default_factory=dict)
    """Reservations by the number of the worker group."""
    waiting: dict[str, ResourceRequest] = field(default_factory=dict)
    """Worker group that each waiting trial needs, in the order of the requests."""
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
        # `group` leaves out the batch size etc., so that trials that can share a group are equal.
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
        """Return the requests of all busy groups and of all groups that trials wait for; empty if
        no trial waits."""
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
        """Return the models of a group's GPUs, each once; empty for a group without GPUs."""
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
        """Return the free resources of every node; those of the reservations `without` also count
        as free."""
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

        This happens only if the head of the queue can use no idle group and there is no room for a
        new group. Returns None if no trial may overtake the head.
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
        # `evict` was filled in the order of age. It may contain groups whose resources are not
        # needed after all; keep these alive.
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
        """Return the reservations of the idle groups, those unused for longest first; with
        `request`, only of the groups that a trial with this request can use."""
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
        """Choose a node for every worker of a new group, for which the groups `evicted` are closed.

        Returns the index of each worker's node, or None if there is no room for the workers or for
        more worker processes.
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
