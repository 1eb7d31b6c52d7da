"""The scheduler: which worker groups have which nodes reserved, and which trials wait for a group.

Pure bookkeeping without Ray, so that tests run it on thousands of made-up trials. Requests are
served first come, first served, and only where the workers fit on the nodes: a wide trial at the
head of the queue cannot starve, and a trial with a reservation waits for nothing else, so nothing
can deadlock. Two exceptions: a trial that would not fit the nodes even if they were empty is
skipped until there are others, and a trial whose worker group is alive and idle goes before a head
of the queue for which groups would have to close, at most `MAX_OVERTAKEN` times.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from raybench.cluster.layout import Node, lay_out, num_nodes
from raybench.spec.run import Placement

MAX_OVERTAKEN = 8
"""Number of times that the head of the queue is overtaken by trials that need no new worker group,
whose start takes 10 to 26 s; 16 would save less than a tenth of the starts that are left."""


@dataclass(eq=False)
class Reservation:
    """Resources of one worker group, which is alive or about to start."""

    group: int
    """Number of the worker group."""
    placement: Placement
    nodes: tuple[int, ...]
    """Index of each worker's node."""
    trial: str | None
    """Trial that has the group; None while it is idle."""
    is_new: bool = True
    """Whether its workers have to be started."""
    evict: tuple[int, ...] = ()
    """Numbers of the groups that must end before they start."""
    last_used: int = 0


