"""Workers of several hosts: the interface set and tried before their framework connects them.

Called by network_torch and network_tensorflow, from which Ray's own `on_start` then goes on.
"""

import os
import socket
from dataclasses import replace
from typing import Any

import ray

from raybench.cluster.connectivity import (
    MISNAMED,
    REACH_TIMEOUT_S,
    UNREACHED,
    VARIABLE,
    NoInterface,
    Place,
    environment,
    listen,
    misnamed,
    place_of,
    sum_over_workers,
    worst,
)

USED = ("execute_single_async", "get_resources_per_worker")
"""What is called of Train's worker group."""
_listeners: list[socket.socket] = []
"""In a worker: its socket between the two halves of the check."""


class Unreached(Exception):  # noqa: N818 (it becomes the group's end, in one sentence)
    """The workers do not reach each other; says between which hosts, and what to set."""


def can_be_tried(worker_group: Any) -> bool:
    """Whether there are several workers, in a group that offers what is called here."""
    return len(worker_group) > 1 and is_known(worker_group)


def is_known(worker_group: Any) -> bool:
    """Whether a group offers what is called here."""
    return all(hasattr(worker_group, name) for name in USED)


def hide_gpus(worker_group: Any) -> None:
    """Let workers of cores alone see no GPU, before anything of torch's wakes them: Ray leaves
    CUDA_VISIBLE_DEVICES as it is, and asks torch whether there are any before `serve` begins."""
    if not worker_group.get_resources_per_worker().get("GPU", 0):
        ranks = range(len(worker_group))
        ray.get([worker_group.execute_single_async(rank, _see_no_gpu) for rank in ranks])


def _see_no_gpu() -> None:
    """In a worker."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def connect(worker_group: Any, interface: str | None) -> list[Place]:
    """Set the interface in every worker and try it; return where they are, or raise Unreached."""
    size = len(worker_group)
    rank_0 = ray.get(worker_group.execute_single_async(0, ray.util.get_node_ip_address))
    found = each(worker_group, _take_interface, [(rank_0, interface, size)] * size)
    _raise_problem(next((answer for answer in found if isinstance(answer, str)), None))
    _raise_problem(misnamed(found))
    sums = each(worker_group, _add_up, [(rank, found) for rank in range(size)])
    _raise_problem(worst(sums))
    return found


def each(worker_group: Any, function: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Let rank r call the function with the arguments r; return the answers by rank."""
    calls = [
        worker_group.execute_single_async(rank, function, *given)
        for rank, given in enumerate(arguments)
    ]
    answers: list[Any] = ray.get(calls, timeout=2 * REACH_TIMEOUT_S)
    return answers


def _raise_problem(sentence: str | None) -> None:
    if sentence is not None:
        raise Unreached(sentence)


def _take_interface(rank_0: str, named: str | None, size: int) -> Place | str:
    """In a worker: find the interface, tell Gloo and NCCL, and listen there."""
    is_named = bool(named or os.environ.get(VARIABLE))
    try:
        place = place_of(rank_0, named)
        listener = listen(place.address, size)
    except (NoInterface, OSError) as problem:
        begin = MISNAMED if is_named else UNREACHED
        return (
            f"{begin}on host {socket.gethostname()} {problem}; name one that it has: "
            f"{VARIABLE}=NAME."
        )
    os.environ.update(environment(place, is_named=is_named))
    _listeners[:] = [listener]
    port = int(listener.getsockname()[1])
    return replace(place, port=port, node=ray.util.get_node_ip_address())


def _add_up(rank: int, places: list[Place]) -> int | str:
    """In a worker: the other half of the check."""
    return sum_over_workers(_listeners.pop(), rank, places)
