"""Environment variables by which trainers and scripts find the other workers of a run."""

import os
import platform
import random
import socket
import zlib
from collections.abc import Callable

PORTS = 20_000, 30_000
"""Range of the ports that scripts are given, below those that systems hand out."""
NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)
"""Variables that torchrun sets, and `NODE_RANK` of others."""


def environment_of_rank(
    rank: int, device: str, gather: Callable[[list[float]], list[list[float]]]
) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank; all ranks call it together.

    Args:
        rank: Rank of this worker.
        device: Its device: `cpu`, `cuda:0`.
        gather: Returns the values of every rank, in rank order.
    """
    host = zlib.crc32(platform.node().encode())
    rows = gather([float(host), float(_free_port() if rank == 0 else 0)])
    hosts = [row[0] for row in rows]
    local_rank = hosts[:rank].count(hosts[rank])
    if device.startswith("cuda:"):  # scripts choose their GPU by it
        local_rank = int(device.removeprefix("cuda:"))
    nodes = list(dict.fromkeys(hosts))
    node, port = str(nodes.index(hosts[rank])), str(round(rows[0][1]))
    # Libraries take torchrun for the launcher where its id is set.
    values = {
        **{"RANK": str(rank), "WORLD_SIZE": str(len(rows)), "TORCHELASTIC_RUN_ID": port},
        **{"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank]))},
        **{"GROUP_RANK": node, "GROUP_WORLD_SIZE": str(len(nodes)), "NODE_RANK": node},
        # Ray has set the address of rank 0 for its own process group.
        **{"MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"), "MASTER_PORT": port},
    }
    return values | environment_of_device(device)


def environment_of_device(device: str) -> dict[str, str]:
    """Return the variables that keep trainers on a device: `accelerate` distributes a training on
    CPUs only if it is told to use them."""
    return {"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {}


def _free_port() -> int:
    """Return a random port that nothing on this host listens on."""
    while True:
        # The random numbers of Python are seeded alike for all runs.
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)):
                return port
