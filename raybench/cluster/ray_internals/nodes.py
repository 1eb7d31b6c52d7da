"""The nodes of a cluster: free resources, announced shutdowns, and requests to an autoscaler.

Ray itself requests nodes only for processes that were submitted to it. Worker groups that wait in
raybench's queue are unknown to Ray, so nodes for them are requested here.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
from ray._private import state

from raybench.cluster.layout import Node
from raybench.spec.run import Placement

ADDRESS = "node:"
"""Prefix of a resource of which every node has one unit; the node's address follows."""
NOMINAL = 0.0001


def driver_host_resources() -> dict[str, float]:
    """Return resources that start an actor on the driver's host and reserve almost nothing.

    Used for Tune's trial actors. They wait for the worker pool without a timeout, and Ray does not
    repeat an answer that was lost between hosts, so they must be on the pool's host.
    """
    here = ray.get_runtime_context().get_node_id()
    addresses = (node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
    return {f"{ADDRESS}{next(addresses)}": NOMINAL}


def draining_nodes() -> frozenset[str]:
    """Return Ray's ids of the nodes about to be shut down; empty if Ray does not report them.

    Ray Train learns of a preemption from the same source.
    """
    ask = getattr(state.state, "get_draining_nodes", None)
    return frozenset() if ask is None else frozenset(ask())


NEGLIGIBLE = 0.05
"""Reservations of at most this many CPUs or GPUs are ignored, such as those of Tune's trials and
raybench's nominal ones."""


def available() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of every node, by node id.

    Empty if Ray does not report them; use by other jobs is then noticed only when a group fails to
    start.
    """
    ask: Any = getattr(state, "available_resources_per_node", None)
    found: Mapping[str, Mapping[str, float]] = ask() if ask is not None else {}
    return found


def taken_by_others(
    nodes: Sequence[Node],
    held: Sequence[tuple[float, float]],
    free: Mapping[str, Mapping[str, float]],
) -> list[tuple[float, float]]:
    """Return the (CPU cores, GPUs) of every node that are neither free nor `held` by our groups.

    Never negative numbers, although Ray's and our bookkeeping differ for a moment while one of our
    groups starts or ends. A node that is missing in `free` has no free resources.
    """
    taken = []
    for node, (cpus, gpus) in zip(nodes, held, strict=True):
        if not free or node.is_gone:
            taken.append((0.0, 0.0))
            continue
        left = free.get(node.id, {})
        others = node.cpus - cpus - left.get("CPU", 0.0), node.gpus - gpus - left.get("GPU", 0.0)
        others_cpus, others_gpus = (
            round(amount, 4) if amount > NEGLIGIBLE else 0.0 for amount in others
        )
        taken.append((others_cpus, others_gpus))
    return taken


STATUS = "__autoscaling_status"
"""Key of the autoscaler's report in Ray's key-value store."""
UNMANAGED = "node_"
"""Prefix of a node's type if there is no autoscaler; each node then has a type of its own."""
ANY_OF_A_MODEL = 0.001
FIRST_REPORT_S = 10.0
"""Seconds to wait for the first report of a head node that has just started."""


def has_autoscaler() -> bool:
    """Whether the cluster can start nodes by itself.

    False if the nodes were started by hand (every node then has a type of its own in the
    autoscaler's report), or if the report is not as expected.
    """
    until = time.monotonic() + FIRST_REPORT_S
    try:
        kinds = _kinds()
        while not kinds and time.monotonic() < until:  # without types, the head has just started
            time.sleep(0.5)
            kinds = _kinds()
    except (ImportError, AttributeError):
        return False
    return any(kind and not kind.startswith(UNMANAGED) for kind in kinds)


def request(bundles: Sequence[Mapping[str, float]]) -> None:
    """Request a cluster that holds all resource bundles at once; replaces the previous request."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(bundle) for bundle in bundles])


def resource_bundles(
    placements: Iterable[Placement], taken: Iterable[tuple[float, float]]
) -> list[dict[str, float]]:
    """Return a resource bundle for every worker, and one for what other jobs use on each node.

    The use by other jobs is included because a request states the size of the whole cluster.
    """
    wanted: list[dict[str, float]] = []
    for placement in placements:
        bundle: dict[str, float] = {"CPU": placement.cpus_per_worker}
        if placement.gpus_per_worker:
            bundle["GPU"] = placement.gpus_per_worker
            if placement.accelerator_type:
                bundle[f"accelerator_type:{placement.accelerator_type}"] = ANY_OF_A_MODEL
        wanted += [dict(bundle) for _ in range(placement.num_workers)]
    held = ({"CPU": cpus, "GPU": gpus} for cpus, gpus in taken if cpus or gpus)
    return wanted + [
        {name: amount for name, amount in amounts.items() if amount} for amounts in held
    ]


def _kinds() -> list[str]:
    """Return the types of the cluster's nodes, from version 1 or 2 of Ray's autoscaler."""
    from ray.autoscaler.v2 import sdk, utils
    from ray.experimental import internal_kv

    if utils.is_autoscaler_v2():
        status: Any = sdk.get_cluster_status(ray.get_runtime_context().gcs_address)
        return [str(node.ray_node_type_name) for node in (*status.active_nodes, *status.idle_nodes)]
    report_text: bytes | None = internal_kv._internal_kv_get(STATUS)
    report = (json.loads(report_text) if report_text else {}).get("autoscaler_report") or {}
    return [*report.get("active_nodes", {}), *report.get("pending_launches", {})]
