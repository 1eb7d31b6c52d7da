"""Log a study to experiment trackers (`--log`): their common interface `Sink`, the names and values
that are logged, and the thread that writes to a tracker.

Each tracker has its own thread, which reads the records file as it grows, so that training never
waits for a tracker. Logging to a tracker that raises an exception ends. At the end of a study, the
driver waits for the trackers for a limited time.
"""

import contextlib
import importlib
import importlib.util
import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self

from raybench.results.records import add_point, record_of, what_runs
from raybench.results.store import RECORDS_FILE, StudyFiles, plain
from raybench.spec.documents import flat_keys
from raybench.spec.errors import ErrorCode, StudyError, UserError, did_you_mean
from raybench.spec.run import RunSpec
from raybench.spec.text import HIDDEN, KEY, clean, command_line, counted, redact_text
from raybench.stats.clock import unix_seconds
from raybench.stats.record import Evaluation, Role, RunRecord

Value = str | int | float | bool
Figures = Mapping[str, float]
CUT_OFF = {"state": "cut off"}
"""Text fields of a run that has no final record; see `Sink.end`."""


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """A run that is written to an experiment tracker."""

    name: str
    """Name of the run in the study, without control characters."""
    role: Role
    spec: RunSpec
    began: float
    """Unix time at which training would have begun if it had never paused."""


class Sink(Protocol):
    """Interface of an experiment tracker. An exception ends the logging to this tracker only.

    For each run, `start` is called, then `points` any number of times, then `end`; calls for
    several runs may interleave. If the workers of a run were lost or the study was interrupted,
    `start` may be called again for the run, with or without a call of `end` before. The new attempt
    replaces the earlier one, so that the tracker shows the run once.
    """

    def start(self, run: LoggedRun) -> None:
        """Start a run, which replaces any earlier attempt of the same name."""

    def points(self, run: LoggedRun, points: Sequence[Figures]) -> None:
        """Add evaluations to the learning curve of a run.

        Args:
            run: The run.
            points: Values of each evaluation, as returned by `curve_values`.
        """

    def end(self, run: LoggedRun, figures: Figures, texts: Mapping[str, str]) -> None:
        """End a run, and write its numbers (`run_figures`) and text fields (`run_words`).

        A run that stopped before its final record was written has no numbers, and the text fields
        CUT_OFF.
        """

    def flush(self) -> None:
        """Flush buffered data."""
        return

    def close(self) -> str:
        """Close the tracker; return a phrase that says where to find the output."""


def params_of(spec: RunSpec) -> dict[str, Value]:
    """Return the values of a run spec that are not None, keyed by name.

    Nested keys are written with dots (`dataset.name`) and lists as JSON. Values that look like
    secrets are masked.
    """
    params: dict[str, Value] = {}
    for key, value in flat_keys(spec.document()).items():
        name = clean(key)
        if isinstance(value, bool | int | float):
            params[name] = value
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            params[name] = HIDDEN if KEY.search(f"{name}=x") else redacted(text)
    return params


def redacted(text: str) -> str:
    """Return text from the user as one line with secrets masked."""
    return redact_text(clean(text), os.environ)


def curve_values(point: Evaluation, metric_name: str) -> dict[str, float]:
    """Return the numbers of an evaluation, keyed by name.

    These are the validation metric, the mean training loss since the previous evaluation, the
    learning rate, the samples per second, and the training seconds, samples and epochs so far.
    """
    names = ("train_loss", "learning_rate", "samples_per_s", "epoch", "samples", "train_s")
    values = {name: getattr(point, name) for name in names}
    return _finite({f"validation_{metric_name}": point.value} | values)


def run_figures(record: RunRecord) -> dict[str, float]:
    """Return the numbers of a finished run, keyed by name; `ledger.<phase>_s` is the duration of a
    phase in seconds."""
    metric, seconds = record.spec.objective.judged_by, record.time_to_target_s
    figures = {
        "time_to_target_s": seconds,
        "worker_seconds_to_target": seconds and seconds * record.spec.num_workers,
        metric.best_column: record.best_value,
        metric.test_column: record.test_value,
        "train_s": record.ledger["train"],
        "wall_s": record.wall_s,
        "samples": record.samples,
        "num_parameters": record.num_parameters,
    }
    phases = {f"ledger.{clean(phase)}_s": spent for phase, spent in record.ledger.items()}
    return _finite(figures | phases)


def run_words(record: RunRecord) -> dict[str, str]:
    """Return the text fields of a finished run, such as role, state and failure, keyed by name."""
    names = ("role", "state", "stop", "failure", "message", "source")
    texts = {name: getattr(record, name) for name in names}
    return {name: redacted(value) for name, value in texts.items() if value is not None}


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    recorded = {name: value for name, value in values.items() if value is not None}
    return {name: float(value) for name, value in recorded.items() if math.isfinite(value)}


