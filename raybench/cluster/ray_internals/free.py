"""Which nodes a shared cluster has, and what others hold on each."""

from collections.abc import Mapping, Sequence
from typing import Any

import ray

from raybench.cluster.layout import Node

NEGLIGIBLE = 0.05
"""CPUs below which a reservation is bookkeeping (a Tune trial's own, a nominal one of ours)."""


def present() -> Sequence[Mapping[str, Any]]:
    """Return the nodes that Ray lists, gone ones too."""
    listed: Sequence[Mapping[str, Any]] = ray.nodes()
    return listed


def available() -> Mapping[str, Mapping[str, float]]:
    """Return what every node has free by Ray's books, by its id; empty for a Ray that does not
    say: then what others hold is only seen when a group does not start."""
    from ray._private import state

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
        others_cpus = node.cpus - cpus - left.get("CPU", 0.0)
        others_gpus = node.gpus - gpus - left.get("GPU", 0.0)
        taken.append(
            (
                round(others_cpus, 4) if others_cpus > NEGLIGIBLE else 0.0,
                round(others_gpus, 4) if others_gpus > NEGLIGIBLE else 0.0,
            )
        )
    return taken
