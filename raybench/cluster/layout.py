"""Layout of a group: the node of each worker; pure arithmetic on what nodes have free."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raybench.spec.run import ROUNDING, Placement


@dataclass(frozen=True)
class Node:
    """Resources of a host, all or those that are free."""

    cpus: float
    gpus: float
    id: str = ""
    """Ray's name of it."""
    name: str = ""
    """Host name or address, for people."""
    accelerator: str = ""
    """Ray's name of its GPUs' model."""
    parts: tuple[float, ...] = ()
    """Rest of each GPU of which a part is taken; the other `gpus` are whole ones."""

    def room(self, placement: Placement) -> int:
        """Return how many of a group's workers fit on it."""
        if placement.accelerator_type not in (None, self.accelerator):
            return 0
        return placement.num_fitting(self.cpus, self.usable_gpus(placement.gpus_per_worker))

    def without(self, cpus: float, gpus: float) -> "Node":
        """Return what is left of it when one worker has taken so much, or others have in all.

        A part of a GPU comes from one GPU, from the fullest that has it, as Ray does. Of several
        others only the sum is known: they are taken to have filled one after the other.
        """
        whole, parts = int(gpus + ROUNDING), list(self.parts)
        part = round(gpus - whole, 4)
        if part > 0:
            holding = [left for left in parts if left >= part - ROUNDING]
            left = min(holding, default=1.0)
            if holding:
                parts.remove(left)
            if left - part > ROUNDING:
                parts.append(round(left - part, 4))
        return replace(
            self,
            cpus=round(self.cpus - cpus, 4),
            gpus=round(self.gpus - gpus, 4),
            parts=tuple(sorted(parts)),
        )

    @property
    def is_gone(self) -> bool:
        """Whether nothing can run there any more."""
        return not self.cpus and not self.gpus

    def usable_gpus(self, each: float) -> float:
        """Return the GPUs that workers who need `each` can use: one's part lies on one GPU."""
        whole = int(self.gpus - sum(self.parts) + ROUNDING)
        if not each or each >= 1:
            return whole
        pieces = sum(int(left / each + ROUNDING) for left in (*self.parts, *[1.0] * whole))
        return pieces * each


def num_nodes(placement: Placement, empty: Sequence[Node]) -> int:
    """Return on how many nodes a group has to be: the fewest (`pack`) or the most (`spread`).

    Of the cluster when it is empty, so that it is the same for every run with that placement,
    however full the nodes are when its turn comes. 0 if the group does not fit.
    """
    room = sorted((node.room(placement) for node in empty), reverse=True)
    if placement.shares_a_gpu or sum(room) < placement.num_workers:
        return 0
    if placement.strategy == "spread":
        return min(placement.num_workers, sum(one > 0 for one in room))
    return next(n for n in range(1, len(room) + 1) if sum(room[:n]) >= placement.num_workers)


def lay_out(
    placement: Placement, free: Sequence[Node], empty: Sequence[Node] | None = None
) -> tuple[int, ...] | None:
    """Return a node for every worker; None if they do not fit now as they have to be placed.

    `free`: what the nodes have left; `empty`: what they have in all. A packed group waits for
    the fewest nodes that can hold it rather than being torn apart, a spread one for as many.
    """
    count = num_nodes(placement, free if empty is None else empty)
    if not count:
        return None
    if placement.strategy == "spread":
        return _spread(placement, free, count)
    # GPUs are left to those who need them, unless that tears the group apart.
    for spares_gpus in (not placement.gpus_per_worker, False):
        nodes = _pack(placement, free, spares_gpus=spares_gpus)
        if nodes is not None and len(set(nodes)) <= count:
            return nodes
    return None


def _pack(
    placement: Placement, free: Sequence[Node], *, spares_gpus: bool
) -> tuple[int, ...] | None:
    """Fill the roomiest nodes; of those that hold the whole group the fullest is taken, so that
    room stays in one piece."""

    def order(node: int) -> tuple[bool, int, float, float]:
        one = free[node]
        return spares_gpus and one.gpus > 0, -one.room(placement), one.cpus, one.gpus

    nodes: list[int] = []
    for node in sorted(range(len(free)), key=order):
        nodes += [node] * min(free[node].room(placement), placement.num_workers - len(nodes))
    return tuple(nodes) if len(nodes) == placement.num_workers else None


def _spread(placement: Placement, free: Sequence[Node], count: int) -> tuple[int, ...] | None:
    """Deal the workers out, one a node and round again, to the `count` roomiest nodes."""
    room = {node: free[node].room(placement) for node in range(len(free))}
    chosen = sorted(room, key=lambda node: -room[node])[:count]
    nodes: list[int] = []
    while len(nodes) < placement.num_workers:
        taking = [node for node in chosen if nodes.count(node) < room[node]]
        if not taking or (not nodes and len(taking) < count):
            return None
        nodes += taking[: placement.num_workers - len(nodes)]
    return tuple(sorted(nodes))


def workers_per_node(nodes: Sequence[object]) -> tuple[int, ...]:
    """Return how many workers each node has, most first; `nodes` is the node of every rank."""
    return tuple(sorted((list(nodes).count(node) for node in set(nodes)), reverse=True))


MODEL = "accelerator_type:"
"""Beginning of the resource by which Ray names the model of a node's GPUs."""


@dataclass(frozen=True)
class DriverResources:
    """Resources that the study's own process holds on its node."""

    node: str
    """Ray's id of it."""
    cpus: float
    gpus: float = 0.0
    host: str = ""


def as_nodes(
    entries: Sequence[Mapping[str, Any]],
    driver: DriverResources | None = None,
    leaving: Collection[str] = (),
) -> tuple[Node, ...]:
    """Return the nodes that can have workers, of those that Ray lists as alive.

    They are called by their host names, or by their addresses where two have one name. `driver`:
    what the study's own process holds, which is nobody's while the study runs. `leaving`: ids of
    those that have been given notice, where Ray starts nothing any more.
    """
    alive = [entry for entry in entries if entry.get("Alive", True)]
    names = [entry.get("NodeManagerHostname", "") for entry in alive]
    nodes = []
    for entry, name in zip(alive, names, strict=True):
        if entry["NodeID"] in leaving:
            continue
        has = entry["Resources"]
        models = [key.removeprefix(MODEL) for key in has if key.startswith(MODEL)]
        node = Node(
            int(has.get("CPU", 0)),
            int(has.get("GPU", 0)),
            entry["NodeID"],
            name=name if names.count(name) == 1 else entry.get("NodeManagerAddress", name),
            accelerator=models[0] if models else "",
        )
        if driver is not None and driver.node == node.id:
            node = node.without(driver.cpus, driver.gpus)
        if node.cpus or node.gpus:
            nodes.append(node)
    return tuple(nodes)
