"""What the machines have, and whether a worker group can fit; needs no Ray."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from raybench.cluster.admission import Admission, Shape
from raybench.core.errors import UserError


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

    def num_fitting(self, shape: Shape) -> int:
        """Return for how many of a shape's workers the empty nodes have room."""
        return sum(shape.num_fitting(node.cpus, node.gpus) for node in self.nodes)

    def fits_together(self, shapes: Iterable[Shape]) -> bool:
        """Whether groups of these shapes can be at work at the same time."""
        admission = Admission([(node.cpus, node.gpus) for node in self.nodes])
        wanted = list(shapes)
        if not all(admission.fits(shape) for shape in wanted):
            return False
        for number, shape in enumerate(wanted):
            admission.submit(str(number), shape)
        return len(admission.admit()) == len(wanted)

    def fits(self, shape: Shape) -> bool:
        """Whether the empty cluster holds a group."""
        if shape.gpus_per_worker and not self.knows_gpus:
            return True
        return self.num_fitting(shape) >= shape.num_workers

    def refuse_infeasible(self, shape: Shape) -> None:
        """Raise UserError for a shape that the whole empty cluster cannot hold."""
        if self.fits(shape):
            return
        needs = f"{shape.cpus_per_worker} CPU" + (
            f" and {shape.gpus_per_worker} GPU" if shape.gpus_per_worker else ""
        )
        raise UserError(
            f"num_workers: {shape.num_workers} workers of {needs} each do not fit, there is room "
            f"for {self.num_fitting(shape)} ({self.cpus} CPUs, {self.gpus} GPUs on "
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
