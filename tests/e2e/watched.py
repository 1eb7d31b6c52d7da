"""A command that runs in the background while its processes are listed, so that a test sees those
that it leaves behind."""

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.factories import wait_for

from .commands import ENVIRONMENT, command

EVERY_S = 0.1
TIME = re.compile(r"^\S+Z t=\S+ ")


class Watched:
    """Context manager: `python -m raybench.COMMAND ...` in a process of its own.

    On exit, the processes that are left are killed, so that a failed test disturbs no other one.
    """

    def __init__(self, *arguments: str | Path, cwd: Path, **environment: str) -> None:
        self._out, self._err = cwd / "stdout", cwd / "stderr"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command(*arguments), cwd=cwd, env=ENVIRONMENT | environment, stdout=out, stderr=err
            )
        self.began = time.monotonic()
        self.children: dict[int, psutil.Process] = {}
        """Every process below the command that was seen so far, by id."""
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._watcher.join()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()

    @property
    def stdout(self) -> str:
        """Output to stdout so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """Output to stderr so far."""
        return self._err.read_text(errors="replace")

    @property
    def printed(self) -> str:
        """Both outputs, for the message of a failed test."""
        return f"stdout:\n{self.stdout}\nstderr:\n{self.stderr}"

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition is true; the test fails if the command ends before."""

        def problem() -> str | None:
            return None if self.process.poll() is None else f"it has ended\n{self.printed}"

        return wait_for(condition, problem=problem)

    def wait_for_line(self, beginning: str) -> None:
        """Wait until the command has printed a line with this beginning, after the time of day."""
        self.wait_for(
            lambda: any(
                TIME.sub("", line).startswith(beginning) for line in self.stdout.splitlines()
            )
        )

    def wait(self, limit_s: float = 600.0) -> int:
        """Return the exit code of the command; the test fails if the command takes longer."""
        try:
            return self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on after {limit_s} s\n{self.printed}") from None

    def left(self) -> list[psutil.Process]:
        """Return the processes below the command that are still running, without zombies."""
        found = []
        for process in list(self.children.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def expect_none_left(self, within_s: float = 120.0) -> None:
        """Fail the test if a process below the command is still running after so many seconds."""
        deadline = time.monotonic() + within_s
        while left := self.left():
            if time.monotonic() > deadline:
                lines = [_describe(process) for process in left]
                raise AssertionError("left behind:\n" + "\n".join(lines) + "\n" + self.printed)
            time.sleep(0.05)

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            with contextlib.suppress(psutil.Error):  # a process ended between listing and reading
                for process in psutil.Process(self.process.pid).children(recursive=True):
                    self.children.setdefault(process.pid, process)


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    return f"{process.pid}: ended"


def has_run(folder: Path, role: str = "trial") -> bool:
    """Whether the end of a run of that role is recorded in a results folder."""
    lines = read_text(folder / "records.jsonl").splitlines()
    return any('"kind": "run"' in line and f'"role": "{role}"' in line for line in lines)


def read_text(file: Path) -> str:
    """Return the content of a file; empty if it does not exist."""
    return file.read_text() if file.is_file() else ""