@dataclass
class ResourceScheduler:
    """Reservations of the worker groups and the requests that wait for one.

    `nodes`: total resources of every node. `taken`: (CPU cores, GPUs) of every node that other
    users of the cluster hold now; empty where there are none. `on_cluster`: nodes may come and go,
    and an idle group keeps its cores reserved; on a Ray of our own, which is one node, its
    processes merely sleep. GPUs are always held, because their memory is. `max_workers` bounds
    the processes alive, idle ones included.
    """

    nodes: Sequence[Node]
    max_workers: int = 10**9
    on_cluster: bool = False
    taken: Sequence[tuple[float, float]] = ()
    reservations: dict[int, Reservation] = field(default_factory=dict)
    """Reservations by the number of the worker group."""
    waiting: dict[str, Placement] = field(default_factory=dict)
    """Worker group that each waiting trial needs, first come first."""
    _num_overtaken: int = 0
    """Number of times that the present head of the queue was overtaken."""
    _clock: int = 0
    _next_group: int = 0

    @property
    def head(self) -> str | None:
        """First waiting trial that fits the nodes; None if there is none."""
        return next((trial for trial, one in self.waiting.items() if self.fits(one)), None)

    @property
    def busy(self) -> list[Reservation]:
        """Reservations that trials have."""
        return [one for one in self.reservations.values() if one.trial is not None]

    def fits(self, placement: Placement) -> bool:
        """Whether the group fits the nodes when they are empty."""
        return num_nodes(placement, self.nodes) > 0

    def submit(self, trial: str, placement: Placement) -> None:
        """Put a trial at the end of the queue."""
        assert self.on_cluster or self.fits(placement), (
            f"{placement} can never fit: refuse it before the search starts"
        )
        # Without the batch size and the like: groups that can serve the same trials compare equal.
        self.waiting[trial] = placement.group

    def cancel(self, trial: str) -> None:
        """Take a waiting trial out of the queue."""
        if trial == self.head:
            self._num_overtaken = 0
        self.waiting.pop(trial, None)

    def admit(self) -> list[Reservation]:
        """Assign worker groups to all waiting trials that can have one now."""
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
        """Mark the trial's group idle; return its number, None if it had none."""
        self._clock += 1
        for number, reservation in self.reservations.items():
            if reservation.trial == trial:
                reservation.trial, reservation.last_used = None, self._clock
                return number
        return None

    def remove(self, group: int) -> None:
        """Forget a group that closed or crashed."""
        self.reservations.pop(group, None)

    def update(self, present: Sequence[Node]) -> list[int]:
        """Set the nodes that there are now; return the idle groups that have lost one of theirs.

        These are forgotten; the caller ends their processes. Busy groups stay until the loss of
        their worker is noticed. A node that has gone keeps its index, without resources, and gets
        it back when it returns.
        """
        there = {node.id: node for node in present}
        gone = [replace(node, cpus=0, gpus=0) for node in self.nodes]
        known = [there.pop(node.id, gone[n]) for n, node in enumerate(self.nodes)]
        self.nodes = [*known, *there.values()]
        lost = [one.group for one in self._idle() if self._has_lost_a_node(one)]
        for number in lost:
            del self.reservations[number]
        return lost

    def is_short(self, placement: Placement) -> bool:
        """Whether machines are missing: the group would not fit even without our own groups."""
        return self.lay_out(placement, without=self.reservations.values()) is None

    def needed(self) -> list[Placement]:
        """Return all groups that need machines, including busy groups, if trials wait; otherwise
        none."""
        if not self.waiting:
            return []
        return [one.placement for one in self.busy] + [*self.waiting.values()]

    def held(self) -> list[tuple[float, float]]:
        """Return the (CPU cores, GPUs) of every node that groups have reserved, including idle
        groups."""
        held = [(0.0, 0.0)] * len(self.nodes)
        for reservation in self.reservations.values():
            cpus, gpus = self._held_by_worker(reservation)
            for node in reservation.nodes:
                held[node] = held[node][0] + cpus, held[node][1] + gpus
        return held

    def accelerators(self, reservation: Reservation) -> tuple[str, ...]:
        """Return the models of a group's GPUs, each once; none for a group without GPUs."""
        models = {self.nodes[node].accelerator for node in reservation.nodes}
        return tuple(sorted(models - {""})) if reservation.placement.gpus_per_worker else ()

    def lay_out(
        self, placement: Placement, *, without: Collection[Reservation]
    ) -> tuple[int, ...] | None:
        """Return a node for every worker, as if `without` were not reserved; None if none fits."""
        return lay_out(placement, self.free(without=without), self.nodes)

    def free(self, *, without: Collection[Reservation] = ()) -> list[Node]:
        """Return the free resources of every node, as if `without` were not reserved."""
        free = list(self.nodes)
        for node, (cpus, gpus) in enumerate(self.taken):
            if not free[node].is_gone:
                free[node] = free[node].without(cpus, gpus)
        for reservation in self.reservations.values():
            for node in reservation.nodes if reservation not in without else ():
                free[node] = free[node].without(*self._held_by_worker(reservation))
        return free

    def _overtake(self, head: str) -> Reservation | None:
        """Reserve for a trial whose group is idle, where the head of the queue has no such group
        and other groups would have to close or end for it."""
        placement = self.waiting[head]
        is_idle_held = self.on_cluster or placement.gpus_per_worker > 0
        if not is_idle_held or self._num_overtaken == MAX_OVERTAKEN:
            return None
        if self._idle(placement) or self._find_room(placement, []) is not None:
            return None
        for trial, other in self.waiting.items():
            if self._idle(other):
                self._num_overtaken += 1
                return self._reserve(trial)
        return None

    def _reserve(self, trial: str) -> Reservation | None:
        """Assign a trial an idle group or room for a new group; None if there is neither now."""
        placement = self.waiting[trial]
        if own := self._idle(placement):
            if not self._can_wake(own[-1]):
                return None
            own[-1].trial, own[-1].is_new, own[-1].evict = trial, False, ()
            return own[-1]
        idle = self._idle()
        evict: list[Reservation] = []
        while (nodes := self._find_room(placement, evict)) is None:
            if not idle:
                return None
            evict.append(idle.pop(0))
        # The oldest come first, and some of them may free nothing that was missing.
        for one in list(evict):
            others = [other for other in evict if other is not one]
            if (found := self._find_room(placement, others)) is not None:
                evict, nodes = others, found
        for one in evict:
            del self.reservations[one.group]
        number = self._next_group
        self._next_group += 1
        closing = tuple(one.group for one in evict)
        reservation = Reservation(number, placement, nodes, trial, evict=closing)
        self.reservations[number] = reservation
        return reservation

    def _idle(self, placement: Placement | None = None) -> list[Reservation]:
        """Return the idle groups, the longest unused first; with `placement`, those that can serve
        a trial placed so."""
        found = [
            one
            for one in self.reservations.values()
            if one.trial is None
            and (placement is None or placement == one.placement)
            and not (placement and self._has_lost_a_node(one))
        ]
        return sorted(found, key=lambda one: one.last_used)

    def _has_lost_a_node(self, reservation: Reservation) -> bool:
        return any(self.nodes[node].is_gone for node in reservation.nodes)

    def _can_wake(self, idle: Reservation) -> bool:
        """Whether an idle group's cores are free where it is; its GPUs it has kept."""
        free, cpus = self.free(), idle.placement.cpus_per_worker
        return self.on_cluster or all(
            free[node].cpus >= idle.nodes.count(node) * cpus for node in set(idle.nodes)
        )

    def _find_room(
        self, placement: Placement, evicted: Collection[Reservation]
    ) -> tuple[int, ...] | None:
        """Return a node for every worker of a new group once `evicted` have closed."""
        others = (one for one in self.reservations.values() if one not in evicted)
        alive = sum(one.placement.num_workers for one in others)
        if alive and alive + placement.num_workers > self.max_workers:
            return None
        return self.lay_out(placement, without=evicted)

    def _held_by_worker(self, reservation: Reservation) -> tuple[float, float]:
        """Return the CPU cores and GPUs that each worker of a group holds."""
        holds_cpus = reservation.trial is not None or self.on_cluster
        cpus = reservation.placement.cpus_per_worker if holds_cpus else 0
        return cpus, reservation.placement.gpus_per_worker
