"""A Ray session: connect or start, find out what the cluster has, start the hub."""

import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import ray

from raybench.cluster.admission import Admission, Shape
from raybench.cluster.hub import Hub
from raybench.cluster.lease import shape_of
from raybench.core.errors import UserError
from raybench.core.spec import RunSpec

WORKER_MEMORY_BYTES = 1.2e9
"""Resident memory of an idle worker, measured: torch 0.7 GB, TensorFlow 0.8 GB, and data."""
WORKER_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_USE_LEGACY_KERAS": "0",
    "KERAS_BACKEND": "tensorflow",
}


@dataclass(frozen=True)
class Capacity:
    """What the cluster has, node by node: (CPUs, GPUs)."""

    nodes: tuple[tuple[int, int], ...]
    memory_bytes: float

    @property
    def cpus(self) -> int:
        """CPU cores of all nodes."""
        return sum(cpus for cpus, _ in self.nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(gpus for _, gpus in self.nodes)

    def refuse_infeasible(self, shape: Shape) -> None:
        """Raise UserError for a shape that the whole empty cluster cannot hold."""
        per_node = [
            min(
                cpus // shape.cpus_per_worker,
                gpus // shape.gpus_per_worker if shape.gpus_per_worker else 10**9,
            )
            for cpus, gpus in self.nodes
        ]
        if sum(per_node) < shape.num_workers:
            needs = f"{shape.cpus_per_worker} CPU" + (
                f" and {shape.gpus_per_worker} GPU" if shape.gpus_per_worker else ""
            )
            raise UserError(
                f"num_workers: {shape.num_workers} workers of {needs} each do not fit, the "
                f"cluster has room for {sum(per_node)} ({self.cpus} CPUs, {self.gpus} GPUs); "
                "ask for fewer workers or connect a larger cluster with --address."
            )

    def refuse_infeasible_spec(self, spec: RunSpec) -> None:
        """Raise UserError for a run that the whole empty cluster cannot hold."""
        self.refuse_infeasible(shape_of(spec))


class Session:
    """A Ray connection with a hub; closes what it started."""

    def __init__(self, *, address: str | None = None, log_level: str = "ERROR") -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="raybench-"))
        self._started = False
        address = address or os.environ.get("RAY_ADDRESS")
        if address == "local":
            address = None
        self._is_local = address is None
        _connect(address, log_level)
        self._started = True
        self.capacity = _capacity()
        self.hub = start_hub(
            self.capacity, scratch=str(self.scratch), autoscales=not self._is_local
        )

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all groups and the connection; a cluster it did not start goes on."""
        if not self._started:
            return
        self._started = False
        if not self._is_local:
            # A Ray of our own ends with all its processes; elsewhere others may need the room.
            try:
                ray.get(self.hub.shutdown.remote(), timeout=60)
            except (ray.exceptions.RayError, TimeoutError):
                logging.getLogger(__name__).warning("worker groups were ended with the session")
        ray.shutdown()
        shutil.rmtree(self.scratch, ignore_errors=True)


def start_hub(capacity: Capacity, *, scratch: str, autoscales: bool) -> Any:
    """Start the actor that owns the worker groups; return its handle.

    `autoscales` says that the cluster may grow when workers are asked for.
    """
    one_node = len(capacity.nodes) == 1
    admission = Admission(
        cpus=capacity.cpus,
        gpus=capacity.gpus,
        max_workers=max(int(capacity.memory_bytes * 0.8 / WORKER_MEMORY_BYTES), capacity.cpus),
        idle_holds_cpus=not one_node,
    )
    options = {
        "reserve_cpus": not one_node,
        "autoscales": autoscales,
        "search_path": str(Path.cwd()),
        "scratch": scratch,
    }
    remote = ray.remote(num_cpus=0, max_concurrency=10_000)(Hub)
    hub = remote.remote(admission, options)
    ray.get(hub.attach.remote(hub))
    return hub


def _connect(address: str | None, log_level: str) -> None:
    # Ray's own processes read these too, so they are set before it starts.
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=log_level,
            configure_logging=True,
            # A local Ray inherits this process's environment, and its prestarted workers serve.
            runtime_env={"env_vars": WORKER_ENVIRONMENT} if address else None,
        )
    except ConnectionError as error:
        raise UserError(
            f"--address {address}: no Ray cluster answers there "
            f"({str(error).splitlines()[0]}); start one with: ray start --head."
        ) from None


def _capacity() -> Capacity:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = tuple((int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in alive)
    return Capacity(
        nodes=tuple(node for node in nodes if any(node)),
        memory_bytes=sum(float(node.get("memory", 0.0)) for node in alive),
    )
