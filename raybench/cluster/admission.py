"""Who may run now: worker groups, the trials that wait for them, and what must close for whom.

Pure bookkeeping without Ray, so that it is tested on thousands of fake trials. Trials are
admitted first come, first served, and only where their workers fit on the nodes: a wide trial
at the head of the queue is never overtaken, so it cannot starve, and nothing that was admitted
waits for anything else, so nothing can deadlock.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from raybench.cluster.layout import Node, lay_out, num_nodes
from raybench.cluster.waiting import what_is_missing
from raybench.core.placement import Placement


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A trial may run: in which group, whether that is new, and what must close first."""

    trial: str
    group: int
    placement: Placement
    is_new: bool
    evict: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    """Node of every worker."""


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

    `nodes`: what every node has in all. `taken`: (CPU cores, GPUs) of every node that others on
    the cluster hold at this moment; empty where nobody does. `idle_holds_cpus`: whether an idle
    group keeps its cores reserved (it does where several nodes share them out; on one node its
    processes merely sleep). GPUs are always held, because their memory is. `max_workers` bounds
    the processes alive, idle ones included.
    """

    nodes: Sequence[Node]
    max_workers: int = 10**9
    idle_holds_cpus: bool = False
    taken: Sequence[tuple[float, float]] = ()
    groups: dict[int, _Group] = field(default_factory=dict)
    waiting: list[tuple[str, Placement]] = field(default_factory=list)
    _clock: int = 0
    _next_group: int = 0

    def fits(self, placement: Placement) -> bool:
        """Whether the group fits the nodes when they are empty."""
        return num_nodes(placement, self.nodes) > 0

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

    def missing(self) -> dict[str, str]:
        """Return for every waiting trial what it waits for, in one sentence."""
        if not self.waiting:
            return {}
        head, placement = self.waiting[0]
        alive = sum(group.placement.num_workers for group in self._groups_at_work())
        idle = [n for n, group in self.groups.items() if group.trial is None]
        free = self._free(without=idle)
        if lay_out(placement, free, self.nodes) is None:
            reason = what_is_missing(placement, free, self.nodes)
        else:
            reason = (
                f"memory for {placement.num_workers} more worker processes: {alive} of at most "
                f"{self.max_workers} are at work"
            )
        behind = f"its turn, after trial {head}, which waits for {reason}"
        return {trial: reason if trial == head else behind for trial, _ in self.waiting}

    def held(self) -> list[tuple[float, float]]:
        """Return the (CPU cores, GPUs) of every node that groups have reserved, idle ones too."""
        held = [[0.0, 0.0] for _ in self.nodes]
        for group in self.groups.values():
            holds_cpus = group.trial is not None or self.idle_holds_cpus
            for node in group.nodes:
                held[node][0] += group.placement.cpus_per_worker if holds_cpus else 0
                held[node][1] += group.placement.gpus_per_worker
        return [(cpus, gpus) for cpus, gpus in held]

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
                own = self.groups[number]
                own.trial = trial
                return Grant(
                    trial=trial, group=number, placement=placement, is_new=False, nodes=own.nodes
                )
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
            trial=trial,
            group=number,
            placement=placement,
            is_new=True,
            evict=tuple(evict),
            nodes=nodes,
        )

    def _can_wake(self, number: int) -> bool:
        """Whether the nodes of an idle group have its cores free."""
        group = self.groups[number]
        if self.idle_holds_cpus:
            return True  # it has them
        free = list(self._free(without=(number,)))
        for node in group.nodes:
            free[node] = free[node].without(
                group.placement.cpus_per_worker, group.placement.gpus_per_worker
            )
        return all(free[node].cpus >= 0 and free[node].gpus >= 0 for node in group.nodes)

    def _find_room(self, placement: Placement, evicted: list[int]) -> tuple[int, ...] | None:
        alive = sum(g.placement.num_workers for n, g in self.groups.items() if n not in evicted)
        if alive and alive + placement.num_workers > self.max_workers:
            return None
        return lay_out(placement, self._free(without=evicted), self.nodes)

    def _groups_at_work(self) -> list[_Group]:
        return [group for group in self.groups.values() if group.trial is not None]

    def _free(self, *, without: Collection[int]) -> list[Node]:
        """Return what every node has free, as if groups `without` were not there."""
        free = list(self.nodes)
        for node, (cpus, gpus) in enumerate(self.taken):
            free[node] = free[node].without(cpus, gpus)
        for number, group in self.groups.items():
            if number in without:
                continue
            holds_cpus = group.trial is not None or self.idle_holds_cpus
            for node in group.nodes:
                free[node] = free[node].without(
                    group.placement.cpus_per_worker if holds_cpus else 0,
                    group.placement.gpus_per_worker,
                )
        return free
