"""Resources of a cluster, node by node, and the layout of worker groups on the nodes.

Here raybench chooses the node of each worker, and refuses groups that can never fit.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raybench.data.memory import num_local_cores
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import ROUNDING, ResourceRequest
from raybench.spec.text import counted
from raybench.training.machine import gpus_of_driver, num_visible


@dataclass(frozen=True)
class Node:
    """Total or free resources of a node."""

    cpus: float
    """Number of CPU cores."""
    gpus: float
    """Number of GPUs, including the free fractions of shared GPUs."""
    id: str = ""
    """Ray's id of the node."""
    name: str = ""
    """Host name or address, for messages."""
    accelerator: str = ""
    """Ray's name of the GPU model; empty if unknown."""
    fractions: tuple[float, ...] = ()
    """Free fractions of the partly taken GPUs; the rest of `gpus` are entirely free GPUs."""

    def room(self, request: ResourceRequest) -> int:
        """Return how many workers of a group fit on the node, at most the size of the group."""
        if request.accelerator_type not in (None, self.accelerator):
            return 0
        return request.num_fitting(self.cpus, self.usable_gpus(request.gpus_per_worker))

    def without(self, cpus: float, gpus: float) -> "Node":
        """Return the resources that are left after `cpus` and `gpus` are taken.

        They are taken either by one worker or by several other jobs in total. A fraction of a GPU
        is taken from a single GPU, the one with the least free capacity that suffices (best fit, as
        in Ray). Several other jobs are assumed to fill one GPU after another.
        """
        whole, fractions = int(gpus + ROUNDING), list(self.fractions)
        fraction = round(gpus - whole, 4)
        if fraction > 0:
            holding = [left for left in fractions if left >= fraction - ROUNDING]
            left = min(holding, default=1.0)
            if holding:
                fractions.remove(left)
            if left - fraction > ROUNDING:
                fractions.append(round(left - fraction, 4))
        return replace(
            self,
            cpus=round(self.cpus - cpus, 4),
            gpus=round(self.gpus - gpus, 4),
            fractions=tuple(sorted(fractions)),
        )

    @property
    def is_gone(self) -> bool:
        """Whether the node has left the cluster."""
        return not self.cpus and not self.gpus

    def usable_gpus(self, each: float) -> float:
        """Return the number of GPUs that workers can use if each of them needs `each` GPUs.

        A worker that needs only a fraction of a GPU must get it from a single GPU, so free
        fractions smaller than `each` are not counted.
        """
        whole = int(self.gpus - sum(self.fractions) + ROUNDING)
        if not each or each >= 1:
            return whole
        num_workers = sum(int(left / each + ROUNDING) for left in (*self.fractions, *[1.0] * whole))
        return num_workers * each


def num_nodes(request: ResourceRequest, empty: Sequence[Node]) -> int:
    """Return the number of nodes for a group: the fewest (`pack`) or the most (`spread`) possible.

    The number is computed for empty nodes, so that all runs with the same request (workers and
    their resources) use the same number of nodes. It is 0 if the group does not fit, or if its
    workers would share a GPU.
    """
    room = sorted((node.room(request) for node in empty), reverse=True)
    if request.shares_a_gpu or sum(room) < request.num_workers:
        return 0
    if request.packing == "spread":
        return min(request.num_workers, sum(count > 0 for count in room))
    return next(n for n in range(1, len(room) + 1) if sum(room[:n]) >= request.num_workers)


def lay_out(
    request: ResourceRequest, free: Sequence[Node], empty: Sequence[Node] | None = None
) -> tuple[int, ...] | None:
    """Choose a node for every worker.

    Args:
        request: Number and resources of the workers.
        free: Free resources of every node.
        empty: Total resources of every node; None if they equal `free`.

    Returns:
        The index of each worker's node. None if the workers do not fit now on the number of nodes
        that `num_nodes` returns.
    """
    count = num_nodes(request, free if empty is None else empty)
    if not count:
        return None
    if request.packing == "spread":
        return _spread(request, free, count)
    # CPU workers avoid nodes with GPUs, unless they would then need more nodes.
    for spares_gpus in (not request.gpus_per_worker, False):
        nodes = _pack(request, free, spares_gpus=spares_gpus)
        if nodes is not None and len(set(nodes)) <= count:
            return nodes
    return None


def _pack(
    request: ResourceRequest, free: Sequence[Node], *, spares_gpus: bool
) -> tuple[int, ...] | None:
    """Fill one node after another, beginning with the node that has room for the most workers.

    If two nodes have room for equally many, the one with fewer free CPUs comes first. With
    `spares_gpus`, nodes with GPUs come last. Returns the index of each worker's node, or None if
    the workers do not fit.
    """

    def order(node: int) -> tuple[bool, int, float, float]:
        free_node = free[node]
        return (
            spares_gpus and free_node.gpus > 0,
            -free_node.room(request),
            free_node.cpus,
            free_node.gpus,
        )

    nodes: list[int] = []
    for node in sorted(range(len(free)), key=order):
        nodes += [node] * min(free[node].room(request), request.num_workers - len(nodes))
    return tuple(nodes) if len(nodes) == request.num_workers else None


