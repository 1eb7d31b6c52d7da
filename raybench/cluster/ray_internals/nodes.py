"""The nodes: which there are, what others hold on them, which are about to go, and what a cluster
that grows on demand is asked for.

Ray asks for the resources of what it is about to place. Groups that wait for their turn with us
are not placed yet, so they are asked for here, by Ray's own call for that.
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
"""A resource that only the head has, one of it; no worker of a group needs any."""
ADDRESS = "node:"
"""Beginning of the resource that every node has by its address, one of it."""
NOMINAL = 0.0001
NOMINAL_CPU = 0.001


def waits_by_driver() -> dict[str, float]:
    """Return what a process that merely waits reserves: a trace of the driver's node.

    The pool is there too. A call between two hosts whose answer is lost with the network is not
    answered anew, and Tune's processes wait for the pool without a limit.

    For a Ray whose nodes have no such resource a trace of a CPU, wherever that is.
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
    """Return Ray's ids of the nodes that are about to go; for a Ray that does not tell, none.

    Ray Train's own notice of a preemption comes from here.
    """
    ask = getattr(state.state, "get_draining_nodes", None)
    return frozenset() if ask is None else frozenset(ask())


NEGLIGIBLE = 0.05
"""CPUs below which a reservation is bookkeeping (a Tune trial's own, a nominal one of ours)."""


def available() -> Mapping[str, Mapping[str, float]]:
    """Return what every node has free by Ray's books, by its id; empty for a Ray that does not
    say: then what others hold is only seen when a group does not start."""
    ask: Any = getattr(state, "available_resources_per_node", None)
    found: Mapping[str, Mapping[str, float]] = ask() if ask is not None else {}
    return found


def taken_by_others(
    nodes: Sequence[Node],
    held: Sequence[tuple[float, float]],
    free: Mapping[str, Mapping[str, float]],
) -> list[tuple[float, float]]:
    """Return the (CPU cores, GPUs) of every node that are neither free nor `held` by our groups.

    While a group of ours starts or ends, books and groups differ for a moment: never below 0.
    A node that Ray no longer counts has nothing left.
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
"""Key under which the autoscaler reports, in the store that `ray status` reads."""
UNMANAGED = "node_"
"""Beginning of the kinds of node that nobody scales: each is a kind of its own."""
ANY_OF_A_MODEL = 0.001
FIRST_REPORT_S = 10.0
"""A head that has just started reports after some seconds; one that reports nothing never does."""


def has_autoscaler() -> bool:
    """Whether the cluster starts nodes by itself.

    One whose nodes were started by hand has an autoscaler too, which only reports: every node is
    a kind of its own there. A Ray that reports otherwise is taken for one that does not grow.
    """
    until = time.monotonic() + FIRST_REPORT_S
    try:
        kinds = _kinds()
        while not kinds and time.monotonic() < until:  # every node has a kind: it has just started
            time.sleep(0.5)
            kinds = _kinds()
    except (ImportError, AttributeError):
        return False
    return any(kind and not kind.startswith(UNMANAGED) for kind in kinds)


def request(bundles: Sequence[Mapping[str, float]]) -> None:
    """Ask for a cluster that holds all bundles at once, until asked otherwise; none takes it back.

    Raises what Ray raises where its store does not answer.
    """
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[dict(bundle) for bundle in bundles])


def bundles_of(
    placements: Iterable[Placement], taken: Iterable[tuple[float, float]]
) -> list[dict[str, float]]:
    """Return what is asked for: a bundle for every worker, and what others hold on each node.

    A request is the size the whole cluster shall have, whoever is at work on it.
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
    """Return the kinds of node that the first of Ray's autoscalers reports, or the second knows."""
    from ray.autoscaler.v2 import sdk, utils
    from ray.experimental import internal_kv

    if utils.is_autoscaler_v2():
        status: Any = sdk.get_cluster_status(ray.get_runtime_context().gcs_address)
        return [str(one.ray_node_type_name) for one in (*status.active_nodes, *status.idle_nodes)]
    said: bytes | None = internal_kv._internal_kv_get(STATUS)
    report = (json.loads(said) if said else {}).get("autoscaler_report") or {}
    return [*report.get("active_nodes", {}), *report.get("pending_launches", {})]
