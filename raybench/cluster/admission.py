"""Who may run now: worker groups, the trials that wait for them, and what must close for whom.

Pure bookkeeping without Ray, so that it is tested on thousands of fake trials. Trials are
admitted first come, first served, and only where their workers fit on the nodes: a wide trial
at the head of the queue is never overtaken, so it cannot starve, and nothing that was admitted
waits for anything else, so nothing can deadlock.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from raybench.core.placement import Placement


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A trial may run: in which group, whether that is new, and what must close first."""

    trial: str
    group: int
    placement: Placement
    is_new: bool
    evict: tuple[int, ...] = ()


@dataclass
class _Group:
    placement: Placement
    trial: str | None
    nodes: tuple[int, ...]
    """Node of every worker."""
    last_used: int = 0


@dataclass
class Admission:
    """The pool's state.

    `nodes`: (CPU cores, GPUs) of every node. `idle_holds_cpus`: whether an idle group keeps its
    cores reserved (it does where several nodes share them out; on one node its processes merely
    sleep). GPUs are always held, because their memory is. `max_workers` bounds the processes
    alive, idle ones included.
    """

    nodes: Sequence[tuple[int, int]]
    max_workers: int = 10**9
    idle_holds_cpus: bool = False
    groups: dict[int, _Group] = field(default_factory=dict)
    waiting: list[tuple[str, Placement]] = field(default_factory=list)
    _clock: int = 0
    _next_group: int = 0

    def fits(self, placement: Placement) -> bool:
        """Whether the group fits the nodes when they are empty."""
        return pack(placement, self.nodes) is not None

    def submit(self, trial: str, placement: Placement) -> None:
        """Put a trial at the end of the queue."""
        assert self.fits(placement), (
            f"{placement} can never fit: refuse it before the search starts"
        )
        # Its batch size is nothing to the group: without it groups compare equal.
        self.waiting.append((trial, placement.group))

    def cancel(self, trial: str) -> None:
        """Take a waiting trial out of the queue."""
        self.waiting = [entry for entry in self.waiting if entry[0] != trial]

    def admit(self) -> list[Grant]:
        """Grant groups to as many trials from the head of the queue as fit now."""
        grants = []
        while self.waiting:
            grant = self._place(*self.waiting[0])
            if grant is None:
                break
            self.waiting.pop(0)
            grants.append(grant)
        return grants

    def settle(self, group: int, nodes: Sequence[int]) -> None:
        """Correct where the workers of a group are: Ray chose, and may have chosen otherwise."""
        if group in self.groups:
            self.groups[group].nodes = tuple(nodes)

    def release(self, trial: str) -> int | None:
        """Mark the trial's group idle; return the group, None if it had none."""
        self._clock += 1
        for number, group in self.groups.items():
            if group.trial == trial:
                group.trial, group.last_used = None, self._clock
                return number
        return None

    def remove(self, group: int) -> None:
        """Forget a group that closed or crashed."""
        self.groups.pop(group, None)

    def busy(self) -> list[str]:
        """Trials that hold a group now."""
        return [group.trial for group in self.groups.values() if group.trial is not None]

    def _place(self, trial: str, placement: Placement) -> Grant | None:
        idle = sorted(
            (number for number, group in self.groups.items() if group.trial is None),
            key=lambda number: self.groups[number].last_used,
        )
        for number in reversed(idle):
            if self.groups[number].placement == placement:
                if not self._can_wake(number):
                    return None
                self.groups[number].trial = trial
                return Grant(trial=trial, group=number, placement=placement, is_new=False)
        evict: list[int] = []
        nodes = self._find_room(placement, evict)
        while nodes is None:
            if not idle:
                return None
            evict.append(idle.pop(0))
            nodes = self._find_room(placement, evict)
        # Oldest first may have named groups whose end frees nothing that was missing.
        for number in list(evict):
            others = [other for other in evict if other != number]
            found = self._find_room(placement, others)
            if found is not None:
                evict, nodes = others, found
        for number in evict:
            del self.groups[number]
        number = self._next_group
        self._next_group += 1
        self.groups[number] = _Group(placement, trial, nodes)
        return Grant(
            trial=trial, group=number, placement=placement, is_new=True, evict=tuple(evict)
        )

    def _can_wake(self, number: int) -> bool:
        """Whether the nodes of an idle group have its cores free."""
        group = self.groups[number]
        free = self._free(without=(number,))
        for node in group.nodes:
            free[node][0] -= group.placement.cpus_per_worker
            free[node][1] -= group.placement.gpus_per_worker
        return all(cpus >= 0 and gpus >= 0 for cpus, gpus in free)

    def _find_room(self, placement: Placement, evicted: list[int]) -> tuple[int, ...] | None:
        alive = sum(g.placement.num_workers for n, g in self.groups.items() if n not in evicted)
        if alive and alive + placement.num_workers > self.max_workers:
            return None
        return pack(placement, [(cpus, gpus) for cpus, gpus in self._free(without=evicted)])

    def _free(self, *, without: Collection[int]) -> list[list[int]]:
        """Return the free (CPUs, GPUs) of every node, as if groups `without` were not there."""
        free = [[cpus, gpus] for cpus, gpus in self.nodes]
        for number, group in self.groups.items():
            if number in without:
                continue
            holds_cpus = group.trial is not None or self.idle_holds_cpus
            for node in group.nodes:
                free[node][0] -= group.placement.cpus_per_worker if holds_cpus else 0
                free[node][1] -= group.placement.gpus_per_worker
        return free


def pack(placement: Placement, free: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
    """Return a node for every worker, on as few nodes as can be; None if they do not fit.

    `free` are the free (CPUs, GPUs) of the nodes. Of nodes that hold the whole group the
    fullest is taken, and GPUs are left to those who need them, so that room stays in one piece.
    """
    room = {node: placement.num_fitting(*free[node]) for node in range(len(free))}

    def order(node: int) -> tuple[bool, int, int, int]:
        cpus, gpus = free[node]
        wasted = gpus if not placement.gpus_per_worker else 0
        return wasted > 0, -room[node], cpus, gpus

    nodes: list[int] = []
    for node in sorted(room, key=order):
        nodes += [node] * min(room[node], placement.num_workers - len(nodes))
    return tuple(nodes) if len(nodes) == placement.num_workers else None
