"""Nodes that Ray drains: a cloud takes them back, or an autoscaler does."""

from ray._private import state


def draining_nodes() -> frozenset[str]:
    """Return Ray's ids of the nodes that are about to go; for a Ray that does not tell, none.

    Ray Train's own notice of a preemption comes from here.
    """
    ask = getattr(state.state, "get_draining_nodes", None)
    return frozenset() if ask is None else frozenset(ask())