POLL_S = 0.5
"""Seconds between two reads of the records."""
CLOSE_S = 30.0
"""Maximum seconds to wait for the trackers at the end of a study."""
NOT_NEEDED = ("torch", "tensorflow")
"""Modules that tensorboardX and W&B import if they are installed. They are hidden, since importing
them takes seconds and hundreds of megabytes."""


@dataclass(frozen=True, kw_only=True)
class LoggerKind:
    """An experiment tracker that `--log` supports; its module `to_<name>.py` defines
    `open_sink(folder, study)`."""

    title: str
    package: str
    """Name of the package that is imported."""
    install: str
    """Name under which pip installs the package."""


LOGGERS: dict[str, LoggerKind] = {
    "tensorboard": LoggerKind(title="TensorBoard", package="tensorboardX", install="tensorboardX"),
    "mlflow": LoggerKind(title="MLflow", package="mlflow", install="mlflow-skinny"),
    "wandb": LoggerKind(title="Weights & Biases", package="wandb", install="wandb"),
}


def check_loggers(names: Sequence[str]) -> None:
    """Check the names of `--log`, without importing the experiment trackers.

    Raises:
        UserError: A tracker is unknown, or its package is not installed.
    """
    for name in names:
        if name not in LOGGERS:
            raise UserError(f"--log {name}: {did_you_mean(name, LOGGERS)}", ErrorCode.UNKNOWN_NAME)
        kind = LOGGERS[name]
        module_spec = importlib.util.find_spec(kind.package)
        # A folder with the name of the package, which trackers leave behind, has no origin.
        if module_spec is None or module_spec.origin is None:
            problem = f"the package {kind.package} is not installed"
            raise UserError(
                f"--log {name}: {problem}; install it with: pip install {kind.install}",
                ErrorCode.NOT_INSTALLED,
            )


