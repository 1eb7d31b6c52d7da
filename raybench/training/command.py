"""User commands as training loops: start a command, read its reports, kill it with its children.

A line of stdout that ends in a JSON object with the metric is a report: `{"accuracy": 0.91,
"samples": 50000, "train_s": 12.3}`. Color codes and text before the object, such as a progress bar,
are skipped. With `objective.metric_pattern`, reports are the lines that match the pattern instead.

`samples` and `train_s` (training seconds) are optional and count since the previous report, or
since the start of the command. A report without `samples` counts as one sample. If `train_s` is
missing, all time since the previous report counts as training. If `train_s` is given, it does not
matter how late the line arrives.
"""

import contextlib
import json
import logging
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO, Any

import psutil

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import OTHER_METRIC_NAMES
from raybench.spec.own_loop import (
    FOLDER,
    OTHER_KEYS,
    UNREPORTED,
    is_launched,
    keys_of,
    words_of,
)
from raybench.spec.run import RunSpec, flat
from raybench.spec.text import clean, shorten
from raybench.training.adapter import environment_of_rank
from raybench.training.own import Run

logger = logging.getLogger(__name__)

GRACE_S = 10.0
"""Seconds from SIGTERM to SIGKILL when a command and its children are ended."""
GUARD = 'read _; kill -TERM "-$0"; sleep 10; kill -KILL "-$0"'
"""Shell script that ends the command's process group if the worker dies. The script waits until its
stdin is closed, which happens when the worker dies."""
OPTIONAL_KEYS = ("samples", "train_s", "test")
"""Keys that a report may have in addition to the metric."""
UNTIMED = (
    "the command does not print train_s, so all time between its lines counts as training, startup "
    "and evaluation included; let it print the training seconds since the previous line"
)
"""Note to the user about a command that does not print `train_s`."""
SILENCE_S, TOGETHER_S = 1.0, 1e-3
"""Limits in seconds that tell whether the arrival times of lines are useless. Lines that arrive
within TOGETHER_S of each other, after more than SILENCE_S without output, were flushed from a
buffer or printed at the end of training."""
EXCESS, EXCESS_S = 1.1, 0.5
"""Limit of the sum of all `train_s`: EXCESS times the run time of the command, plus EXCESS_S
seconds."""
MAX_SAMPLES = 1e15
"""Largest valid `samples` of a report."""
MIN_TRAIN_S = 1e-6
"""Minimum training seconds of a report, used if its `train_s` is 0, or if it has no `train_s` and
arrives together with the previous report."""
CHUNK_BYTES = 1 << 16
"""Maximum number of bytes that are read from a pipe at once."""
MAX_LINE_BYTES = 1 << 20
"""Maximum size of a line in bytes; only the end of a longer line is kept."""
TAIL_BYTES = 4000
"""Number of bytes of stderr that are kept for an error message."""
ESCAPE_CODE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Pattern of an ANSI escape code, such as that of a color."""
OBJECT_START = re.compile(r'\{\s*"')
"""Pattern of the start of a JSON object with at least one key."""
AFTER_NUMBER = ".,;:%)]"
"""Characters that may follow a number that a pattern such as `loss=(\\S+)` has found."""
MAX_KEYS = 12
"""Maximum number of keys that an error message lists."""
POLL_S = 0.1
"""Seconds between two exchanges of `_RankState` among the ranks."""
MAX_SHOWN = 200
"""Maximum number of characters that an error message quotes from the last line of stderr."""


def values_of(spec: RunSpec, learning_rate: float, folder: str = "") -> dict[str, Any]:
    """Return the values that replace the placeholders of a command, keyed by placeholder.

    Args:
        spec: The run spec.
        learning_rate: Learning rate after `learning_rate_scaling`.
        folder: Temporary folder of the run; empty while a command is only checked.
    """
    content = flat(spec.model_dump(mode="json", exclude={"workload", "dataset", "objective"}))
    return content | {
        "global_batch_size": spec.global_batch_size,
        "learning_rate": learning_rate,
        FOLDER: folder,
    }


def run_command(run: Run) -> None:
    """Run the command of a run spec until it ends or `Run.report` returns True.

    A command that begins with `$torchrun` runs on every rank; reports are read only from the output
    of rank 0.
    """
    spec = run.spec
    folder = str(run.folder) if FOLDER in keys_of(spec.workload) else ""
    words = words_of(spec.workload, values_of(spec, run.learning_rate, folder))
    is_everywhere = is_launched(spec.workload)
    environment = environment_of_rank(run.rank, run.device, run.gather) if is_everywhere else {}
    metric, began_s = spec.objective.judged_by.name, time.perf_counter()
    with _running_process(words, spec, environment) as process:
        command = _Command(process, spec, began_s)
        while True:
            with run.training():
                report, train_s = command.next_of_ranks(run) if is_everywhere else command.next()
            if train_s is None:
                run.override_training_time(0.0)  # time from the last line to the end is no training
                break
            run.override_training_time(train_s)
            run.note = UNTIMED if command.timing.is_untimed else None
            values = {} if report is None else report.values
            samples = values.get("samples", 1)
            if run.report(values.get(metric), samples=samples, test=values.get("test")):
                return
        if run.rank == 0:
            command.reports.require_metric()


class _RankState(IntEnum):
    """State of the command on one rank, as exchanged between the ranks."""

    RUNNING = 0
    REPORTED = 1
    ENDED = 2
    FAILED = 3


class _Command:
    """A running command and the reports that it prints."""

    def __init__(self, process: "subprocess.Popen[bytes]", spec: RunSpec, began_s: float) -> None:
        self._process, self._errors = process, _Tail(process)
        self.reports, self.timing = _Reports(process, spec, began_s), _Timing(began_s)

    def next(self, timeout_s: float | None = None) -> "tuple[_Report | None, float | None]":
        """Wait for the next report.

        Returns:
            The report and its training seconds, or (None, None) if the command has ended.

        Raises:
            UserError: The command has failed or has printed an invalid report.
            queue.Empty: No report has arrived within `timeout_s` seconds.
        """
        report = self.reports.next(timeout_s)
        if report is not None:
            return report, self.timing.train_s(report)
        self._require_success(self._process.wait())
        return None, None

    def next_of_ranks(self, run: Run) -> "tuple[_Report | None, float | None]":
        """Wait until the command of rank 0 reports or ends. Collective: all ranks must call it.

        The ranks exchange their states every POLL_S seconds, so that all ranks stop if one fails.

        Returns:
            The report (None on ranks other than 0) and its training seconds, or (None, None) if the
            command of rank 0 has ended.

        Raises:
            UserError: The command has failed on a rank.
        """
        while True:
            report, train_s, problem = None, None, None
            state = _RankState.RUNNING
            try:
                if run.rank == 0:
                    with contextlib.suppress(queue.Empty):
                        report, train_s = self.next(POLL_S)
                        state = _RankState.ENDED if report is None else _RankState.REPORTED
                else:
                    time.sleep(POLL_S)
                if (code := self._process.poll()) is not None:
                    self._require_success(code)
            except UserError as error:
                state, problem = _RankState.FAILED, error
            rows = run.gather([float(state), train_s or 0.0])
            states = [_RankState(round(row[0])) for row in rows]
            if problem is not None:
                raise problem
            if _RankState.FAILED in states:
                failed = states.index(_RankState.FAILED)
                raise UserError(f"the command failed on rank {failed}.", ErrorCode.COMMAND)
            if states[0] is not _RankState.RUNNING:
                return report, rows[0][1] if states[0] is _RankState.REPORTED else None

    def _require_success(self, code: int) -> None:
        """Raise UserError with the last line of stderr if the exit code is not 0."""
        if code == 0:
            return
        text = self._errors.text()
        lines = (line.strip() for line in reversed(text.splitlines()))
        last = next((line for line in lines if line), "no line on stderr")
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        raise UserError(
            f"the command ended with {how} ({shorten(last, MAX_SHOWN)}).",
            ErrorCode.COMMAND,
            details=text,
        )


@dataclass(frozen=True)
class _Report:
    """A line of output that reports the metric."""

    values: dict[str, Any]
    """Values of the metric and of the optional keys (OPTIONAL_KEYS), by name."""
    at_s: float
    """Time at which the line arrived (`time.perf_counter`)."""


class _Timing:
    """Computes how many training seconds each report of a command covers; `train_s` takes the
    reports in their order."""

    def __init__(self, began_s: float) -> None:
        self.is_untimed = False
        """Whether any report so far had no `train_s`."""
        self._began_s = self._before_s = began_s
        """Times (`time.perf_counter`) of the start of the command and of the previous report."""
        self._sum_s = self._silence_s = 0.0
        """Sum of all `train_s`, and seconds without output before the last group of lines that
        arrived together."""
        self._num_together = 0
        """Number of latest reports that each arrived together with the report before it."""

    def train_s(self, report: _Report) -> float:
        """Return the training seconds of a report: its `train_s` or, if it has none, the seconds
        since the previous report.

        Raises:
            UserError: The report has no `train_s` and its arrival time is useless, or the sum of
                all `train_s` so far exceeds the run time of the command.
        """
        gap_s, self._before_s = report.at_s - self._before_s, report.at_s
        is_together = gap_s < TOGETHER_S
        self._num_together = self._num_together + 1 if is_together else 0
        self._silence_s = self._silence_s if is_together else gap_s
        train_s: float | None = report.values.get("train_s")
        if train_s is None:
            self.is_untimed = True
            # Two lines in a row, because a single line may be read late, together with the next.
            if self._num_together > 1 and self._silence_s > SILENCE_S:
                raise UserError(
                    f"the command's lines came together after {self._silence_s:.1f} s of silence "
                    "and have no train_s, so they cannot be timed; print train_s, the training "
                    "seconds since the previous line, or flush each line when it is printed.",
                    ErrorCode.COMMAND,
                )
            return max(gap_s, MIN_TRAIN_S)
        self._sum_s += train_s
        ran_s = report.at_s - self._began_s
        if self._sum_s > EXCESS * ran_s + EXCESS_S:
            raise UserError(
                f"the command's train_s add up to {self._sum_s:.4g} s and it has run for "
                f"{ran_s:.4g} s; print the training seconds since the previous line, not since the "
                "start, not summed over processes, and not in milliseconds.",
                ErrorCode.COMMAND,
            )
        return max(train_s, MIN_TRAIN_S)


class _Reports:
    """Reads the reports of a command in a separate thread.

    The thread records when each line arrives, because the search may ask for the next report much
    later. The command's stdout is also copied to the stdout of this process.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", spec: RunSpec, began_s: float) -> None:
        self._metric = spec.objective.judged_by.name
        pattern = spec.objective.metric_pattern
        self._pattern = re.compile(pattern) if pattern else None
        self._other_keys: list[str] = []
        """Keys of the first line of JSON that lacks the metric, for an error message."""
        self._num_reports = 0
        """Number of reports that were read."""
        self._queue: queue.Queue[_Report | BaseException | None] = queue.Queue()
        """Reports and errors from the thread; None after the end of the output."""
        _in_thread(self._read, process.stdout)

    def next(self, timeout_s: float | None = None) -> _Report | None:
        """Wait for the next report; return None at the end of the output.

        Raises:
            UserError: A line is invalid.
            queue.Empty: No report has arrived within `timeout_s` seconds.
        """
        report = self._queue.get(timeout=timeout_s)
        if isinstance(report, BaseException):
            raise report
        return report

    def require_metric(self) -> None:
        """Raise UserError if the command has ended without reporting the metric."""
        if not self._num_reports:
            raise UserError(self._missing_metric_message(), ErrorCode.COMMAND)

    def _missing_metric_message(self) -> str:
        """Return the error message for a command that has not reported the metric."""
        metric = self._metric
        if self._pattern is not None:
            return (
                f"{UNREPORTED} {metric}: no line has a number where objective.metric_pattern looks "
                f"for it ({self._pattern.pattern}); correct the pattern."
            )
        if self._other_keys:
            keys = ", ".join(clean(key) for key in self._other_keys[:MAX_KEYS])
            return (
                f"{UNREPORTED} {metric}, {OTHER_KEYS} {keys}; name one of these with "
                "objective.metric (and objective.direction), or find the number with "
                "--metric-pattern."
            )
        return (
            f'{UNREPORTED} {metric}; let it print lines of JSON such as {{"{metric}": 0.91}}, or '
            "find the number with --metric-pattern."
        )

    def _read(self, stdout: IO[bytes]) -> None:
        """Put all reports into the queue; runs in the separate thread."""
        try:
            for line, at_s in _lines(stdout):
                if (values := self._parse(line)) is not None:
                    self._num_reports += 1
                    self._queue.put(_Report(values, at_s))
            self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 (raised again by `next`)
            self._queue.put(error)

    def _parse(self, line: str) -> dict[str, Any] | None:
        """Return the values that a line reports, or None if it reports nothing."""
        line = ESCAPE_CODE.sub("", line) if "\x1b" in line else line
        values = self._match_pattern(line) if self._pattern else _json(line)
        if values is None:
            return None
        value = values.get(self._metric, math.nan)
        if isinstance(value, list | dict):
            return None  # this is no report, but printed settings or a history of values
        if self._metric not in values:
            self._other_keys = self._other_keys or list(values)
            return None
        values[self._metric] = math.nan if value is None else value  # JSON has no NaN
        values = {key: entry for key, entry in values.items() if entry is not None}
        for key in (self._metric, *OPTIONAL_KEYS):
            if key in values and not _is_number(values[key]):
                raise self._line_error(line, f"{key} is not a number (found {values[key]!r})")
        if (train_s := values.get("train_s")) is not None and not 0 <= train_s < math.inf:
            raise self._line_error(
                line, "train_s must be 0 or more, the training seconds since the previous line"
            )
        if not 1 <= values.get("samples", 1) <= MAX_SAMPLES:
            raise self._line_error(line, "samples must be 1 or more, those since the previous line")
        return values

    def _match_pattern(self, line: str) -> dict[str, Any] | None:
        """Return the values that `objective.metric_pattern` finds in a line; None if it does not
        match."""
        assert self._pattern is not None
        if (match := self._pattern.search(line)) is None:
            return None
        texts = {key: text for key, text in match.groupdict().items() if key in OPTIONAL_KEYS}
        try:
            values = {key: _to_float(text) for key, text in texts.items() if text}
            return {self._metric: _to_float(match[1])} | values
        except (AttributeError, ValueError):  # the group has matched nothing, or no number
            return None

    def _line_error(self, line: str, problem: str) -> UserError:
        """Return the error for an invalid report."""
        return UserError(
            f"the command's line {shorten(clean(line), 80)}: {problem}.", ErrorCode.COMMAND
        )


