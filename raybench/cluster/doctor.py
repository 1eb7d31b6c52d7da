"""Data for `raybench doctor`: hardware, drivers and software of every node, and network speed.

A Ray task on each node collects the node's data. The network is measured by a worker group like
those of a study. `examine` returns the plain data that `raybench doctor --json` prints.
"""

import os
import statistics
from typing import Any

import ray

from raybench.cluster.protocol import Measure, MeasuredSums, RunFailed
from raybench.cluster.session import TASK_S, Session, on_node
from raybench.spec.run import FRAMEWORKS, ResourceRequest
from raybench.training.machine import (
    Facts,
    machine_facts,
    notes_of,
    problems_between,
    problems_of,
)

VERSION = 2
"""Version of the JSON document, incremented when a key is removed or changes its meaning."""
SIZES = (4 * 2**10, 2**20, 32 * 2**20)
"""Sizes of the all-reduces in bytes: the smallest measures latency, the largest bandwidth."""
ROUNDS = 5
"""Number of all-reduces of each size."""
WORKERS_S, MEASURE_S = 60.0, 120.0
"""Timeouts in seconds for starting the workers and for running the all-reduces."""
MAX_WORKERS = 8
"""Maximum number of workers in a network measurement on a single host."""
NAME, INSIDE = "doctor", "doctor-inside"
"""Run names of the two network measurements, whose results are `network` and `inside` in the JSON
document. The names must differ, because the pool gives workers to each name only once."""


def examine(session: Session, address: str | None) -> Facts:
    """Return the JSON document of `raybench doctor`.

    Args:
        session: The Ray session.
        address: Address that the user gave with `--address`; None if none was given.

    Returns:
        Facts about each host, all-reduce times, problems and notes; `ok` is True if there are no
        problems. With several hosts, `network` is measured between hosts and `inside` within one
        host; with a single host, `network` is measured within it. A measurement that was not made
        is None.
    """
    entries = [entry for entry in ray.nodes() if entry["Alive"]]
    hosts, problems = [], []
    notes = [session.warning] if session.warning else []
    for entry, facts in zip(entries, _facts_of(entries), strict=True):
        if isinstance(facts, str):
            problems.append(facts)
            continue
        facts |= {
            "address": entry["NodeManagerAddress"],
            "ray_cpus": entry["Resources"].get("CPU", 0.0),
            "ray_gpus": entry["Resources"].get("GPU", 0.0),
        }
        hosts.append(facts)
        problems += problems_of(facts, facts["ray_gpus"])
        notes += notes_of(facts)
    problems += problems_between(hosts)
    request = network_group(hosts)
    network = _network(session, NAME, request, problems, notes)
    inside = None
    if network and (within := single_host_group(hosts, request)):
        inside = _network(session, INSIDE, within, problems, notes)
    return {
        "version": VERSION,
        "ok": not problems,
        "address": address,
        "hosts": hosts,
        "network": network,
        "inside": inside,
        "problems": problems,
        "notes": notes,
    }


def _facts_of(entries: list[dict[str, Any]]) -> list[Facts | str]:
    """Return the data of every node, collected in parallel; for a node whose task has failed, an
    error message instead."""
    tasks = [
        on_node(entry["NodeID"], _facts_there).remote(bool(entry["Resources"].get("GPU")))
        for entry in entries
    ]
    results: list[Facts | str] = []
    for entry, task in zip(entries, tasks, strict=True):
        try:
            results.append(ray.get(task, timeout=TASK_S))
        except ray.exceptions.RayError as error:
            last_line = str(error).strip().splitlines()[-1]
            results.append(
                f"host {entry['NodeManagerHostname']}: its hardware and software could not be read "
                f"({last_line}); is raybench installed there, for the same Python version?"
            )
    return results


def _facts_there(has_gpus: bool) -> Facts:
    """Return the data of the node on which this task runs; `has_gpus` is whether Ray knows of GPUs
    on it."""
    # Some versions of Ray hide the GPUs from a task that reserves none.
    if has_gpus and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return machine_facts()