class Loggers:
    """Context manager that writes the records to experiment trackers, each in its own thread.

    Args:
        tools: Names of trackers, checked by `check_loggers`.
        folder: Results folder.
        place: Folder or URL of the study, as the user gave it.
        say: Prints a message; it is called from other threads too.
        close_s: Maximum seconds that `close` waits; None to wait until everything is written.
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
        self._tools = list(dict.fromkeys(tools))
        self._folder, self._place, self._say = folder, place, say
        self._close_s = threading.TIMEOUT_MAX if close_s is None else close_s
        self._threads: list[_Follower] = []

    def start(self, *, is_whole: bool = False) -> None:
        """Start the threads. The records file must exist, and from now on it may only grow.

        Args:
            is_whole: Whether to log the records that are already in the file, too.
        """
        position = 0 if is_whole else (self._folder / RECORDS_FILE).stat().st_size
        self._threads = [
            _Follower(tool, self._folder, self._place, position, self._say) for tool in self._tools
        ]
        with _hidden_modules(NOT_NEEDED):
            for follower in self._threads:
                follower.load()
        for follower in self._threads:
            follower.start()

    @property
    def has_failed(self) -> bool:
        """Whether any tracker did not get all data; valid after `close`."""
        return any(follower.has_failed for follower in self._threads)

    def close(self) -> None:
        """Wait until everything is written, at most `close_s` seconds; stop logging to trackers
        that are not finished then."""
        for follower in self._threads:
            follower.closed.set()
        until = time.monotonic() + self._close_s
        for follower in self._threads:
            follower.join(max(0.0, until - time.monotonic()))
            if follower.is_alive():
                follower.drop("did not take everything")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@contextlib.contextmanager
def _hidden_modules(names: Sequence[str]) -> Iterator[None]:
    """Context manager that makes imports of the given modules fail in all threads.

    Modules that are already imported are not affected.
    """
    new = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(new))  # type: ignore[arg-type]  # None raises ImportError
    try:
        yield
    finally:
        for name in new:
            del sys.modules[name]


class _Follower(threading.Thread):
    """Thread that writes new records to one tracker, until `closed` is set.

    It is a daemon thread, so that a library that waits for a server does not keep the driver alive.
    It begins at byte `position` of the records file. `place` is the folder or URL of the study, as
    the user gave it.
    """

    def __init__(
        self, tool: str, folder: Path, place: str, position: int, say: Callable[[str], None]
    ) -> None:
        super().__init__(name=f"log-{tool}", daemon=True)
        self.title, self._tool, self._say = LOGGERS[tool].title, tool, say
        self._folder, self._position = folder, position
        self._study = Path(place.partition("?")[0]).name or folder.name
        again = command_line("report", place, "--log", tool)
        self._again = f"the study continues; {again} writes all of it."
        self.closed = threading.Event()
        self.has_failed = False

    def load(self) -> None:
        """Import the module of the tracker; if that fails, nothing is logged to it."""
        try:
            self._module = importlib.import_module(f"raybench.loggers.to_{self._tool}")
        except Exception as error:  # noqa: BLE001 (a library may raise anything)
            self.drop(self._reason(error))

    def run(self) -> None:
        """Write the records until the study ends; print what was written, or why logging ended."""
        if self.has_failed:
            return
        try:
            written = self._follow()
        except BaseException as error:  # noqa: BLE001 (a library may even call sys.exit)
            self.drop(self._reason(error))
        else:
            if not self.has_failed:
                self._say(written)

    def drop(self, reason: str) -> None:
        """Print, once, that logging to the tracker has ended, and why."""
        if not self.has_failed:
            self.has_failed = True
            self._say(f"--log {self._tool}: {self.title} {reason}; {self._again}")

    def _follow(self) -> str:
        """Write the records until `closed` is set; return a sentence about what was written."""
        sink: Sink = self._module.open_sink(self._folder, self._study)
        feed, is_last = Feed(sink), False
        with (self._folder / RECORDS_FILE).open("rb") as records:
            records.seek(self._position)
            while not is_last:
                is_last = self.closed.wait(POLL_S)
                for line in new_lines(records):
                    try:
                        content = json.loads(line)
                        name_and_record = record_of(plain(content))
                    except ValueError:
                        continue  # an invalid line is reported when the study is read
                    feed.take(*name_and_record, content)
                feed.flush()
        feed.close()
        where = sink.close()
        return redacted(f"{self.title}: {counted(feed.num_ended, 'run')} written: {where}")

    def _reason(self, error: BaseException) -> str:
        """Return the reason why an error ended the logging, for a message.

        Unless it is a UserError, its traceback is written to a file.
        """
        reason = str(error).rstrip(".") or type(error).__name__
        if isinstance(error, UserError):
            return redacted(f"ended, {reason}")
        reason = reason.splitlines()[0][:300]
        try:
            files = StudyFiles(self._folder)
            path = files.write_error(f"log-{self._tool}", traceback.format_exc())
            traceback_note = f"traceback: {path}"
        except (OSError, StudyError) as problem:  # the disk may be full
            traceback_note = f"traceback not kept: {problem}"
        return redacted(f"ended, {type(error).__name__}: {reason} ({traceback_note})")


@dataclass
class _OpenRun:
    """A run whose final record has not been read yet."""

    curve: list[Evaluation] = field(default_factory=list)
    role_and_spec: tuple[Role, RunSpec] | None = None
    logged: LoggedRun | None = None
    """The run as it was started in the tracker; None if it must be started there, possibly
    again."""
    num_written: int = 0
    """Number of evaluations that were written to the tracker."""


class Feed:
    """Writes runs to an experiment tracker, each with the learning curve of its last attempt."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._open: dict[str, _OpenRun] = {}
        self.num_ended = 0
        """Number of runs that were ended in the tracker."""

    def take(self, name: str, record: object, line: dict[str, Any]) -> None:
        """Process a line of the records.

        Args:
            name: Name of the run, from `record_of(line)`.
            record: Content of the line, from `record_of(line)`.
            line: The line as plain data.
        """
        if isinstance(record, Evaluation):
            run = self._open.setdefault(name, _OpenRun())
            run.role_and_spec = what_runs(line) or run.role_and_spec
            add_point(run.curve, record)
            if len(run.curve) <= run.num_written:  # the tracker has points of an earlier attempt
                run.logged, run.num_written = None, 0
        elif isinstance(record, RunRecord):
            self._end(record, self._open.pop(name, _OpenRun()))

    def flush(self) -> None:
        """Write the new evaluations of runs that have not ended, and flush the tracker."""
        for name, run in self._open.items():
            if run.role_and_spec is not None and run.num_written < len(run.curve):
                self._write(name, run, began=unix_seconds() - run.curve[-1].train_s)
        self._sink.flush()

    def close(self) -> None:
        """End the runs that have no final record in the tracker."""
        for run in self._open.values():
            if run.logged is not None:
                self._sink.end(run.logged, {}, CUT_OFF)
        self._open.clear()

    def _end(self, record: RunRecord, run: _OpenRun) -> None:
        run.role_and_spec = record.role, record.spec
        finished = record.finished
        ended_s = datetime.fromisoformat(finished).timestamp() if finished else unix_seconds()
        logged = self._write(record.trial, run, began=ended_s - record.ledger["train"])
        self._sink.end(logged, run_figures(record), run_words(record))
        self.num_ended += 1

    def _write(self, name: str, run: _OpenRun, *, began: float) -> LoggedRun:
        """Write the new evaluations of a run; the run is started first if it is not in the tracker
        yet. `began`: see `LoggedRun`."""
        assert run.role_and_spec is not None
        if run.logged is None:
            role, spec = run.role_and_spec
            run.logged = LoggedRun(name=name, role=role, spec=spec, began=began)
            self._sink.start(run.logged)
        metric = run.logged.spec.objective.judged_by.name
        new = run.curve[run.num_written :]
        self._sink.points(run.logged, [curve_values(point, metric) for point in new])
        run.num_written = len(run.curve)
        return run.logged


def new_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines that were appended to a file since the last call.

    An incomplete last line is left for the next call.
    """
    while (line := file.readline()).endswith(b"\n"):
        yield line
    file.seek(-len(line), os.SEEK_CUR)
