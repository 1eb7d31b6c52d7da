"""The hosts of a cluster as Ray lists them, less what the driver itself holds; no Ray."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raybench.cluster.layout import Node

MODEL = "accelerator_type:"
"""Beginning of the resource by which Ray names the model of a node's GPUs."""


@dataclass(frozen=True)
class Reservation:
    """What one process holds on a node as long as it lives."""

    node: str
    """Ray's id of it."""
    cpus: float
    gpus: float = 0.0
    host: str = ""


def as_nodes(
    entries: Sequence[Mapping[str, Any]],
    driver: Reservation | None = None,
    leaving: Collection[str] = (),
) -> tuple[Node, ...]:
    """Return the nodes that can have workers, of those that Ray lists as alive.

    They are called by their host names, or by their addresses where two have one name. `driver`:
    what the study's own process holds, which is nobody's while the study runs. `leaving`: ids of
    those that have been given notice, where Ray starts nothing any more.
    """
    alive = [entry for entry in entries if entry.get("Alive", True)]
    names = [entry.get("NodeManagerHostname", "") for entry in alive]
    nodes = []
    for entry, name in zip(alive, names, strict=True):
        if entry["NodeID"] in leaving:
            continue
        has = entry["Resources"]
        models = [key.removeprefix(MODEL) for key in has if key.startswith(MODEL)]
        node = Node(
            int(has.get("CPU", 0)),
            int(has.get("GPU", 0)),
            entry["NodeID"],
            name=name if names.count(name) == 1 else entry.get("NodeManagerAddress", name),
            accelerator=models[0] if models else "",
        )
        if driver is not None and driver.node == node.id:
            node = node.without(driver.cpus, driver.gpus)
        if node.cpus or node.gpus:
            nodes.append(node)
    return tuple(nodes)