def network_group(hosts: list[Facts]) -> ResourceRequest | None:
    """Return the worker group that measures the network.

    With several hosts, one worker runs on each host that has CPUs in Ray, with a GPU if all these
    hosts have one. With a single host, several workers run on it, each with a GPU if the host has
    at least two GPUs. The result is None if only one worker is possible, or if no framework works
    on all hosts.
    """
    if not (hosts := [host for host in hosts if host["ray_cpus"] >= 1]):
        return None
    every = [host["gpus"] for host in hosts]
    works = [
        name
        for name in FRAMEWORKS
        if all(name in gpus and not gpus[name]["problem"] for gpus in every)
    ]
    if not works:
        return None
    gpus = min(int(host["ray_gpus"]) for host in hosts)
    each = 1 if gpus else 0
    if len(hosts) > 1:
        return ResourceRequest(works[0], len(hosts), gpus_per_worker=each, packing="spread")
    room = gpus if gpus > 1 else min(int(hosts[0]["ray_cpus"]), 2)
    each = 1 if gpus > 1 else 0
    number = min(room, int(hosts[0]["ray_cpus"]), MAX_WORKERS)
    return ResourceRequest(works[0], number, gpus_per_worker=each) if number > 1 else None


def single_host_group(
    hosts: list[Facts], between: ResourceRequest | None
) -> ResourceRequest | None:
    """Return a worker group on a single host, for comparison with a group on several hosts.

    `raybench scale --fit --network` needs the ratio of the all-reduce times of these two groups.

    Args:
        hosts: Facts about each host.
        between: Group that measures the network between the hosts.

    Returns:
        A group with the framework and the GPUs per worker of `between`. None if `between` is itself
        on a single host, or if no host has room for such a group.
    """
    if between is None or between.packing != "spread":
        return None
    for request in filter(None, (network_group([host]) for host in hosts)):
        is_alike = request.framework == between.framework
        if is_alike and request.gpus_per_worker == between.gpus_per_worker:
            return request
    return None


def _network(
    session: Session,
    name: str,
    request: ResourceRequest | None,
    problems: list[str],
    notes: list[str],
) -> Facts | None:
    """Measure all-reduces between workers; if that fails, return None and append the reason to
    `problems` or `notes`."""
    if request is None:
        return None
    pool = session.pool
    try:
        ray.get(pool.acquire.remote(name, request), timeout=WORKERS_S)
        replies = ray.get(pool.command.remote(name, Measure(SIZES, ROUNDS), MEASURE_S))
    except RunFailed as failure:
        problems.append(f"{request.num_workers} workers: {failure.message.rstrip('.')}.")
        return None
    except ray.exceptions.GetTimeoutError:
        notes.append(
            f"the network was not measured: {request.num_workers} workers did not start within "
            f"{WORKERS_S:g} s; rerun raybench doctor when the cluster has room for them."
        )
        return None
    finally:
        ray.get(pool.release.remote(name, keep=False, for_good=True))
    return summary(request, replies)


def summary(request: ResourceRequest, replies: list[Any]) -> Facts:
    """Return the network section of the JSON document, computed from all workers' `MeasuredSums`.

    The time of an all-reduce is that of its slowest worker. For each size, the section has the
    median of these times over all rounds, in seconds.
    """
    assert all(isinstance(reply, MeasuredSums) for reply in replies)
    sizes = []
    for size in replies[0].seconds:
        rounds = zip(*(reply.seconds[size] for reply in replies), strict=True)
        seconds = statistics.median(max(times) for times in rounds)
        sizes.append({"bytes": size, "seconds": seconds, "bytes_per_s": size / seconds})
    return {
        "workers": request.num_workers,
        "gpus_per_worker": request.gpus_per_worker,
        "framework": request.framework,
        "through": replies[0].through,
        "interfaces": sorted({reply.interface for reply in replies} - {""}),
        "sizes": sizes,
    }
