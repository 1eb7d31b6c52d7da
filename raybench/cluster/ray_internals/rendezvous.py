"""Rendezvous of workers: torch's process groups and TensorFlow's TF_CONFIG.

Workers on several hosts meet over an interface that is set and tested first, torch's workers on one
host through a file: by default torch starts a store on rank 0, which listens on all addresses of
the machine without a token. Extends `on_start` of the backends of Ray Train's configurations.
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
"""Methods of Train's worker group that are called."""
_listeners: list[socket.socket] = []
"""Socket of a worker while the others test it."""


class Unreached(Exception):  # noqa: N818 (it becomes the group's end, in one sentence)
    """The workers do not reach each other; the message names the hosts and what to set."""


def meeting(
    framework: str, *, file: str | None = None, interface: str | None = None
) -> dict[str, Any]:
    """Return the argument of a trainer that sets the rendezvous of its workers.

    Args:
        framework: `torch` or `tensorflow`.
        file: file for the rendezvous of the workers of one host; None sets and tests their network
            interface first.
        interface: interface that the user named; None finds each host's.

    Returns:
        The trainer's argument; none if Ray lacks what is extended. Then torch's store listens on a
        port, and the frameworks guess the interface.
    """
    name = framework.capitalize()
    try:
        stock: Any = importlib.import_module(f"ray.train.{framework}.config")
        config_class: Any = getattr(stock, f"{name}Config")
        backend_class: Any = getattr(stock, f"_{name}Backend")
    except (ImportError, AttributeError):
        return {}

    class Meets(backend_class):  # type: ignore[misc, unused-ignore]
        """Ray's backend, after a test that the workers reach each other."""

        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            """Make every rank join; called by Ray Train once the workers are there."""
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
                each(worker_group, _use_addresses, [(places,) for _ in places])

        def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
            """Leave the process group, if there is one."""
            if not file or len(worker_group) > 1:
                super().on_shutdown(worker_group, backend_config)
            if file:
                Path(file).unlink(missing_ok=True)

    class Meeting(config_class):  # type: ignore[misc, unused-ignore]
        """Ray's configuration, with another backend."""

        @property
        def backend_cls(self) -> type:
            """Return the backend, which sets the workers up."""
            return Meets

    return {f"{framework}_config": Meeting()}


def _hide_gpus(worker_group: Any) -> None:
    """Hide the GPUs from workers without any, before torch is first asked for them, which Ray does
    before `serve` begins. Ray itself leaves CUDA_VISIBLE_DEVICES unset."""
    if not worker_group.get_resources_per_worker().get("GPU", 0):
        each(worker_group, _see_no_gpu, [()] * len(worker_group))


def _see_no_gpu() -> None:
    """Hide all GPUs, in a worker."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _meet_in_file(worker_group: Any, file: str, timeout_s: int) -> None:
    """Make torch's process group through a new file; a single worker needs none."""
    size, gpus = len(worker_group), worker_group.get_resources_per_worker().get("GPU", 0)
    named = {"backend": "nccl" if gpus else "gloo", "size": size, "file": file}
    joining = [
        worker_group.execute_single_async(rank, _join, member=rank, timeout_s=timeout_s, **named)
        for rank in range(size)
        if size > 1
    ]
    ray.get(joining)


def _join(**arguments: Any) -> None:
    """Join the process group, in a worker."""
    find_part("torch", "world").meet_in_file(**arguments)


def _use_addresses(places: list[Place]) -> None:
    """Set TensorFlow's addresses to those that were tested, in a worker."""
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"] = connectivity.with_hosts(config["cluster"]["worker"], places)
    os.environ["TF_CONFIG"] = json.dumps(config)


def connect(worker_group: Any, interface: str | None) -> list[Place]:
    """Set the interface in every worker and test it; return the places, or raise Unreached."""
    size = len(worker_group)
    rank_0 = ray.get(worker_group.execute_single_async(0, ray.util.get_node_ip_address))
    found = each(worker_group, _take_interface, [(rank_0, interface, size)] * size)
    _raise_problem(next((answer for answer in found if isinstance(answer, str)), None))
    _raise_problem(connectivity.misnamed(found))
    tried = each(worker_group, connectivity.unreached, [(rank, found) for rank in range(size)])
    each(worker_group, _close_listener, [()] * size)
    _raise_problem(next(filter(None, tried), None))
    return found


def each(worker_group: Any, function: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Call the function on rank r with arguments r; return the answers by rank."""
    calls = [
        worker_group.execute_single_async(rank, function, *given)
        for rank, given in enumerate(arguments)
    ]
    answers: list[Any] = ray.get(calls, timeout=2 * connectivity.REACH_TIMEOUT_S)
    return answers


def _raise_problem(sentence: str | None) -> None:
    if sentence is not None:
        raise Unreached(sentence)


def _take_interface(rank_0: str, named: str | None, size: int) -> Place | str:
    """Find the interface, set it for Gloo and NCCL, and listen on it, in a worker."""
    is_named = bool(named or os.environ.get(VARIABLE))
    try:
        place = connectivity.place_of(rank_0, named)
        listener = connectivity.opened_at(place.address, size)
    except (connectivity.NoInterface, OSError) as problem:
        begin = MISNAMED if is_named else UNREACHED
        return (
            f"{begin}on host {socket.gethostname()} {problem}; name one that it has: "
            f"{VARIABLE}=NAME."
        )
    os.environ.update(connectivity.environment(place, is_named=is_named))
    _listeners[:] = [listener]
    port = int(listener.getsockname()[1])
    return replace(place, port=port, node=ray.util.get_node_ip_address())


def _close_listener() -> None:
    """Close the socket, in a worker."""
    _listeners.pop().close()
