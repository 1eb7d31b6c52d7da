"""What the machines have, and whether a worker group can fit; needs no Ray."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from raybench.cluster.admission import Admission
from raybench.core.errors import UserError
from raybench.core.placement import Placement


@dataclass(frozen=True)
class Node:
    """What a host offers."""

    cpus: int
    gpus: int
    id: str = ""
    """Ray's name of it."""


@dataclass(frozen=True)
class Capacity:
    """What the cluster has, node by node."""

    nodes: tuple[Node, ...]
    memory_bytes: float
    knows_gpus: bool = True
    """False where it cannot be told without the driver's own tools: GPUs are then not refused."""

    @property
    def cpus(self) -> int:
        """CPU cores of all nodes."""
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    def num_fitting(self, placement: Placement) -> int:
        """Return for how many of its workers the empty nodes have room."""
        return sum(placement.num_fitting(node.cpus, node.gpus) for node in self.nodes)

    def fits_together(self, placements: Iterable[Placement]) -> bool:
        """Whether groups placed so can be at work at the same time."""
        admission = Admission([(node.cpus, node.gpus) for node in self.nodes])
        wanted = list(placements)
        if not all(admission.fits(placement) for placement in wanted):
            return False
        for number, placement in enumerate(wanted):
            admission.submit(str(number), placement)
        return len(admission.admit()) == len(wanted)

    def fits(self, placement: Placement) -> bool:
        """Whether the empty cluster holds the group."""
        if placement.gpus_per_worker and not self.knows_gpus:
            return True
        return self.num_fitting(placement) >= placement.num_workers

    def refuse_infeasible(self, placement: Placement) -> None:
        """Raise UserError for a group that the whole empty cluster cannot hold."""
        if self.fits(placement):
            return
        needs = f"{placement.cpus_per_worker} CPU" + (
            f" and {placement.gpus_per_worker} GPU" if placement.gpus_per_worker else ""
        )
        raise UserError(
            f"num_workers: {placement.num_workers} workers of {needs} each do not fit, there is "
            f"room for {self.num_fitting(placement)} ({self.cpus} CPUs, {self.gpus} GPUs on "
            f"{len(self.nodes)} host{'s' if len(self.nodes) != 1 else ''}); ask for fewer workers "
            "or connect a larger cluster with --address."
        )


def num_local_cores() -> int:
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def local_capacity() -> Capacity:
    """Return what a Ray of our own would have on this machine, without starting one."""
    devices = list(Path("/proc/driver/nvidia/gpus").glob("*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(devices)
    if visible is not None:
        named = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
        gpus = min(gpus, len(named))
    is_certain = bool(devices) or not (shutil.which("nvidia-smi") or Path("/dev/kfd").exists())
    return Capacity((Node(num_local_cores(), gpus),), memory_bytes=0.0, knows_gpus=is_certain)
