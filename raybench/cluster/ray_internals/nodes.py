"""The nodes of a cluster: their free resources, those about to go, and requests to an autoscaler.

Ray itself requests nodes only for what it is about to place. Worker groups that wait in our queue
are not placed yet, so they are requested here.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
from ray._private import state

from raybench.cluster.layout import Node
from raybench.spec.run import Placement

HEAD = "node:__internal_head__"
"""Resource that only the head has, one unit of it."""
ADDRESS = "node:"
"""Prefix of the resource that every node has one of, named by its address."""
NOMINAL = 0.0001
NOMINAL_CPU = 0.001


def waits_by_driver() -> dict[str, float]:
    """Return the reservation that puts a process which merely waits on the driver's node.

    The pool is there too: Tune's processes wait for it without a timeout, and Ray does not repeat
    an answer that the network has lost between hosts. Without a resource that names the node, it is
    a trace of a CPU anywhere.
    """
    here = ray.get_runtime_context().get_node_id()
    names = [
        name
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] == here
        for name in node["Resources"]
        if name.startswith(ADDRESS)
    ]
    if HEAD in names:  # nodes made up on one machine share its address, and have one head
        return {HEAD: NOMINAL}
    return {names[0]: NOMINAL} if names else {"CPU": NOMINAL_CPU}


def draining_nodes() -> frozenset[str]:
    """Return Ray's ids of the nodes that are about to go; none if Ray does not say.

    Ray Train reads its notice of a preemption from there, too.
    """
    ask = getattr(state.state, "get_draining_nodes", None)
    return frozenset() if ask is None else frozenset(ask())


NEGLIGIBLE = 0.05
"""CPUs below which a reservation is bookkeeping (a Tune trial's own, a nominal one of ours)."""


def available() -> Mapping[str, Mapping[str, float]]:
    """Return the free resources of every node by its id; empty if Ray does not say: what others
    hold is then noticed only when a group does not start."""
    ask: Any = getattr(state, "available_resources_per_node", None)
    found: Mapping[str, Mapping[str, float]] = ask() if ask is not None else {}
    return found


def taken_by_others(
    nodes: Sequence[Node],
    held: Sequence[tuple[float, float]],
    free: Mapping[str, Mapping[str, float]],
) -> list[tuple[float, float]]:
    """Return the (CPU cores, GPUs) of every node that are neither free nor `held` by our groups.

    Never below 0: while a group of ours starts or ends, Ray's account and ours differ for a moment.
    A node that Ray does not list has nothing free.
    """
    taken = []
    for node, (cpus, gpus) in zip(nodes, held, strict=True):
        if not free or node.is_gone:
            taken.append((0.0, 0.0))
            continue
        left = free.get(node.id, {})
        others = node.cpus - cpus - left.get("CPU", 0.0), node.gpus - gpus - left.get("GPU", 0.0)
        others_cpus, others_gpus = (round(one, 4) if one > NEGLIGIBLE else 0.0 for one in others)
        taken.append((others_cpus, others_gpus))
    return taken


STATUS = "__autoscaling_status"
"""Key of the autoscaler's report in Ray's store."""
UNMANAGED = "node_"
"""Prefix of the node types without an autoscaler: each node has its own."""
ANY_OF_A_MODEL = 0.001
FIRST_REPORT_S = 10.0
"""Seconds for which the first report of a head that has just started is waited for."""


def has_autoscaler() -> bool:
    """Whether the cluster starts nodes by itself.

    A cluster whose nodes were started by hand has an autoscaler that only reports: there every node
    has its own type. A Ray whose report is not as expected counts as unable to grow.
    """
    until = time.monotonic() + FIRST_REPORT_S
    try:
        kinds = _kinds()
        while not kinds and time.monotonic() < until:  # every node has a type: it has just started
            time.sleep(0.5)
            kinds = _kinds()
    except (ImportError, AttributeError):
        return False
    return any(kind and not kind.startswith(UNMANAGED) for kind in kinds)


def request(bundles: Sequence[Mapping[str, float]]) -> None:
    """Request a cluster that holds all bundles at once, until the next request; none cancels it."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(bundle) for bundle in bundles])


def bundles_of(
    placements: Iterable[Placement], taken: Iterable[tuple[float, float]]
) -> list[dict[str, float]]:
    """Return a bundle for every worker and for what others hold on each node.

    A request is the size of the whole cluster, regardless of who uses it.
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
    return wanted + [{name: amount for name, amount in one.items() if amount} for one in held]


def _kinds() -> list[str]:
    """Return the node types that Ray's first autoscaler reports, or its second one knows."""
    from ray.autoscaler.v2 import sdk, utils
    from ray.experimental import internal_kv

    if utils.is_autoscaler_v2():
        status: Any = sdk.get_cluster_status(ray.get_runtime_context().gcs_address)
        return [str(one.ray_node_type_name) for one in (*status.active_nodes, *status.idle_nodes)]
    said: bytes | None = internal_kv._internal_kv_get(STATUS)
    report = (json.loads(said) if said else {}).get("autoscaler_report") or {}
    return [*report.get("active_nodes", {}), *report.get("pending_launches", {})]
