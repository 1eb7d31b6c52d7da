"""Runs raybench's commands as a user does, in processes of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

RAY = Path(sys.executable).with_name("ray")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}


def raybench(
    *arguments: str | Path, cwd: Path, code: int = 0, timeout: float = 840, **environment: str
) -> str:
    """Run `python -m raybench.COMMAND ...`; return what it printed, and said on stderr where it
    fails. Fails the test unless it ends with `code`."""
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
        time.sleep(0.2)


def has_run(folder: Path, role: str = "trial") -> bool:
    """Whether the end of a run of that role is recorded."""
    records = folder / "records.jsonl"
    lines = records.read_text().splitlines() if records.is_file() else []
    return any('"kind": "run"' in line and f'"role": "{role}"' in line for line in lines)


@contextlib.contextmanager
def head(*words: str, **environment: str) -> Iterator[None]:
    """Keep a Ray head on this machine, with all that it starts, while the context lasts."""
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
        # Ray's own end can wait for a store that is dead: what is left of its session is killed.
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
        process.wait()


def command(*arguments: str | Path) -> list[str]:
    name, *rest = map(str, arguments)
    return [sys.executable, "-m", f"raybench.{name}", *rest]
