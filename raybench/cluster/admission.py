"""Admission: worker groups, the trials that wait for them, and which groups close for which trial.

Pure bookkeeping without Ray, so that it is tested on thousands of fake trials. Trials are
admitted first come, first served, and only where their workers fit on the nodes: a wide trial
at the head of the queue cannot starve, and nothing that was admitted waits for anything else, so
nothing can deadlock. Two exceptions: a trial that would not fit the nodes even if they were empty
is passed over until there are others, and a trial whose worker group is alive and idle goes before
a head of the queue for which groups would have to close, `MOST_OVERTAKEN` times at most.
"""

import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raybench.cluster.layout import Node, Reservation, lay_out, num_nodes
from raybench.spec.errors import UserError
from raybench.spec.run import Placement
from raybench.training.machine import num_visible, nvml_sees


@dataclass(frozen=True)
class Grant:
    """A trial may run: in which group, whether that is new, and what must close first."""

    trial: str
    group: int
    placement: Placement
    nodes: tuple[int, ...]
    """Node of every worker."""
    is_new: bool = False
    evict: tuple[int, ...] = ()


@dataclass
class Group:
    """A worker group that is alive, or starts."""

    placement: Placement
    trial: str | None
    nodes: tuple[int, ...]
    """Node of every worker."""
    last_used: int = 0


MOST_OVERTAKEN = 8
"""Number of times that the head of the queue is overtaken by trials that need no new worker group,
whose start takes 10 to 26 s; 16 would save less than a tenth of the starts that are left."""


@dataclass
class Admission:
    """The pool's state.

    `nodes`: what every node has in all. `taken`: (CPU cores, GPUs) of every node that others on
    the cluster hold at this moment; empty where nobody does. `on_cluster`: nodes may come and go,
    and an idle group keeps its cores reserved; on a Ray of our own, which is one node, its
    processes merely sleep. GPUs are always held, because their memory is. `max_workers` bounds
    the processes alive, idle ones included.
    """

    nodes: Sequence[Node]
    max_workers: int = 10**9
    on_cluster: bool = False
    taken: Sequence[tuple[float, float]] = ()
    groups: dict[int, Group] = field(default_factory=dict)
    waiting: list[tuple[str, Placement]] = field(default_factory=list)
    _num_overtaken: int = 0
    """Number of times that the present head of the queue was overtaken."""
    _clock: int = 0
    _next_group: int = 0

    def fits(self, placement: Placement) -> bool:
        """Whether the group fits the nodes when they are empty."""
        return num_nodes(placement, self.nodes) > 0

    def submit(self, trial: str, placement: Placement) -> None:
        """Put a trial at the end of the queue."""
        assert self.on_cluster or self.fits(placement), (
            f"{placement} can never fit: refuse it before the search starts"
        )
        # Its batch size is nothing to the group: without it groups compare equal.
        self.waiting.append((trial, placement.group))

    def cancel(self, trial: str) -> None:
        """Take a waiting trial out of the queue."""
        if self.waiting and self.waiting[0][0] == trial:
            self._num_overtaken = 0
        self.waiting = [entry for entry in self.waiting if entry[0] != trial]

    def admit(self) -> list[Grant]:
        """Grant groups to as many trials from the head of the queue as fit now."""
        grants: list[Grant] = []
        passed: list[tuple[str, Placement]] = []
        while self.waiting:
            trial, placement = self.waiting[0]
            grant = self._overtake(placement) or self._place(trial, placement)
            if grant is not None:
                grants.append(grant)
                trial = grant.trial
            elif self.fits(placement):
                break
            else:
                passed.append((trial, placement))
            self.cancel(trial)
        self.waiting = passed + self.waiting
        return grants

    def _overtake(self, head: Placement) -> Grant | None:
        """Return the grant of a trial whose group is idle, where the head of the queue has no
        group, and there is no room to start one unless others close or end."""
        is_idle_held = self.on_cluster or head.gpus_per_worker > 0
        if not is_idle_held or self._num_overtaken == MOST_OVERTAKEN:
            return None
        if self._idle_groups(head) or self._find_room(head, []) is not None:
            return None
        for trial, placement in self.waiting[1:]:
            if self._idle_groups(placement):
                self._num_overtaken += 1
                return self._place(trial, placement)
        return None

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
        held = [(0.0, 0.0)] * len(self.nodes)
        for group in self.groups.values():
            cpus, gpus = self._each(group)
            for node in group.nodes:
                held[node] = held[node][0] + cpus, held[node][1] + gpus
        return held

    def _each(self, group: Group) -> tuple[float, float]:
        """Return the CPU cores and GPUs that each worker of a group holds."""
        holds_cpus = group.trial is not None or self.on_cluster
        cpus = group.placement.cpus_per_worker if holds_cpus else 0
        return cpus, group.placement.gpus_per_worker

    def accelerators(self, grant: Grant) -> tuple[str, ...]:
        """Return the models of a group's GPUs, each once; none for a group without GPUs."""
        models = {self.nodes[node].accelerator for node in grant.nodes}
        return tuple(sorted(models - {""})) if grant.placement.gpus_per_worker else ()

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

    def _place(self, trial: str, placement: Placement) -> Grant | None:
        if own := self._idle_groups(placement):
            number = own[-1]
            if not self._can_wake(number):
                return None
            self.groups[number].trial = trial
            return Grant(trial, number, placement, self.groups[number].nodes)
        idle = self._idle_groups()
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
            if (found := self._find_room(placement, others)) is not None:
                evict, nodes = others, found
        for number in evict:
            del self.groups[number]
        number = self._next_group
        self._next_group += 1
        self.groups[number] = Group(placement, trial, nodes)
        return Grant(trial, number, placement, nodes, is_new=True, evict=tuple(evict))

    def _idle_groups(self, placement: Placement | None = None) -> list[int]:
        """Return the idle groups, the longest unused first; with `placement`, those that a trial
        placed so can have."""
        found = [
            number
            for number, group in self.groups.items()
            if group.trial is None
            and (placement is None or placement == group.placement)
            and not (placement and any(self.nodes[node].is_gone for node in group.nodes))
        ]
        return sorted(found, key=lambda number: self.groups[number].last_used)

    def _can_wake(self, number: int) -> bool:
        """Whether an idle group's cores are free where it is; its GPUs it has kept."""
        group, free = self.groups[number], self.free(without=())
        needs = {
            node: group.nodes.count(node) * group.placement.cpus_per_worker for node in group.nodes
        }
        return self.on_cluster or all(free[node].cpus >= cpus for node, cpus in needs.items())

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
        for group in (one for number, one in self.groups.items() if number not in without):
            for node in group.nodes:
                free[node] = free[node].without(*self._each(group))
        return free


