"""What the machines have, and whether a worker group can fit; needs no Ray."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.cluster.admission import Admission
from raybench.cluster.layout import Node as Node
from raybench.cluster.layout import Reservation, num_nodes
from raybench.core.errors import UserError
from raybench.core.placement import Placement

MOST_NAMED = 4
"""Hosts that a sentence names one by one."""


@dataclass(frozen=True)
class Capacity:
    """What the cluster has, node by node."""

    nodes: tuple[Node, ...]
    memory_bytes: float
    knows_gpus: bool = True
    """False where it cannot be told without the driver's own tools: GPUs are then not refused."""
    grows: bool = False
    """Whether the cluster has an autoscaler: what does not fit may wait for other nodes."""
    driver: Reservation | None = None
    """What the driver itself holds; the nodes are without it."""

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
        needs = f"{placement.cpus_per_worker} CPU" + (
            f" and {placement.gpus_per_worker:g} {f'{kind} ' if kind else ''}GPU"
            if placement.gpus_per_worker
            else ""
        )
        if placement.replicas_per_process > 1:
            raise UserError(
                f"num_workers: the one process of {placement.replicas_per_process} replicas needs "
                f"{needs} of one node, and none has them ({self._words()}){self._driver_words()}; "
                "ask for fewer workers or set strategy: distributed."
            )
        raise UserError(
            f"num_workers: {placement.num_workers} workers of {needs} each do not fit, there is "
            f"room for {self.num_fitting(placement)} ({self._words()}){self._driver_words()}; ask "
            "for fewer workers or connect a larger cluster with --address."
        )

    def _driver_words(self) -> str:
        """Return what the driver keeps from the workers, where it does."""
        if self.driver is None:
            return ""
        amounts = ((self.driver.cpus, "CPU"), (self.driver.gpus, "GPU"))
        held = " and ".join(f"{amount:g} {unit}" for amount, unit in amounts if amount)
        return (
            f", without {held} that the search itself holds on host {self.driver.host} "
            "(--entrypoint-num-cpus of the job)"
        )

    def _words(self) -> str:
        """Return what there is, host by host where there are a few."""
        cpus = f"{self.cpus} CPU{'' if self.cpus == 1 else 's'}"
        sums = f"{cpus}, {self.gpus} GPUs on {len(self.nodes)} host"
        if len(self.nodes) == 1 or len(self.nodes) > MOST_NAMED:
            return sums + ("s" if len(self.nodes) != 1 else "")
        each = [
            f"{node.name or node.id[:8]} {node.cpus:g} and {node.gpus:g}" for node in self.nodes
        ]
        return f"{sums}s: {', '.join(sorted(each))}"


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
