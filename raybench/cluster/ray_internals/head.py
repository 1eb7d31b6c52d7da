"""A place for processes that merely wait: the head, whose cores they do not take."""

import ray

HEAD = "node:__internal_head__"
"""A resource that only the head has, one of it; no worker of a group needs any."""
NOMINAL = 0.0001
NOMINAL_CPU = 0.001


def waits_on_head() -> dict[str, float]:
    """Return what such a process reserves: a trace of the head, or of a CPU for another Ray."""
    has_it = any(HEAD in node["Resources"] for node in ray.nodes() if node["Alive"])
    return {HEAD: NOMINAL} if has_it else {"CPU": NOMINAL_CPU}
