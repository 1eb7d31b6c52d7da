"""Groups of two worker processes without Ray, and scripts run as processes.

A barrier of a framework cannot end a group: the worker that leaves it first closes a socket from
which the other may still read (seen in CI with TensorFlow). Therefore a worker creates a file when
it no longer needs the others, and then reads stdin until the parent closes it, once all have done
so.
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
    """Run a script of this folder, which calls `run_worker`, as two workers, and wait for both to
    end without error. The script gets `content`, a JSON value, and saves its results in `folder`.
    """
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
            break  # it failed; its log is shown below
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


def cached_folder(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` fills once for all pytest processes."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "made").exists():
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


def run_python(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """Run Python with these arguments in a process of its own; return its stdout."""
    completed = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    return completed.stdout


def torchrun_arguments(num_processes: int) -> list[str]:
    """Return the arguments of Python that start a script by torchrun in several processes."""
    arguments = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_processes)]
    return [*arguments, "--master-port", str(free_port())]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_worker(work: Callable[[str, Any, DistributedContext, Path], None]) -> NoReturn:
    """Main function of a script with the arguments `FRAMEWORK JSON RANK FOLDER PORT [PORT2 ...]`.
    `work` is called with the framework, the JSON value, the worker's context, and the folder."""
    framework, content, rank, folder, *ports = sys.argv[1:]
    work(framework, json.loads(content), join(framework, int(rank), ports), Path(folder))
    leave(framework, int(rank), Path(folder))


def join(framework: str, rank: int, ports: list[str]) -> DistributedContext:
    """Join the group of workers on this machine; `ports` has the port of each rank."""
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
    """Report that all results are written, wait until all workers have done so, and exit."""
    (folder / f"done-{rank}").touch()
    sys.stdin.read()
    if framework == "torch":
        import torch.distributed

        torch.distributed.destroy_process_group()
    # Without finalizing the interpreter: a thread of gloo or TensorFlow that uses it meanwhile
    # aborts the process (seen once in CI).
    os._exit(0)