def _json(line: str) -> dict[str, Any] | None:
    """Return the JSON object at the end of a line, with metrics renamed to raybench's names; None
    if the line has no such object."""
    if (start := OBJECT_START.search(line)) is None:
        return None
    try:
        content: dict[str, Any] = json.loads(line[start.start() :])
    except (ValueError, RecursionError):
        return None
    return {OTHER_METRIC_NAMES.get(key) or key: value for key, value in content.items()}


def _to_float(text: str) -> float:
    """Return the number in a text that a pattern has found, without punctuation after it."""
    return float(text.rstrip(AFTER_NUMBER))


def _is_number(value: object) -> bool:
    """Return whether a parsed JSON value is a number (booleans are not)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lines(stdout: IO[bytes]) -> Iterator[tuple[str, float]]:
    """Yield each line of a pipe with the time (`time.perf_counter`) at which its end arrived."""
    pending = b""
    for chunk in _chunks(stdout):
        at_s = time.perf_counter()
        _write_all(chunk, 1)
        *ended, pending = (pending + chunk).replace(b"\r", b"\n").split(b"\n")
        pending = pending[-MAX_LINE_BYTES:]
        for line in ended:
            yield line.decode(errors="replace"), at_s
    if pending:
        yield pending.decode(errors="replace"), time.perf_counter()


class _Tail:
    """Copies a command's stderr to that of this process, and keeps the last TAIL_BYTES bytes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._tail = b""
        self._thread = _in_thread(self._read, process.stderr)

    def text(self) -> str:
        """Return the end of stderr; call after the command has ended."""
        self._thread.join(GRACE_S)  # a child process that still runs may keep the pipe open
        return self._tail.decode(errors="replace")

    def _read(self, stderr: IO[bytes]) -> None:
        """Copy stderr until it is closed; runs in a separate thread."""
        for chunk in _chunks(stderr):
            _write_all(chunk, 2)
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]


