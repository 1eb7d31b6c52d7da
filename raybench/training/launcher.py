"""Environment variables by which libraries and scripts find the other workers of a run."""

import os
import platform
import random
import socket
import zlib
from collections.abc import Callable

PORTS = 20_000, 30_000
"""Range of the ports given to scripts, below the ephemeral ports that systems assign."""
NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)
"""Variables that torchrun sets, and `NODE_RANK`, which other launchers set."""


def environment_of_rank(
    rank: int, device: str, gather: Callable[[list[float]], list[list[float]]]
) -> dict[str, str]:
    """Return the variables that torchrun would set for a rank. Collective: all ranks must call it.

    Args:
        rank: Rank of this worker.
        device: Device of this worker, such as `cpu` or `cuda:0`.
        gather: Function that returns the values of every rank, in rank order.
    """
    host = zlib.crc32(platform.node().encode())
    rows = gather([float(host), float(_free_port() if rank == 0 else 0)])
    hosts = [row[0] for row in rows]
    local_rank = hosts[:rank].count(hosts[rank])
    if device.startswith("cuda:"):  # scripts choose their GPU by LOCAL_RANK
        local_rank = int(device.removeprefix("cuda:"))
    nodes = list(dict.fromkeys(hosts))
    node, port = str(nodes.index(hosts[rank])), str(round(rows[0][1]))
    # TORCHELASTIC_RUN_ID tells libraries that torchrun is the launcher.
    values = {
        **{"RANK": str(rank), "WORLD_SIZE": str(len(rows)), "TORCHELASTIC_RUN_ID": port},
        **{"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank]))},
        **{"GROUP_RANK": node, "GROUP_WORLD_SIZE": str(len(nodes)), "NODE_RANK": node},
        # Ray has set the address of rank 0 for its own process group.
        **{"MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"), "MASTER_PORT": port},
    }
    return values | environment_of_device(device)


def environment_of_device(device: str) -> dict[str, str]:
    """Return the variables that make libraries use a device: for a CPU, ACCELERATE_USE_CPU, without
    which `accelerate` does not distribute training."""
    return {"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {}


def _free_port() -> int:
    """Return a random port that nothing on this host listens on."""
    while True:
        # Not `random.randrange`: it is seeded, and equal seeds would give equal ports.
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)):
                return port
