"""A Ray session: connect to a cluster or start Ray, read the resources, start the worker pool."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybench.cluster.layout import Capacity, Node, as_nodes
from raybench.cluster.ray_internals import local_ray
from raybench.cluster.ray_internals.nodes import has_autoscaler
from raybench.cluster.ray_internals.rendezvous import INTERFACE_VARIABLE
from raybench.cluster.ray_internals.trainer import TRAIN_SWITCHES
from raybench.cluster.scheduler import ResourceScheduler, WaitingTrial
from raybench.cluster.session_files import DATA, scratch_folder
from raybench.cluster.signals import without_hangup
from raybench.cluster.worker_group import PoolOptions
from raybench.cluster.worker_pool import WorkerPool
from raybench.data.dataset import Dataset
from raybench.data.load import STORED
from raybench.data.memory import num_local_cores
from raybench.data.store import share
from raybench.models.user_code import refuse_hiding_files
from raybench.spec.errors import ErrorCode, UserError
from raybench.training.machine import ALLOCATOR_ENVIRONMENT

WORKER_MEMORY_BYTES = 1.2e9
"""Memory in bytes assumed for an idle worker (measured: 0.7 GB for torch, 0.8 GB for TensorFlow,
each plus the data)."""
WORKER_ENVIRONMENT = {
    **TRAIN_SWITCHES,
    **ALLOCATOR_ENVIRONMENT,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_USE_LEGACY_KERAS": "0",
    "KERAS_BACKEND": "tensorflow",
    # Number the GPUs as Ray and NVIDIA's driver do; CUDA's own order is fastest first.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""Environment variables of all workers."""
TASK_S = 300.0
"""Timeout in seconds of a task on a node."""
ANSWER_S = 10.0
"""Timeout in seconds of a call to the pool, whose event loop never blocks."""
QUIET: dict[str, Any] = {
    "log_to_driver": False,
    "logging_level": "ERROR",
    "configure_logging": True,
}
"""Arguments of `ray.init` that suppress Ray's own messages."""
LOCAL_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
"""Environment variables of workers if Ray runs on this machine only: they communicate over the
loopback interface."""


class Session:
    """A Ray connection with a worker pool, as a context manager.

    On exit, everything that the session has started is ended. If raybench has started Ray itself
    and other hosts can reach it, `warning` is a sentence that says so, otherwise None. Callers
    append to `notes` sentences about the machine's state at the start, for `study.yaml`.
    """

    def __init__(self, *, address: str | None = None) -> None:
        """Connect to the cluster at `address` (see `chosen_address`), or start Ray if it is None.

        Raises:
            UserError: Ray already runs in this process, or no cluster answers at the address.
        """
        if ray.is_initialized():
            raise UserError(
                "Ray is already running in this process; shut it down first: ray.shutdown().",
                ErrorCode.CONFLICT,
            )
        refuse_hiding_files(Path.cwd())
        self._resources = contextlib.ExitStack()
        """Contexts that are exited after the connection is closed."""
        self.scratch = self._resources.enter_context(scratch_folder())
        self._started = False
        address = chosen_address(address)
        self.is_local = address is None
        try:
            with local_ray.keep_signal_handler(), without_hangup():
                if address is None:
                    self._resources.enter_context(local_ray.session_token())
                    # Ray's own processes read these variables too, so they are set before.
                    self._resources.enter_context(local_ray.environment_set(WORKER_ENVIRONMENT))
                    _start_local()
                else:
                    _connect(address)
            self._started = True
            self.capacity = _capacity(is_local=self.is_local)
            self.pool = start_pool(self.capacity, scratch=str(self.scratch), is_local=self.is_local)
            pool_process: int = ray.get(self.pool.attach.remote(self.pool))
        except BaseException:
            self.close()
            raise
        self._processes = [*local_ray.ray_processes(), pool_process] if self.is_local else []
        self.warning = local_ray.warning() if self.is_local else None
        self.notes: list[str] = []

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def lost(self) -> str | None:
        """Return a sentence if processes of the Ray that this session has started are gone;
        otherwise None."""
        if not all(local_ray.is_running(process) for process in self._processes):
            return "Ray's own processes were killed or have crashed (out of memory?)"
        return None

    def waiting(self) -> dict[str, WaitingTrial]:
        """Return the requests of all trials that wait for workers, keyed by trial name.

        The result is empty if the pool does not answer in time. May be called in any thread.
        """
        return self._ask(self.pool.waiting.remote())

    def nodes(self) -> tuple[Node, ...]:
        """Return the current nodes of the cluster."""
        return tuple(ray.get(self.pool.nodes.remote()))

    def share(self, datasets: Mapping[str, Dataset]) -> None:
        """Write datasets to files that all workers on this host memory-map.

        `datasets` is keyed by `data.store.shared_key`. Datasets that are stored on disk anyway are
        skipped.
        """
        for key, dataset in datasets.items():
            if dataset.name not in STORED:
                share(dataset, self.scratch / DATA / key)

    def stop_waiting(self) -> None:
        """Cancel the requests of all trials that are waiting for workers now."""
        self.pool.stop_waiting.remote()

    def stop_running(self, least_s: float = 0.0) -> dict[str, float]:
        """End the workers of all runs that have not answered a command for `least_s` seconds.

        A run that is evaluating the test split is given more time (`worker_pool.TEST_S`).

        Returns:
            Seconds since that command for each run whose workers were ended, keyed by run name.
            Empty if the pool does not answer in time.
        """
        return self._ask(self.pool.stop_running.remote(least_s))

    def _ask(self, reference: Any) -> dict[str, Any]:
        """Return the result of a call to the pool; empty if it takes longer than ANSWER_S."""
        try:
            return dict(ray.get(reference, timeout=ANSWER_S))
        except ray.exceptions.GetTimeoutError:
            return {}

    def close(self) -> None:
        """Close all worker groups and the connection; a cluster that was already running keeps
        running."""
        if self._started and not self.is_local:
            # On a cluster, the groups' resources must be released. A Ray that this session has
            # started ends together with all its processes.
            try:
                ray.get(self.pool.shutdown.remote(), timeout=60)
            except (ray.exceptions.RayError, TimeoutError):
                logging.getLogger(__name__).warning("worker groups were ended with the session")
        self._started = False
        ray.shutdown()
        self._resources.close()


