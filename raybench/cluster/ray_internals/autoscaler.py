"""A cluster that grows on demand: whether it is one, and what is asked of it.

Ray asks for the resources of what it is about to place. Groups that wait for their turn with us
are not placed yet, so they are asked for here, by Ray's own call for that.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray

from raybench.core.placement import Placement

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
    ask = _kinds_of_v2 if _is_v2() else _kinds
    kinds = ask()
    while not kinds and time.monotonic() < until:  # every node has a kind: it has just started
        time.sleep(0.5)
        kinds = ask()
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
    for cpus, gpus in taken:
        held = {"CPU": cpus, "GPU": gpus}
        if cpus or gpus:
            wanted.append({name: amount for name, amount in held.items() if amount})
    return wanted


def _kinds() -> list[str]:
    """Return the kinds of node in the report of Ray's first autoscaler."""
    status = _status()
    report = (json.loads(status) if status else {}).get("autoscaler_report") or {}
    return [*report.get("active_nodes", {}), *report.get("pending_launches", {})]


def _status() -> bytes | None:
    from ray.experimental import internal_kv

    get: Any = getattr(internal_kv, "_internal_kv_get", None)
    found: bytes | None = get(STATUS) if get is not None else None
    return found


def _is_v2() -> bool:
    from ray.autoscaler.v2 import utils

    ask: Any = getattr(utils, "is_autoscaler_v2", None)
    return bool(ask()) if ask is not None else False


def _kinds_of_v2() -> list[str]:
    """Return the kinds of node that Ray's second autoscaler knows."""
    from ray.autoscaler.v2 import sdk

    ask: Any = getattr(sdk, "get_cluster_status", None)
    if ask is None:
        return []
    status = ask(ray.get_runtime_context().gcs_address)
    nodes = [*status.active_nodes, *status.idle_nodes]
    return [str(node.ray_node_type_name) for node in nodes]
