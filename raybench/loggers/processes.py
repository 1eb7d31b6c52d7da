"""The tools of `--log`, and their processes as the driver of a study sees them. The driver starts
them, prints their messages, and waits for them at the end for a limited time."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.text import command_line


@dataclass(frozen=True, kw_only=True)
class LoggerKind:
    """A tool of `--log`. Only its process imports its module `to_<name>.py`, which defines
    `open_sink(folder, study)`."""

    title: str
    package: str
    """Package that the module imports."""
    install: str
    """Name of the package for pip."""
    hint: str = ""
    """Advice printed when the tool fails: the beginning of a sentence."""


LOGGERS: dict[str, LoggerKind] = {
    "tensorboard": LoggerKind(title="TensorBoard", package="tensorboardX", install="tensorboardX"),
    "mlflow": LoggerKind(
        title="MLflow",
        package="mlflow",
        install="mlflow-skinny",
        hint="MLFLOW_TRACKING_URI says where it writes; ",
    ),
    "wandb": LoggerKind(
        title="Weights & Biases",
        package="wandb",
        install="wandb",
        hint="with WANDB_MODE=offline it needs no account nor server; ",
    ),
}


def check_loggers(names: Sequence[str]) -> None:
    """Raise UserError for an unknown tool, or one whose package is not installed. Nothing is
    imported."""
    for name in names:
        if name not in LOGGERS:
            raise UserError(f"--log {name}: {did_you_mean(name, LOGGERS)}", ErrorCode.UNKNOWN_NAME)
        kind = LOGGERS[name]
        found = importlib.util.find_spec(kind.package)
        # A folder of that name, as the tools leave in the current one, has no origin.
        if found is None or found.origin is None:
            what = f"the package {kind.package} is not installed"
            raise UserError(
                f"--log {name}: {what}; install it with: pip install {kind.install}",
                ErrorCode.NOT_INSTALLED,
            )


END = b"end\n"
"""Written to a tool's process when the study has ended."""
CLOSE_S = 30.0
"""Longest wait at the end, in seconds."""
SAY_S = 2.0
"""Seconds of that wait before the user is told of it."""
BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from raybench.loggers.feed import main; main(sys.argv[2:])"
)
"""Code of the process: it imports from where the driver does, whatever the current folder."""


class Loggers:
    """One process per tool, each following the records of a study; a context manager.

    Only `close` waits for the tools.
    """

    def __init__(
        self,
        tools: Sequence[str],
        folder: Path,
        *,
        place: str,
        say: Callable[[str], None],
        close_s: float | None = CLOSE_S,
    ) -> None:
        """Prepare the processes; `start` starts them.

        Args:
            tools: names that `check_loggers` accepted.
            folder: results folder.
            place: the folder or URL as the user named it.
            say: prints a message; called in other threads too.
            close_s: longest wait of `close`, in seconds; None waits until everything is written.
        """
        self._tools = list(dict.fromkeys(tools))
        self._folder, self._place, self._say = folder, place, say
        self._close_s = math.inf if close_s is None else close_s
        self._followers: list[_Follower] = []

    def start(self) -> None:
        """Start the processes. The records file must exist; from now on it only grows."""
        study = Path(self._place.partition("?")[0]).name or self._folder.name
        self._followers = [
            _Follower(tool, [str(self._folder), study, self._place], self._say)
            for tool in self._tools
        ]

    def end(self) -> None:
        """Tell the processes that no more records come, so that they write the winners and end."""
        for follower in self._followers:
            follower.write(END.decode())

    @property
    def has_failed(self) -> bool:
        """Whether a tool is missing data; valid after `close`."""
        return any(follower.has_failed for follower in self._followers)

    def close(self) -> None:
        """Wait until everything is written, then kill the processes that are still running."""
        since = time.monotonic()
        for follower in self._followers:
            follower.write(None)
        self._wait(min(SAY_S, self._close_s), since)
        titles = [one.title for one in self._followers if one.is_running and not one.has_said]
        if titles:
            limit = "" if self._close_s == math.inf else f", for {self._close_s:g} s at most"
            self._say(f"writing the rest to {', '.join(titles)}{limit}")
        self._wait(self._close_s, since)
        for follower in self._followers:
            follower.close()

    def _wait(self, seconds: float, since: float) -> None:
        while any(one.is_running for one in self._followers) and time.monotonic() - since < seconds:
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Follower:
    """The process of one tool."""

    def __init__(self, tool: str, arguments: list[str], say: Callable[[str], None]) -> None:
        self.title, self._tool, self._say = LOGGERS[tool].title, tool, say
        self._again = f"{command_line('report', arguments[-1], '--log', tool)} writes the rest."
        self.has_failed = self.has_said = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", BEGIN, json.dumps(sys.path), tool, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the study
        )
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def write(self, word: str | None) -> None:
        """Write to the process; None closes its standard input, at which it ends."""
        assert self._process.stdin is not None
        try:
            if word is None:
                self._process.stdin.close()
            else:
                self._process.stdin.write(word)
                self._process.stdin.flush()
        except BrokenPipeError:
            self.has_failed = True  # the process has ended, and `_hear` says why

    def close(self) -> None:
        """Kill the process and its children if it still runs; print its last messages."""
        if self.is_running:
            self.has_said = self.has_failed = True
            self._say(f"--log {self._tool}: {self.title} did not take everything; {self._again}")
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._hearing.join(timeout=1.0)
        if not self._hearing.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.has_said = True
            self._say(line.rstrip("\n"))
        code = self._process.wait()
        self.has_failed = self.has_failed or code != 0
        if code != 0 and not self.has_said:
            how = f"ended by itself (exit code {code})"
            self._say(f"--log {self._tool}: {how}; the study goes on, {self._again}")
