"""A command that runs while its processes are noted, so that what it leaves behind is seen."""

import contextlib
import re
import subprocess
import threading
import time
from pathlib import Path

import psutil

from .commands import ENVIRONMENT, command

EVERY_S = 0.1
LIMIT_S = 600.0
TIME = re.compile(r"^\S+Z t=\S+ ")


class Watched:
    """`python -m raybench.COMMAND ...` in a process of its own, its descendants noted as it runs.

    A context manager: whatever is left at its end is killed, so that a failing test disturbs no
    other one.
    """

    def __init__(self, *arguments: str | Path, cwd: Path) -> None:
        self._out, self._err = cwd / "stdout", cwd / "stderr"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command(*arguments), cwd=cwd, env=ENVIRONMENT, stdout=out, stderr=err
            )
        self.began = time.monotonic()
        self._seen: dict[int, psutil.Process] = {}
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
        """What it has printed so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What it has said on stderr so far."""
        return self._err.read_text(errors="replace")

    @property
    def printed(self) -> str:
        """Both streams, for the message of a failing test."""
        return f"stdout:\n{self.stdout}\nstderr:\n{self.stderr}"

    def wait_for_line(self, beginning: str) -> None:
        """Wait until it has printed a line that begins so, a time before it left out; fails the
        test if it ends before."""
        deadline = time.monotonic() + LIMIT_S
        while not any(
            TIME.sub("", line).startswith(beginning) for line in self.stdout.splitlines()
        ):
            assert self.process.poll() is None, f"ended before '{beginning}'\n{self.printed}"
            assert time.monotonic() < deadline, f"no line '{beginning}'\n{self.printed}"
            time.sleep(0.02)

    def wait_until(self, seconds: float) -> None:
        """Wait until so many seconds after the start; fails the test if it ends before."""
        while (left := self.began + seconds - time.monotonic()) > 0:
            assert self.process.poll() is None, f"ended before {seconds} s\n{self.printed}"
            time.sleep(min(left, 0.02))

    def send(self, number: int) -> None:
        """Send a signal to the command alone, as `kill` does."""
        self.process.send_signal(number)

    def wait(self, limit_s: float) -> int:
        """Return its exit code; fails the test if it goes on for longer."""
        try:
            return self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on after {limit_s} s\n{self.printed}") from None

    def left(self) -> list[psutil.Process]:
        """Return its descendants that are still there; one that only waits to be reaped is not."""
        found = []
        for process in list(self._seen.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def expect_none_left(self, within_s: float) -> None:
        """Fail the test if a descendant is there after so many seconds."""
        deadline = time.monotonic() + within_s
        while left := self.left():
            if time.monotonic() > deadline:
                lines = [_describe(process) for process in left]
                raise AssertionError("left behind:\n" + "\n".join(lines) + "\n" + self.printed)
            time.sleep(0.05)

    def pids(self) -> set[int]:
        """Return the ids of the command and of its descendants that run now."""
        return {self.process.pid, *(process.pid for process in self.left())}

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            with contextlib.suppress(psutil.Error):  # one ended while it was looked at
                for process in psutil.Process(self.process.pid).children(recursive=True):
                    self._seen.setdefault(process.pid, process)


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    return f"{process.pid}: ended"