def _spread(request: ResourceRequest, free: Sequence[Node], count: int) -> tuple[int, ...] | None:
    """Distribute the workers in turn over the `count` nodes that have room for the most workers.

    Returns the index of each worker's node, or None if the workers do not fit.
    """
    room = {node: free[node].room(request) for node in range(len(free))}
    chosen = sorted(room, key=lambda node: -room[node])[:count]
    nodes: list[int] = []
    while len(nodes) < request.num_workers:
        not_full = [node for node in chosen if nodes.count(node) < room[node]]
        if not not_full or (not nodes and len(not_full) < count):
            return None
        nodes += not_full[: request.num_workers - len(nodes)]
    return tuple(sorted(nodes))


def workers_per_node(nodes: Sequence[object]) -> tuple[int, ...]:
    """Return the number of workers on each node, largest first; `nodes` lists the node of every
    rank."""
    return tuple(sorted((list(nodes).count(node) for node in set(nodes)), reverse=True))


GPU_MODEL = "accelerator_type:"
"""Prefix of the Ray resource whose name ends with the model of a node's GPUs."""


def as_nodes(
    entries: Sequence[Mapping[str, Any]], leaving: Collection[str] = ()
) -> tuple[Node, ...]:
    """Return the nodes on which workers can run.

    A node is named after its host or, if several nodes have the same host name, its address.

    Args:
        entries: Nodes as listed by `ray.nodes`.
        leaving: Ids of nodes that are about to be shut down, on which Ray starts no processes.
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
        if node.cpus or node.gpus:
            nodes.append(node)
    return tuple(nodes)


NVIDIA_FOLDER = Path("/proc/driver/nvidia/gpus")
"""Folder with an entry for each NVIDIA GPU; used in containers without NVIDIA's library (NVML)."""
MAX_NAMED_HOSTS = 4
"""Maximum number of hosts whose resources a message lists."""


@dataclass(frozen=True)
class Capacity:
    """Total resources of a cluster and of each of its nodes."""

    nodes: tuple[Node, ...]
    memory_bytes: float
    """Memory of all nodes in bytes, as counted by Ray; 0 if unknown."""
    grows: bool = False
    """Whether the cluster has an autoscaler, so that nodes may be added."""

    @property
    def cpus(self) -> int:
        """Total number of CPU cores across all nodes."""
        return int(sum(node.cpus for node in self.nodes))

    @property
    def gpus(self) -> int:
        """Total number of GPUs across all nodes."""
        return int(sum(node.gpus for node in self.nodes))

    def document(self) -> dict[str, Any]:
        """Return the resources as plain data for YAML."""
        return {"nodes": [{"cpus": node.cpus, "gpus": node.gpus} for node in self.nodes]}

    def num_fitting(self, request: ResourceRequest) -> int:
        """Return how many workers of a group fit on each empty node, added up over all nodes.

        A node counts for at most the size of the group, so the sum may be larger than the group.
        """
        return sum(node.room(request) for node in self.nodes)

    def most_workers(self, request: ResourceRequest) -> int:
        """Return how many workers with the resources of `request` fit on the empty cluster, no
        matter how many groups they form."""
        at_least_all = max(self.cpus, request.num_workers)
        return self.num_fitting(replace(request, num_workers=at_least_all))

    def most_groups(self, request: ResourceRequest, slots: int) -> int:
        """Return how many groups with this request fit on the empty cluster at the same time.

        The result is at least 1 and at most `slots`.
        """
        return max(1, min(slots, self.most_workers(request) // request.num_workers))

    def fits(self, request: ResourceRequest) -> bool:
        """Whether the group fits on the empty cluster."""
        return num_nodes(request, self.nodes) > 0

    def may_fit(self, request: ResourceRequest) -> bool:
        """Whether the group fits on the empty cluster, or may fit after nodes are added."""
        return self.fits(request) or (self.grows and not request.shares_a_gpu)

    def refuse_infeasible(self, request: ResourceRequest) -> None:
        """Raise UserError if the group can never run on this cluster (see `may_fit`)."""
        if self.may_fit(request):
            return
        if request.shares_a_gpu:
            raise UserError(
                f"gpus_per_worker: {request.gpus_per_worker} needs num_workers: 1, because NCCL "
                f"refuses two workers on one GPU; for {request.num_workers} workers set "
                "gpus_per_worker: 1.",
                ErrorCode.CONFLICT,
            )
        needs = f"{request.cpus_per_worker} CPU"
        if request.gpus_per_worker:
            model = f"{request.accelerator_type} " if request.accelerator_type else ""
            needs += f" and {request.gpus_per_worker:g} {model}GPU"
        workers = f"{request.num_workers} workers of {needs} each"
        if request.replicas_per_process > 1:
            workers = f"a process of {request.replicas_per_process} replicas, {needs}"
        has = [
            " ".join(f"{node.cpus:g} CPU and {node.gpus:g} {node.accelerator} GPU".split())
            + (f" on host {node.name}" if node.name else "")
            for node in self.nodes[:MAX_NAMED_HOSTS]
        ]
        raise UserError(
            f"num_workers: not enough resources for {workers}: {counted(len(self.nodes), 'host')} "
            f"with {', '.join(has)}; set fewer workers or fewer resources for each, or connect to "
            "a larger cluster with --address.",
            ErrorCode.NO_ROOM,
        )


def local_capacity() -> Capacity:
    """Return the resources that Ray would have if raybench started it on this machine.

    GPUs are counted by NVIDIA's driver (NVML), as Ray and `raybench doctor` do.
    """
    number = len(gpus_of_driver().names) or len(list(NVIDIA_FOLDER.glob("*")))
    gpus = num_visible(number, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Capacity((Node(num_local_cores(), gpus),), memory_bytes=0.0)
