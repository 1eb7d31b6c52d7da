"""Runs a group of worker processes without Ray, and lets none leave while another reads from it.

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
from pathlib import Path
from typing import Any

LIMIT_S = 600.0


def run_two(script: str, framework: str, content: Any, folder: Path) -> None:
    """Run a script of this folder as two workers, each of which does its work (`serve`)."""
    path, ports = Path(__file__).with_name(script), [str(_free_port()), str(_free_port())]
    command = [sys.executable, str(path), framework, json.dumps(content)]
    run_group(
        [[*command, str(rank), str(folder), *ports] for rank in range(2)],
        [folder / f"done-{rank}" for rank in range(2)],
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_group(commands: list[list[str]], files: list[Path]) -> None:
    """Run the commands side by side until each has written its file and ended without error."""
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
