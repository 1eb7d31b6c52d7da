"""Rendezvous of workers, by which they connect: torch's process groups and TensorFlow's TF_CONFIG.

Workers on several hosts use a network interface that is set and tested first. Torch workers on one
host meet through a file, because torch's default, a store on rank 0, listens on all addresses of
the machine without authentication. Both are implemented by extending the method `on_start` of Ray
Train's backends.
"""

import importlib
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from raybench.cluster import connectivity
from raybench.cluster.connectivity import MISNAMED, UNREACHED, VARIABLE, Place
from raybench.training.base import find_part

USED = ("execute_single_async", "get_resources_per_worker")
"""Methods of Ray Train's worker group that are called here."""
_listeners: list[socket.socket] = []
"""Socket on which this worker listens during the test of the network; empty outside the test."""


class Unreached(Exception):  # noqa: N818 (a result that becomes a sentence, not a bug)
    """Raised if workers cannot connect to each other; the message names the hosts and says what to
    do."""


def rendezvous_config(
    framework: str, *, file: str | None = None, interface: str | None = None
) -> dict[str, Any]:
    """Return the keyword argument of a Ray Train trainer that sets the rendezvous of its workers.

    Args:
        framework: `torch` or `tensorflow`.
        file: File for the rendezvous of torch workers on one host; None to set and test the
            workers' network interface instead.
        interface: Network interface set by the user; None to detect it on each host.

    Returns:
        `{"torch_config": ...}` or `{"tensorflow_config": ...}`. Empty if Ray lacks the classes that
        are extended here; torch's store then listens on a port, and the frameworks guess the
        interface.
    """
    name = framework.capitalize()
    try:
        stock: Any = importlib.import_module(f"ray.train.{framework}.config")
        config_class: Any = getattr(stock, f"{name}Config")
        backend_class: Any = getattr(stock, f"_{name}Backend")
    except (ImportError, AttributeError):
        return {}

    class RendezvousBackend(backend_class):  # type: ignore[misc, unused-ignore]
        """Ray's backend, with a rendezvous through a file or a tested interface."""

        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            """Connect all ranks; called by Ray Train once the workers have started."""
            is_alone = len(worker_group) == 1
            if not all(hasattr(worker_group, name) for name in USED):
                if not (file and is_alone):
                    super().on_start(worker_group, backend_config)
                return
            if framework == "torch":
                _hide_gpus(worker_group)
            if file:
                _meet_in_file(worker_group, file, backend_config.timeout_s)
                return
            places = [] if is_alone else connect(worker_group, interface)
            super().on_start(worker_group, backend_config)
            if framework == "tensorflow" and places:
                call_ranks(worker_group, _use_addresses, [(places,) for _ in places])

        def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
            """Leave the process group, if there is one, and delete the file."""
            if not file or len(worker_group) > 1:
                super().on_shutdown(worker_group, backend_config)
            if file:
                Path(file).unlink(missing_ok=True)

    class RendezvousConfig(config_class):  # type: ignore[misc, unused-ignore]
        """Ray's configuration of the framework, with the backend `RendezvousBackend`."""

        @property
        def backend_cls(self) -> type:
            """Backend class, which connects the workers."""
            return RendezvousBackend

    return {f"{framework}_config": RendezvousConfig()}


def _hide_gpus(worker_group: Any) -> None:
    """Hide all GPUs from workers that have none reserved.

    Ray leaves CUDA_VISIBLE_DEVICES unset for such workers, and asks torch for GPUs before the train
    function `serve` begins.
    """
    if not worker_group.get_resources_per_worker().get("GPU", 0):
        call_ranks(worker_group, _see_no_gpu, [()] * len(worker_group))


def _see_no_gpu() -> None:
    """Hide all GPUs from this process; runs in a worker."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _meet_in_file(worker_group: Any, file: str, timeout_s: int) -> None:
    """Create torch's process group on all workers, with a new file for the rendezvous; does nothing
    for a single worker."""
    size, gpus = len(worker_group), worker_group.get_resources_per_worker().get("GPU", 0)
    shared = {"backend": "nccl" if gpus else "gloo", "size": size, "file": file}
    calls = [
        worker_group.execute_single_async(rank, _join, member=rank, timeout_s=timeout_s, **shared)
        for rank in range(size)
        if size > 1
    ]
    ray.get(calls)


def _join(**arguments: Any) -> None:
    """Join torch's process group (`torch.world.meet_in_file`); runs in a worker."""
    find_part("torch", "world").meet_in_file(**arguments)


def _use_addresses(places: list[Place]) -> None:
    """Set the addresses of the workers in TF_CONFIG to the tested ones; runs in a worker."""
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"] = connectivity.replace_hosts(config["cluster"]["worker"], places)
    os.environ["TF_CONFIG"] = json.dumps(config)


def connect(worker_group: Any, interface: str | None) -> list[Place]:
    """Set and test the network interface of every worker; return the address of every rank.

    Args:
        worker_group: Ray Train's worker group.
        interface: Interface set by the user on the driver; None to detect it on each host.

    Raises:
        Unreached: A worker's host lacks the interface, or a worker cannot connect to another one.
    """
    size = len(worker_group)
    rank_0 = ray.get(worker_group.execute_single_async(0, ray.util.get_node_ip_address))
    places = call_ranks(worker_group, _set_interface, [(rank_0, interface, size)] * size)
    _raise_problem(next((answer for answer in places if isinstance(answer, str)), None))
    _raise_problem(connectivity.loopback_problem(places))
    tried = call_ranks(
        worker_group, connectivity.connection_problem, [(rank, places) for rank in range(size)]
    )
    call_ranks(worker_group, _close_listener, [()] * size)
    _raise_problem(next(filter(None, tried), None))
    return places


def call_ranks(worker_group: Any, function: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Call `function(*arguments[r])` on every rank r and return the results by rank."""
    calls = [
        worker_group.execute_single_async(rank, function, *rank_arguments)
        for rank, rank_arguments in enumerate(arguments)
    ]
    answers: list[Any] = ray.get(calls, timeout=2 * connectivity.REACH_TIMEOUT_S)
    return answers


def _raise_problem(sentence: str | None) -> None:
    """Raise Unreached with an error message, if there is one."""
    if sentence is not None:
        raise Unreached(sentence)


def _set_interface(rank_0: str, named: str | None, size: int) -> Place | str:
    """Choose the network interface, set it for Gloo and NCCL, and listen on it; runs in a worker.

    Args:
        rank_0: Address of rank 0.
        named: Interface set by the user on the driver; None if not set.
        size: Number of workers.

    Returns:
        The address at which this worker listens, or an error message if there is no such interface.
    """
    is_named = bool(named or os.environ.get(VARIABLE))
    try:
        place = connectivity.find_place(rank_0, named)
        listener = connectivity.listen_at(place.address, size)
    except (connectivity.NoInterface, OSError) as problem:
        begin = MISNAMED if is_named else UNREACHED
        return (
            f"{begin}on host {socket.gethostname()} {problem}; set an interface of that host: "
            f"{VARIABLE}=NAME."
        )
    os.environ.update(connectivity.interface_variables(place, is_named=is_named))
    _listeners[:] = [listener]
    port = int(listener.getsockname()[1])
    return replace(place, port=port, node=ray.util.get_node_ip_address())


def _close_listener() -> None:
    """Close the socket on which this worker listens; runs in a worker."""
    _listeners.pop().close()
