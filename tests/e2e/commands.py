"""Runs raybench's commands as a user does, in processes of their own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}


def raybench(*arguments: str | Path, cwd: Path, timeout: float = 840, **environment: str) -> str:
    """Run `python -m raybench.COMMAND ...`; return what it printed. Fails the test on error."""
    done = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def start(
    *arguments: str | Path, cwd: Path, log: Path, **environment: str
) -> "subprocess.Popen[bytes]":
    """Start a command and leave it running; its output goes to `log`."""
    with log.open("w") as file:
        return subprocess.Popen(
            command(*arguments),
            cwd=cwd,
            env=ENVIRONMENT | environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def until(
    is_true: Callable[[], object],
    process: "subprocess.Popen[bytes]",
    log: Path,
    limit_s: float = 600,
) -> None:
    """Wait for something that a command does; fails the test where it ends before.

    Generous: a machine under load is slow, not wrong.
    """
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def command(*arguments: str | Path) -> list[str]:
    name, *rest = map(str, arguments)
    return [sys.executable, "-m", f"raybench.{name}", *rest]
