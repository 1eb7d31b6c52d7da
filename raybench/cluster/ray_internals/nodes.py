"""The nodes of a cluster: free resources, announced shutdowns, and requests to an autoscaler.

Ray itself requests more nodes only for tasks and actors that were submitted to it. Worker groups
that wait in raybench's queue are unknown to Ray, so nodes for them are requested here.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
from ray._private import state

from raybench.cluster.layout import Node
from raybench.spec.run import ResourceRequest

ADDRESS = "node:"
"""Prefix of the name of a resource that only one node has; the node's address follows."""
NOMINAL = 0.0001
"""Quantity of the resource `node:ADDRESS` that an actor reserves; every node has 1."""


def driver_host_resources() -> dict[str, float]:
    """Return the resources that pin an actor to the driver's host while reserving almost nothing.

    They are used for Tune's trial actors, which wait for the worker pool without a timeout. Since
    Ray does not resend a reply that was lost between hosts, these actors must run on the pool's
    host, which is the driver's.
    """
    here = ray.get_runtime_context().get_node_id()
    addresses = (node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
    return {f"{ADDRESS}{next(addresses)}": NOMINAL}


def draining_nodes() -> frozenset[str]:
    """Return Ray's ids of the nodes that are about to be shut down; empty if Ray does not report
    them.

    Ray Train uses the same function to notice that a node will be preempted.
    """
    get_draining_nodes = getattr(state.state, "get_draining_nodes", None)
    return frozenset() if get_draining_nodes is None else frozenset(get_draining_nodes())


NEGLIGIBLE = 0.05
"""Number of CPUs or GPUs up to which use by other jobs is ignored: Tune's trials and raybench's
actors reserve such small fractions."""


def available() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of every node, by node id.

    Empty if Ray does not report them; use by other jobs is then noticed only when a worker group
    fails to start.
    """
    query: Any = getattr(state, "available_resources_per_node", None)
    resources: Mapping[str, Mapping[str, float]] = query() if query is not None else {}
    return resources


def taken_by_others(
    nodes: Sequence[Node],
    held: Sequence[tuple[float, float]],
    free: Mapping[str, Mapping[str, float]],
) -> list[tuple[float, float]]:
    """Return the CPU cores and GPUs that other jobs use on every node.

    These are neither free nor reserved by raybench's worker groups. The numbers are never negative,
    although Ray's bookkeeping and ours differ for a moment while a group starts or ends.

    Args:
        nodes: Total resources of every node.
        held: (CPU cores, GPUs) that our groups have reserved, one pair for each node of `nodes`.
        free: Free resources by node id, as returned by `available`. A node that is missing has no
            free resources; if `free` is empty, no use by other jobs is assumed.

    Returns:
        (CPU cores, GPUs), one pair for each node of `nodes`.
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
"""Prefix of a node's type if there is no autoscaler; each node then has a different type."""
ANY_OF_A_MODEL = 0.001
"""Quantity of the resource `accelerator_type:MODEL` that selects nodes with this model of GPU."""
FIRST_REPORT_S = 10.0
"""Seconds to wait for the first report of a head node that has just started."""


def has_autoscaler() -> bool:
    """Whether the cluster can start nodes by itself.

    False if the nodes were started by hand, which is visible from their types in the autoscaler's
    report (UNMANAGED), or if the report does not have the expected form.
    """
    until = time.monotonic() + FIRST_REPORT_S
    try:
        types = _node_types()
        while not types and time.monotonic() < until:  # no types yet: the head has just started
            time.sleep(0.5)
            types = _node_types()
    except (ImportError, AttributeError):
        return False
    return any(name and not name.startswith(UNMANAGED) for name in types)


def request(bundles: Sequence[Mapping[str, float]]) -> None:
    """Request from the autoscaler a cluster with room for all resource bundles at the same time;
    replaces the previous request."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(bundle) for bundle in bundles])


def resource_bundles(
    requests: Iterable[ResourceRequest], taken: Iterable[tuple[float, float]]
) -> list[dict[str, float]]:
    """Return the resource bundles for a request to the autoscaler.

    There is one bundle for every worker, and one for each node on which other jobs use resources.
    The latter are needed because a request states the size of the whole cluster.

    Args:
        requests: The worker groups for which nodes are needed.
        taken: CPU cores and GPUs that other jobs use on each node.
    """
    wanted: list[dict[str, float]] = []
    for request in requests:
        bundle: dict[str, float] = {"CPU": request.cpus_per_worker}
        if request.gpus_per_worker:
            bundle["GPU"] = request.gpus_per_worker
            if request.accelerator_type:
                bundle[f"accelerator_type:{request.accelerator_type}"] = ANY_OF_A_MODEL
        wanted += [dict(bundle) for _ in range(request.num_workers)]
    used = ({"CPU": cpus, "GPU": gpus} for cpus, gpus in taken if cpus or gpus)
    return wanted + [
        {name: amount for name, amount in amounts.items() if amount} for amounts in used
    ]


def _node_types() -> list[str]:
    """Return the type of every node of the cluster, as reported by Ray's autoscaler (v1 or v2)."""
    from ray.autoscaler.v2 import sdk, utils
    from ray.experimental import internal_kv

    if utils.is_autoscaler_v2():
        status: Any = sdk.get_cluster_status(ray.get_runtime_context().gcs_address)
        return [str(node.ray_node_type_name) for node in (*status.active_nodes, *status.idle_nodes)]
    report_text: bytes | None = internal_kv._internal_kv_get(STATUS)
    report = (json.loads(report_text) if report_text else {}).get("autoscaler_report") or {}
    return [*report.get("active_nodes", {}), *report.get("pending_launches", {})]
