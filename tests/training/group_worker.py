"""A process that is one worker of a group, without Ray: how it joins and leaves (`group.py`)."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from raybench.training.base import World, find_backend


def serve(work: Callable[[str, Any, World, Path], None]) -> NoReturn:
    """Do the work of a script as one worker: `FRAMEWORK JSON RANK FOLDER PORT [PORT2 ...]`.

    `work` is given the framework, what JSON holds, the worker's place, and where to save.
    """
    framework, content, rank, folder, *ports = sys.argv[1:]
    work(framework, json.loads(content), join(framework, int(rank), ports), Path(folder))
    leave(framework, int(rank), Path(folder))


def join(framework: str, rank: int, ports: list[str]) -> World:
    """Meet the others on this machine; `ports` are those of all workers, by rank."""
    if framework == "torch":
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{ports[0]}",
            rank=rank,
            world_size=len(ports),
        )
    if framework == "tensorflow":
        workers = [f"127.0.0.1:{port}" for port in ports]
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    backend = find_backend(framework)
    return backend.join(rank=rank, num_workers=len(ports), device="cpu", num_threads=1)


def leave(framework: str, rank: int, folder: Path) -> NoReturn:
    """Say that all is on the disk, wait until all others have said so, and end."""
    (folder / f"done-{rank}").touch()
    sys.stdin.read()
    if framework == "torch":
        import torch.distributed

        torch.distributed.destroy_process_group()
    # A thread of gloo or TensorFlow that asks for the interpreter while it is being torn down
    # aborts the process (seen once in CI), so there is no tear-down.
    os._exit(0)
