"""A place for processes that merely wait: the driver's node, whose cores they do not take.

The pool is there too. A call between two hosts whose answer is lost with the network is not
answered anew, and Tune's processes wait for the pool without a limit.
"""

import ray

HEAD = "node:__internal_head__"
"""A resource that only the head has, one of it; no worker of a group needs any."""
ADDRESS = "node:"
"""Beginning of the resource that every node has by its address, one of it."""
NOMINAL = 0.0001
NOMINAL_CPU = 0.001


def waits_by_driver() -> dict[str, float]:
    """Return what such a process reserves: a trace of the driver's node.

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
