"""A group of worker processes without Ray, of which none leaves while another reads from it.

No barrier of a framework's own can end a run: whoever is through it first closes the socket that
another still reads from (seen in CI, with TensorFlow). So a worker writes its file when it needs
the others no more, and then reads its standard input to the end, which comes when all have.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from filelock import FileLock

from raybench.training.base import DistributedContext, find_backend

LIMIT_S = 850.0


def run_two(script: str, framework: str, content: Any, folder: Path) -> None:
    """Run a script of this folder as two workers, each of which does its work (`serve`), until each
    has said that it is done and ended without error."""
    path, ports = Path(__file__).with_name(script), [str(free_port()), str(free_port())]
    command = [sys.executable, str(path), framework, json.dumps(content)]
    commands = [[*command, str(rank), str(folder), *ports] for rank in range(2)]
    files = [folder / f"done-{rank}" for rank in range(2)]
    waiting, release = os.pipe()
    logs = [file.with_suffix(".log") for file in files]
    processes = []
    for command, log in zip(commands, logs, strict=True):
        with log.open("w") as stream:
            processes.append(subprocess.Popen(command, stdin=waiting, stderr=stream))
    os.close(waiting)
    deadline = time.monotonic() + LIMIT_S
    while not all(file.exists() for file in files) and time.monotonic() < deadline:
        if any(process.poll() is not None for process in processes):
            break  # it failed, and says why below
        time.sleep(0.02)
    os.close(release)
    failures = []
    for process, log in zip(processes, logs, strict=True):
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode:
            failures.append(f"returncode {process.returncode}: {log.read_text()[-3000:]}")
    assert not failures, "\n\n".join(failures)


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has filled, once for all processes that run the tests."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "made").exists():
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


def ran(*words: str, cwd: Path | None = None, **environment: str) -> str:
    """Run Python with these words in a process of its own; return what it has printed."""
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def launcher(num_processes: int) -> list[str]:
    """Return the words that start a script by torchrun in so many processes."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_processes)]
    return [*words, "--master-port", str(free_port())]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(work: Callable[[str, Any, DistributedContext, Path], None]) -> NoReturn:
    """Do the work of a script as one worker: `FRAMEWORK JSON RANK FOLDER PORT [PORT2 ...]`.

    `work` is given the framework, what JSON holds, the worker's place, and where to save.
    """
    framework, content, rank, folder, *ports = sys.argv[1:]
    work(framework, json.loads(content), join(framework, int(rank), ports), Path(folder))
    leave(framework, int(rank), Path(folder))


def join(framework: str, rank: int, ports: list[str]) -> DistributedContext:
    """Meet the others on this machine; `ports` are those of all workers, by rank."""
    if framework == "torch":
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{ports[0]}", rank=rank, world_size=len(ports)
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