def _chunks(pipe: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a pipe as it arrives; close the pipe at its end."""
    with pipe:
        while chunk := os.read(pipe.fileno(), CHUNK_BYTES):
            yield chunk


def _write_all(content: bytes, descriptor: int) -> None:
    """Write bytes to a file descriptor of this process: 1 is stdout, 2 is stderr."""
    while content:
        content = content[os.write(descriptor, content) :]


def _in_thread(work: Callable[[Any], None], pipe: IO[bytes] | None) -> threading.Thread:
    """Start a thread that calls `work(pipe)`, and return the thread."""
    thread = threading.Thread(target=work, args=[pipe], daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def _running_process(
    words: list[str], spec: RunSpec, more: Mapping[str, str]
) -> "Iterator[subprocess.Popen[bytes]]":
    """Context manager that runs a command in a new process group, which is killed on exit.

    `more` contains environment variables that are set in addition to those of this process.

    Raises:
        UserError: The command cannot be started.
    """
    environment = os.environ | {
        # As in an activated environment, so that the python, torchrun and accelerate next to this
        # Python are found.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(spec.cpus_per_worker),
        **more,
    }
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(
            f"the command cannot be started ({words[0]}: {error.strerror}).", ErrorCode.COMMAND
        ) from None
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        guard.kill()
        guard.communicate()
        _kill_with_children(process)


def _kill_with_children(process: "subprocess.Popen[bytes]") -> None:
    """Kill a command with all its child processes, including those in other process groups."""
    family = list[psutil.Process]()
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        logger.warning("the command still runs %.0f s after SIGTERM and is killed", GRACE_S)
    _, alive = psutil.wait_procs(family, timeout=0.1)
    for child in alive:
        with contextlib.suppress(psutil.Error):
            child.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
