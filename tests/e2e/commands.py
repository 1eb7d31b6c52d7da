"""Runs raybench's commands as a user does, in processes of their own."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

RAY = Path(sys.executable).with_name("ray")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}


def raybench(
    *arguments: str | Path, cwd: Path, code: int = 0, timeout: float = 840, **environment: str
) -> str:
    """Run `python -m raybench.COMMAND ...`; return its stdout, with stderr after it if `code` is
    not 0. The test fails unless the command exits with `code` and without a traceback."""
    done = subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + (done.stderr if code else "")


@contextlib.contextmanager
def head(*words: str, **environment: str) -> Iterator[None]:
    """Context manager: start a Ray head on this machine; on exit, kill all its processes."""
    process = subprocess.Popen(
        [RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def command(*arguments: str | Path) -> list[str]:
    """Return the words of `python -m raybench.COMMAND ...`."""
    name, *rest = map(str, arguments)
    return [sys.executable, "-m", f"raybench.{name}", *rest]
