"""A command as a training loop of the user's own: started, read line by line, killed with all its
children.

A line of JSON on its stdout is a report: `{"accuracy": 0.91, "samples": 50000, "train_s": 12.3}`.
The last two are since the line before, and optional: without `samples` a line counts as one sample,
without `train_s` all time since the line before is training. Before the first line it is start-up
too, so that line waits for the second, a while, and counts as long as it where it took longer.
What else it prints is passed on.
"""

import contextlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from raybench.spec.errors import UserError
from raybench.spec.metric import OTHER_METRIC_NAMES
from raybench.spec.own_loop import words_of
from raybench.spec.run import RunSpec, flat
from raybench.spec.text import shorten
from raybench.training.own import Run

GRACE_S = 10.0
"""How long a command may take to end after SIGTERM, before it and its children are killed."""
GUARD = 'read _; kill -TERM "-$0"; sleep 10; kill -KILL "-$0"'
"""Ends the command's process group when the worker that started it is gone, with its pipe."""
NAMED = ("samples", "train_s", "test")
"""What a line may say beside the metric."""
SEEN_ONCE = (
    "the command reports once and does not say train_s, so its start-up counts as training; let it "
    "print the seconds it has trained, or more often"
)
WAITS, LEAST_S = 2.0, 1.0
"""How many times as long as the first line took the second is waited for, and at least."""
TAIL_BYTES = 4000
MOST_SHOWN = 200
"""Characters of the last line of an error."""


def values_of(spec: RunSpec, learning_rate: float) -> dict[str, Any]:
    """Return what may stand in a command, by name."""
    content = flat(spec.model_dump(mode="json", exclude={"workload", "dataset", "objective"}))
    return content | {"global_batch_size": spec.global_batch_size, "learning_rate": learning_rate}


def run_command(run: Run) -> None:
    """Run the command of a run spec to its end, or until a report says stop."""
    spec = run.spec
    words = words_of(spec.workload, values_of(spec, run.learning_rate))
    metric, pattern = spec.objective.judged_by.name, spec.objective.metric_pattern
    with tempfile.TemporaryFile() as errors, _started(words, spec, errors) as process:
        assert process.stdout is not None
        lines = _Lines(process.stdout, metric, re.compile(pattern) if pattern else None)

        def read(most_s: float | None = None) -> dict[str, Any] | None:
            with run.training():
                return lines.next(most_s)

        def is_enough(told: dict[str, Any]) -> bool:
            return run.report(told[metric], samples=told.get("samples", 1), test=told.get("test"))

        told = read()
        if told is not None and told.get("train_s") is None:
            first, first_s = told, run.on_clock()
            told = read(max(WAITS * first_s, LEAST_S))
            if told is None and lines.is_over:
                told, run.note = first, SEEN_ONCE
            else:
                second_s = run.on_clock() - first_s
                run.moved(second_s, "train", "report")  # until its own report
                if told is not None:
                    share = first.get("samples", 1) / told.get("samples", 1)
                    run.took(min(second_s * share, run.on_clock()), "setup")
                if is_enough(first):
                    return
                run.moved(second_s, "report", "train")
                told = told or read()
        while told is not None:
            if (train_s := told.get("train_s")) is not None:
                run.took(float(train_s), "eval")
            if is_enough(told):
                return
            told = read()
        _require_success(process.wait(), errors)


class _Lines:
    """What a command reports, read in a thread of its own: the next may be waited for in vain.
    Lines without the metric are passed on."""

    def __init__(self, lines: IO[str], metric: str, pattern: re.Pattern[str] | None) -> None:
        self.is_over = False
        self._found: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        threading.Thread(target=self._read, args=[lines, metric, pattern], daemon=True).start()

    def next(self, most_s: float | None = None) -> dict[str, Any] | None:
        """Return the next report; None where there is no more, or none within `most_s` seconds."""
        if self.is_over:
            return None
        try:
            found = self._found.get(timeout=most_s)
        except queue.Empty:
            return None
        if isinstance(found, BaseException):
            raise found
        self.is_over = found is None
        return found

    def _read(self, lines: IO[str], metric: str, pattern: re.Pattern[str] | None) -> None:
        try:
            for line in lines:
                if (found := _read(line, metric, pattern)) is None:
                    print(line, end="", flush=True)
                else:
                    self._found.put(found)
            self._found.put(None)
        except BaseException as error:  # noqa: BLE001 (raised where the next is waited for)
            self._found.put(error)


def _read(line: str, metric: str, pattern: re.Pattern[str] | None) -> dict[str, Any] | None:
    """Return what a line reports, the metric by its name; None of a line that reports nothing."""
    if pattern is not None:
        if (found := pattern.search(line)) is None:
            return None
        named = {key: text for key, text in found.groupdict().items() if key in NAMED and text}
        with contextlib.suppress(TypeError, ValueError):
            return {metric: float(found[1])} | {key: float(text) for key, text in named.items()}
        return None
    try:
        content = json.loads(line) if line.lstrip().startswith("{") else None
    except ValueError:
        return None
    if not isinstance(content, dict):
        return None
    told: dict[str, Any] = {OTHER_METRIC_NAMES.get(key) or key: content[key] for key in content}
    value = math.nan if told.get(metric, 0) is None else told.get(metric)  # JSON has no NaN
    if not isinstance(value, int | float):
        return None
    for key in NAMED:
        if not isinstance(told.get(key, 0), int | float):
            raise UserError(f"the command's line {shorten(line.strip(), 80)}: {key} is no number.")
    return told | {metric: value}


@contextlib.contextmanager
def _started(
    words: list[str], spec: RunSpec, errors: IO[bytes]
) -> "Iterator[subprocess.Popen[str]]":
    """Have the command running in a process group of its own, which ends with the context."""
    environment = os.environ | {
        # As in a shell in which this environment is active: its python, torchrun, accelerate.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(spec.cpus_per_worker),
    }
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"the command cannot be started ({words[0]}: {error.strerror}).") from None
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
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """End a command with all its children, also those with a process group of their own."""
    family = list[psutil.Process]()
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    _, alive = psutil.wait_procs(family, timeout=0.1)
    for child in alive:
        with contextlib.suppress(psutil.Error):
            child.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _require_success(code: int, errors: IO[bytes]) -> None:
    """Raise UserError with the last line of stderr where a command has failed."""
    if code == 0:
        return
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - TAIL_BYTES))
    text = errors.read().decode(errors="replace")
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "no line on stderr")
    how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
    raise UserError(
        f"the command ended with {how} ({shorten(last.strip(), MOST_SHOWN)}).", details=text
    )