DRIVER, OF_AMD = Path("/proc/driver/nvidia/gpus"), Path("/dev/kfd")
"""A folder with an entry for each GPU, missing in some containers; what only AMD's driver has."""
MOST_NAMED = 4
"""Hosts that a sentence names one by one."""


@dataclass(frozen=True)
class Capacity:
    """Resources of the cluster, node by node."""

    nodes: tuple[Node, ...]
    memory_bytes: float
    knows_gpus: bool = True
    """False where it cannot be told without the driver's own tools: GPUs are then not refused."""
    grows: bool = False
    """Whether the cluster has an autoscaler: what does not fit may wait for other nodes."""
    driver: Reservation | None = None
    """Resources that the driver itself holds; the nodes are without them."""

    @property
    def cpus(self) -> int:
        """CPU cores of all nodes."""
        return int(sum(node.cpus for node in self.nodes))

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return int(sum(node.gpus for node in self.nodes))

    def document(self) -> dict[str, Any]:
        """Return what there is, as plain data for YAML."""
        return {"nodes": [{"cpus": node.cpus, "gpus": node.gpus} for node in self.nodes]}

    def num_fitting(self, placement: Placement) -> int:
        """Return for how many of its workers the empty nodes have room."""
        return sum(node.room(placement) for node in self.nodes)

    def most_workers(self, placement: Placement) -> int:
        """Return how many such workers the empty cluster holds, in all groups together."""
        many = max(self.cpus, placement.num_workers)
        return self.num_fitting(replace(placement, num_workers=many))

    def most_groups(self, placement: Placement, slots: int) -> int:
        """Return how many such groups the empty cluster holds, at most `slots`; 1 at least."""
        return max(1, min(slots, self.most_workers(placement) // placement.num_workers))

    def fits_together(self, placements: Iterable[Placement]) -> bool:
        """Whether groups placed so can be at work at the same time."""
        admission = Admission(self.nodes)
        wanted = list(placements)
        if not all(admission.fits(placement) for placement in wanted):
            return False
        for number, placement in enumerate(wanted):
            admission.submit(str(number), placement)
        return len(admission.admit()) == len(wanted)

    def fits(self, placement: Placement) -> bool:
        """Whether the empty cluster holds the group."""
        if placement.gpus_per_worker and not self.knows_gpus:
            return not placement.shares_a_gpu
        return num_nodes(placement, self.nodes) > 0

    def may_hold(self, placement: Placement) -> bool:
        """Whether the empty cluster holds the group, or may grow for it."""
        return self.fits(placement) or (self.grows and not placement.shares_a_gpu)

    def refuse_infeasible(self, placement: Placement) -> None:
        """Raise UserError for a group that the whole empty cluster cannot hold, nor grow for."""
        if self.may_hold(placement):
            return
        if placement.shares_a_gpu:
            raise UserError(
                f"gpus_per_worker: {placement.gpus_per_worker} of a GPU is for num_workers 1: of "
                f"{placement.num_workers} workers each needs a whole one (NCCL refuses two on "
                "one); set gpus_per_worker: 1."
            )
        kind = placement.accelerator_type
        if kind and not any(node.accelerator == kind for node in self.nodes):
            there = sorted({node.accelerator for node in self.nodes if node.accelerator})
            has = f"it has {', '.join(there)}" if there else "no node names a type of its GPUs"
            raise UserError(
                f"accelerator_type: the cluster has no {kind}, {has}; leave the key out to take "
                "any, or connect another cluster with --address."
            )
        needs = f"{placement.cpus_per_worker} CPU"
        if placement.gpus_per_worker:
            needs += f" and {placement.gpus_per_worker:g} {f'{kind} ' if kind else ''}GPU"
        if placement.replicas_per_process > 1:
            raise UserError(
                f"num_workers: the one process of {placement.replicas_per_process} replicas needs "
                f"{needs} of one node, and none has them ({self._words()}; ask for fewer workers "
                "or set strategy: distributed."
            )
        raise UserError(
            f"num_workers: {placement.num_workers} workers of {needs} each do not fit, there is "
            f"room for {self.num_fitting(placement)} ({self._words()}; ask for fewer workers or "
            "connect a larger cluster with --address."
        )

    def _words(self) -> str:
        """Return what there is, host by host where there are a few, and what the driver holds."""
        hosts = len(self.nodes)
        said = f"{self.cpus} CPU{'' if self.cpus == 1 else 's'}, {self.gpus} GPUs on {hosts} host"
        said += "s" if hosts != 1 else ""
        if 1 < hosts <= MOST_NAMED:
            each = (f"{one.name or one.id[:8]} {one.cpus:g} and {one.gpus:g}" for one in self.nodes)
            said += f": {', '.join(sorted(each))}"
        if self.driver is None:
            return f"{said})"
        amounts = ((self.driver.cpus, "CPU"), (self.driver.gpus, "GPU"))
        held = " and ".join(f"{amount:g} {unit}" for amount, unit in amounts if amount)
        return (
            f"{said}), without {held} that the search itself holds on host {self.driver.host} "
            "(--entrypoint-num-cpus of the job)"
        )


def num_local_cores() -> int:
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def local_capacity() -> Capacity:
    """Return what a Ray of our own would have on this machine, without starting one.

    GPUs are counted by the driver (NVML), as Ray and `raybench doctor` count them.
    """
    driver = nvml_sees()
    number = len(driver.names) or len(list(DRIVER.glob("*")))
    gpus = num_visible(number, os.environ.get("CUDA_VISIBLE_DEVICES"))
    others = OF_AMD.exists() or (driver.problem and shutil.which("nvidia-smi"))
    is_known = bool(number) or not others
    return Capacity((Node(num_local_cores(), gpus),), memory_bytes=0.0, knows_gpus=is_known)
