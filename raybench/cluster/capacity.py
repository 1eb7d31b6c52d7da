"""Resources of a cluster or of this machine, and which worker groups can never fit."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raybench.cluster.layout import DriverResources, Node, lay_out, num_nodes
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import Placement
from raybench.training.machine import num_visible, nvml_sees

NVIDIA_FOLDER, AMD_DEVICE = Path("/proc/driver/nvidia/gpus"), Path("/dev/kfd")
"""A folder with an entry for each GPU, missing in some containers; a device of AMD's driver."""
MAX_NAMED_HOSTS = 4
"""Number of hosts up to which a sentence names each."""


@dataclass(frozen=True)
class Capacity:
    """Resources of the cluster, node by node."""

    nodes: tuple[Node, ...]
    memory_bytes: float
    knows_gpus: bool = True
    """False if the GPUs cannot be counted without the driver's tools; none are then refused."""
    grows: bool = False
    """Whether the cluster has an autoscaler, so that other nodes may join."""
    driver: DriverResources | None = None
    """Resources of the study's own process, which `nodes` leave out."""

    @property
    def cpus(self) -> int:
        """CPU cores of all nodes."""
        return int(sum(node.cpus for node in self.nodes))

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return int(sum(node.gpus for node in self.nodes))

    def document(self) -> dict[str, Any]:
        """Return the resources as plain data for YAML."""
        return {"nodes": [{"cpus": node.cpus, "gpus": node.gpus} for node in self.nodes]}

    def num_fitting(self, placement: Placement) -> int:
        """Return how many of a group's workers fit the empty nodes."""
        return sum(node.room(placement) for node in self.nodes)

    def most_workers(self, placement: Placement) -> int:
        """Return how many such workers the empty cluster holds, in any number of groups."""
        many = max(self.cpus, placement.num_workers)
        return self.num_fitting(replace(placement, num_workers=many))

    def most_groups(self, placement: Placement, slots: int) -> int:
        """Return how many such groups the empty cluster holds, from 1 to `slots`."""
        return max(1, min(slots, self.most_workers(placement) // placement.num_workers))

    def fits_together(self, placements: Iterable[Placement]) -> bool:
        """Whether the groups can run at the same time."""
        free = list(self.nodes)
        for placement in placements:
            nodes = lay_out(placement, free, self.nodes)
            if nodes is None:
                return False
            for node in nodes:
                free[node] = free[node].without(
                    placement.cpus_per_worker, placement.gpus_per_worker
                )
        return True

    def fits(self, placement: Placement) -> bool:
        """Whether the empty cluster holds the group."""
        if placement.gpus_per_worker and not self.knows_gpus:
            return not placement.shares_a_gpu
        return num_nodes(placement, self.nodes) > 0

    def may_hold(self, placement: Placement) -> bool:
        """Whether the empty cluster holds the group, or may grow for it."""
        return self.fits(placement) or (self.grows and not placement.shares_a_gpu)

    def refuse_infeasible(self, placement: Placement) -> None:
        """Raise UserError for a group that the empty cluster does not hold and cannot grow for."""
        if self.may_hold(placement):
            return
        if placement.shares_a_gpu:
            raise UserError(
                f"gpus_per_worker: {placement.gpus_per_worker} of a GPU is for num_workers 1: of "
                f"{placement.num_workers} workers each needs a whole one (NCCL refuses two on "
                "one); set gpus_per_worker: 1.",
                ErrorCode.CONFLICT,
            )
        kind = placement.accelerator_type
        if kind and not any(node.accelerator == kind for node in self.nodes):
            there = sorted({node.accelerator for node in self.nodes if node.accelerator})
            has = f"it has {', '.join(there)}" if there else "no node names a type of its GPUs"
            raise UserError(
                f"accelerator_type: the cluster has no {kind}, {has}; leave the key out to take "
                "any, or connect another cluster with --address.",
                ErrorCode.NO_ROOM,
            )
        needs = f"{placement.cpus_per_worker} CPU"
        if placement.gpus_per_worker:
            needs += f" and {placement.gpus_per_worker:g} {f'{kind} ' if kind else ''}GPU"
        if placement.replicas_per_process > 1:
            raise UserError(
                f"num_workers: the one process of {placement.replicas_per_process} replicas needs "
                f"{needs} of one node, and none has them ({self._words()}; ask for fewer workers "
                "or set strategy: distributed.",
                ErrorCode.NO_ROOM,
            )
        raise UserError(
            f"num_workers: {placement.num_workers} workers of {needs} each do not fit, there is "
            f"room for {self.num_fitting(placement)} ({self._words()}; ask for fewer workers or "
            "connect a larger cluster with --address.",
            ErrorCode.NO_ROOM,
        )

    def _words(self) -> str:
        """Return the resources in words, by host if there are few, and those of the driver."""
        hosts = len(self.nodes)
        said = f"{self.cpus} CPU{'' if self.cpus == 1 else 's'}, {self.gpus} GPUs on {hosts} host"
        said += "s" if hosts != 1 else ""
        if 1 < hosts <= MAX_NAMED_HOSTS:
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
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def local_capacity() -> Capacity:
    """Return the resources that a Ray of our own would have on this machine.

    GPUs are counted by the driver (NVML), as Ray and `raybench doctor` count them.
    """
    driver = nvml_sees()
    number = len(driver.names) or len(list(NVIDIA_FOLDER.glob("*")))
    gpus = num_visible(number, os.environ.get("CUDA_VISIBLE_DEVICES"))
    others = AMD_DEVICE.exists() or (driver.problem and shutil.which("nvidia-smi"))
    is_known = bool(number) or not others
    return Capacity((Node(num_local_cores(), gpus),), memory_bytes=0.0, knows_gpus=is_known)
