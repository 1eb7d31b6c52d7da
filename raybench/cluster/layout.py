"""Layout of a worker group: which node each worker runs on, computed from the free resources."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raybench.spec.run import ROUNDING, Placement


@dataclass(frozen=True)
class Node:
    """Resources of a host: its total or what is free."""

    cpus: float
    """Number of CPU cores."""
    gpus: float
    """Number of GPUs, with the free parts of shared ones."""
    id: str = ""
    """Ray's id of the node."""
    name: str = ""
    """Host name or address, for messages."""
    accelerator: str = ""
    """Ray's name of the GPU model."""
    parts: tuple[float, ...] = ()
    """Free part of each GPU that is partly taken; all other GPUs are whole."""

    def room(self, placement: Placement) -> int:
        """Return how many of a group's workers fit on the node."""
        if placement.accelerator_type not in (None, self.accelerator):
            return 0
        return placement.num_fitting(self.cpus, self.usable_gpus(placement.gpus_per_worker))

    def without(self, cpus: float, gpus: float) -> "Node":
        """Return what is left when a worker takes some, or when other jobs take a sum in all.

        A part of a GPU is taken from one GPU, from the fullest that has it, as Ray does. A sum of
        several jobs is taken from one GPU after the other.
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
        """Whether the node has left the cluster."""
        return not self.cpus and not self.gpus

    def usable_gpus(self, each: float) -> float:
        """Return the GPUs that workers of `each` GPUs can use; a worker's part lies on one GPU."""
        whole = int(self.gpus - sum(self.parts) + ROUNDING)
        if not each or each >= 1:
            return whole
        pieces = sum(int(left / each + ROUNDING) for left in (*self.parts, *[1.0] * whole))
        return pieces * each


def num_nodes(placement: Placement, empty: Sequence[Node]) -> int:
    """Return the number of nodes for a group: the fewest (`pack`) or the most (`spread`).

    It is computed from the empty nodes, so that every run with that placement has as many, however
    full the nodes are when it starts. 0 if the group does not fit.
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
    """Choose a node for every worker.

    Args:
        placement: the workers.
        free: free resources of every node.
        empty: total resources of every node; None takes those that are free.

    Returns:
        The index of each worker's node; None if they do not fit now on `num_nodes` nodes.
    """
    count = num_nodes(placement, free if empty is None else empty)
    if not count:
        return None
    if placement.strategy == "spread":
        return _spread(placement, free, count)
    # Leave nodes with GPUs to groups that need them, unless that takes more nodes.
    for spares_gpus in (not placement.gpus_per_worker, False):
        nodes = _pack(placement, free, spares_gpus=spares_gpus)
        if nodes is not None and len(set(nodes)) <= count:
            return nodes
    return None


def _pack(
    placement: Placement, free: Sequence[Node], *, spares_gpus: bool
) -> tuple[int, ...] | None:
    """Fill the roomiest nodes; of those that hold the whole group, take the fullest."""

    def order(node: int) -> tuple[bool, int, float, float]:
        one = free[node]
        return spares_gpus and one.gpus > 0, -one.room(placement), one.cpus, one.gpus

    nodes: list[int] = []
    for node in sorted(range(len(free)), key=order):
        nodes += [node] * min(free[node].room(placement), placement.num_workers - len(nodes))
    return tuple(nodes) if len(nodes) == placement.num_workers else None


def _spread(placement: Placement, free: Sequence[Node], count: int) -> tuple[int, ...] | None:
    """Give the workers to the `count` roomiest nodes in turn."""
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
    """Return the number of workers on each node, largest first, from the node of every rank."""
    return tuple(sorted((list(nodes).count(node) for node in set(nodes)), reverse=True))


GPU_MODEL = "accelerator_type:"
"""Prefix of the resource by which Ray names the model of a node's GPUs."""


@dataclass(frozen=True)
class DriverResources:
    """Resources that the study's own process holds on its node."""

    node: str
    """Ray's id of the node."""
    cpus: float
    gpus: float = 0.0
    host: str = ""
    """Host name of the node."""


def as_nodes(
    entries: Sequence[Mapping[str, Any]],
    driver: DriverResources | None = None,
    leaving: Collection[str] = (),
) -> tuple[Node, ...]:
    """Return the nodes that can have workers, named by host, or by address if two share a name.

    Args:
        entries: nodes as `ray.nodes` lists them.
        driver: resources of the study's own process, which no worker gets.
        leaving: ids of nodes that are about to go, where Ray starts nothing.
    """
    alive = [entry for entry in entries if entry.get("Alive", True)]
    names = [entry.get("NodeManagerHostname", "") for entry in alive]
    nodes = []
    for entry, name in zip(alive, names, strict=True):
        if entry["NodeID"] in leaving:
            continue
        has = entry["Resources"]
        models = [key.removeprefix(GPU_MODEL) for key in has if key.startswith(GPU_MODEL)]
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