def on_node(node: str, function: Callable[..., Any]) -> Any:
    """Return `function` as a Ray task that runs on the node with id `node` and reserves no core."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=there, max_retries=0)(function)


def check_files_there(nodes: Iterable[Node], files: Sequence[Path]) -> None:
    """Raise UserError if any of the nodes lacks one of the files, which all workers read."""
    names = [str(file) for file in files]
    tasks = {node: on_node(node.id, _missing_there).remote(names) for node in nodes if names}
    for node, task in tasks.items():
        if missing := ray.get(task, timeout=TASK_S):
            raise UserError(
                f"host {node.name} has no {missing[0]}: files are sent to hosts only for a "
                "submitted job; move it to a folder that all hosts share, or submit the command "
                "with its folder: ray job submit --working-dir . -- python -m raybench.tune ...",
                ErrorCode.NOT_FOUND,
            )


def _missing_there(names: list[str]) -> list[str]:
    """Return the files that do not exist on the node on which this task runs."""
    return [name for name in names if not Path(name).exists()]


def chosen_address(address: str | None) -> str | None:
    """Return the address of the cluster to connect to; None to start Ray on this machine.

    Without `address`, the environment variable RAY_ADDRESS is used, but only in a job of `ray job
    submit`, where Ray has set it. Elsewhere, a variable left over in a shell would send a study to
    a cluster that the user did not choose.
    """
    if address is None and local_ray.is_submitted_job():
        address = os.environ.get("RAY_ADDRESS")
    return None if address in (None, "", "local") else address


def start_pool(capacity: Capacity, *, scratch: str, is_local: bool) -> Any:
    """Start the actor that owns the worker groups.

    The caller must then call the actor's method `attach` with the returned handle.

    Args:
        capacity: Resources of the cluster.
        scratch: The session's temporary folder on this host.
        is_local: Whether raybench has started Ray itself, on this machine only.

    Returns:
        The handle of the actor, whose class is `WorkerPool`.
    """
    options = PoolOptions(
        scratch=scratch,
        search_path=str(Path.cwd()),
        is_local=is_local,
        grows=capacity.grows,
        interface=os.environ.get(INTERFACE_VARIABLE) or None,
    )
    by_memory = max(int(capacity.memory_bytes * 0.8 / WORKER_MEMORY_BYTES), capacity.cpus)
    scheduler = ResourceScheduler(
        nodes=capacity.nodes,
        # On a cluster, the cores reserved in Ray limit the number of workers.
        max_workers=by_memory if is_local else 10**9,
        on_cluster=not is_local,
    )
    # The pool runs on the driver's node: if that node is lost, the study ends anyway.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote = ray.remote(num_cpus=0, max_concurrency=10_000, scheduling_strategy=here)(WorkerPool)
    return remote.remote(scheduler, options)


def _start_local() -> None:
    """Start Ray on this machine, reachable only over the loopback interface."""
    with (
        local_ray.on_loopback(),
        local_ray.same_niceness(),
        local_ray.environment_set(LOCAL_ENVIRONMENT),
    ):
        ray.init(
            address="local",
            num_cpus=num_local_cores(),
            include_dashboard=False,
            **QUIET,
        )


def _connect(address: str) -> None:
    """Connect to the cluster at `address`; raise UserError if none answers there."""
    # Leave out variables that the job's --runtime-env sets already; Ray refuses to set them again.
    set_by_job = local_ray.job_environment()
    environment = {
        name: value for name, value in WORKER_ENVIRONMENT.items() if name not in set_by_job
    }
    os.environ.update(environment)
    try:
        ray.init(
            address=address,
            **QUIET,
            runtime_env={"env_vars": environment},
        )
    except ConnectionError as error:
        raise UserError(
            f"--address {address}: no Ray cluster answers there "
            f"({str(error).splitlines()[0]}); start one with: ray start --head.",
            ErrorCode.UNREACHABLE,
        ) from None


def _capacity(*, is_local: bool) -> Capacity:
    """Return the resources of the Ray instance to which this process is connected."""
    entries = ray.nodes()
    memory_bytes = sum(
        float(entry["Resources"].get("memory", 0.0)) for entry in entries if entry["Alive"]
    )
    grows = not is_local and has_autoscaler()
    return Capacity(as_nodes(entries), memory_bytes, grows=grows)
