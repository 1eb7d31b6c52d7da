"""Who may run now: worker groups, the trials that wait for them, and what must close for whom.

Pure bookkeeping without Ray, so that it is tested on thousands of fake trials. Trials are
admitted first come, first served, and only where their workers fit on the nodes: a wide trial
at the head of the queue is never overtaken, so it cannot starve, and nothing that was admitted
waits for anything else, so nothing can deadlock. Only a trial that would not fit the nodes even
if they were empty is passed over, until there are others: nobody holds what it waits for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from raybench.cluster.layout import Node, lay_out, num_nodes
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
class Group:
    """A worker group that is alive, or starts."""

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
    the processes alive, idle ones included. `can_grow`: nodes may come and go.
    """

    nodes: Sequence[Node]
    max_workers: int = 10**9
    idle_holds_cpus: bool = False
    can_grow: bool = False
    taken: Sequence[tuple[float, float]] = ()
    groups: dict[int, Group] = field(default_factory=dict)
    waiting: list[tuple[str, Placement]] = field(default_factory=list)
    _clock: int = 0
    _next_group: int = 0

    def fits(self, placement: Placement) -> bool:
        """Whether the group fits the nodes when they are empty."""
        return num_nodes(placement, self.nodes) > 0

    def submit(self, trial: str, placement: Placement) -> None:
        """Put a trial at the end of the queue."""
        assert self.can_grow or self.fits(placement), (
            f"{placement} can never fit: refuse it before the search starts"
        )
        # Its batch size is nothing to the group: without it groups compare equal.
        self.waiting.append((trial, placement.group))

    def cancel(self, trial: str) -> None:
        """Take a waiting trial out of the queue."""
        self.waiting = [entry for entry in self.waiting if entry[0] != trial]

    def admit(self) -> list[Grant]:
        """Grant groups to as many trials from the head of the queue as fit now."""
        grants: list[Grant] = []
        passed: list[tuple[str, Placement]] = []
        while self.waiting:
            trial, placement = self.waiting[0]
            grant = self._place(trial, placement)
            if grant is not None:
                grants.append(grant)
            elif self.fits(placement):
                break
            else:
                passed.append((trial, placement))
            self.waiting.pop(0)
        self.waiting = passed + self.waiting
        return grants

    def update(self, present: Sequence[Node]) -> list[int]:
        """Take the nodes that there are now; return the idle groups that have lost one of theirs.

        These are forgotten, and their processes are the caller's to end. Groups at work stay
        until somebody learns that they have lost a worker. A node that has gone keeps its place,
        empty; one that comes back has it again.
        """
        there = {node.id: node for node in present}
        gone = [replace(node, cpus=0, gpus=0) for node in self.nodes]
        known = [there.pop(node.id, gone[n]) for n, node in enumerate(self.nodes)]
        self.nodes = [*known, *there.values()]
        lost = [
            number
            for number, group in self.groups.items()
            if group.trial is None and any(self.nodes[node].is_gone for node in group.nodes)
        ]
        for number in lost:
            del self.groups[number]
        return lost

    def is_short(self, placement: Placement) -> bool:
        """Whether the machines are missing: it would not fit if none of our groups were there."""
        return self.lay_out(placement, without=self.groups) is None

    def needed(self) -> list[Placement]:
        """Return all groups for which there should be machines, where somebody waits for any."""
        if not self.waiting:
            return []
        busy = [group.placement for group in self.at_work()]
        return busy + [placement for _, placement in self.waiting]

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
            own = self.groups[number]
            has_left = any(self.nodes[node].is_gone for node in own.nodes)
            if own.placement == placement and not has_left:
                if not self._can_wake(number):
                    return None
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
        self.groups[number] = Group(placement, trial, nodes)
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
        free = list(self.free(without=(number,)))
        for node in group.nodes:
            free[node] = free[node].without(
                group.placement.cpus_per_worker, group.placement.gpus_per_worker
            )
        return all(free[node].cpus >= 0 and free[node].gpus >= 0 for node in group.nodes)

    def _find_room(self, placement: Placement, evicted: list[int]) -> tuple[int, ...] | None:
        alive = sum(g.placement.num_workers for n, g in self.groups.items() if n not in evicted)
        if alive and alive + placement.num_workers > self.max_workers:
            return None
        return self.lay_out(placement, without=evicted)

    def lay_out(self, placement: Placement, *, without: Collection[int]) -> tuple[int, ...] | None:
        """Return a node for every worker, as if groups `without` were not there; None if none."""
        return lay_out(placement, self.free(without=without), self.nodes)

    def at_work(self) -> list[Group]:
        """Return the groups that trials hold."""
        return [group for group in self.groups.values() if group.trial is not None]

    def free(self, *, without: Collection[int]) -> list[Node]:
        """Return what every node has free, as if groups `without` were not there."""
        free = list(self.nodes)
        for node, (cpus, gpus) in enumerate(self.taken):
            if not free[node].is_gone:
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
