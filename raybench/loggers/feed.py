"""The process that writes a study to one tool. It follows the records file and keeps a ledger of
what the tool has, so that each run is written once.

A separate process, because a tool's library may hang, exit, fill the memory or install signal and
exit handlers. `END` on standard input says that the study has ended; end of file without it, that
the driver has died. Messages for the user go to standard output, one per line.
"""

import importlib
import json
import os
import select
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Self, TextIO

import filelock

from raybench.loggers.processes import END, LOGGERS
from raybench.loggers.sink import (
    WINNERS,
    LoggedRun,
    Sink,
    curve_values,
    run_figures,
    run_words,
    shown,
    winners_of,
)
from raybench.results.records import add_point, record_of, what_runs
from raybench.results.store import RECORDS_FILE, StudyFiles, mend_last_line, plain
from raybench.spec.errors import DONE, FAILED, ErrorCode, StudyError, UserError
from raybench.spec.run import RunSpec
from raybench.spec.text import command_line, counted
from raybench.stats.clock import unix_seconds
from raybench.stats.record import Evaluation, Role, RunRecord

FOLDER = "logged"


class WrittenLedger:
    """`logged/<tool>.jsonl`: the runs that the tool has, and which of them have ended there.

    Each line names the place that was written to; lines of other places do not count. Without the
    file everything is written again. A context manager that one process at a time can enter.
    """

    def __init__(self, folder: Path, tool: str) -> None:
        self._path, self._tool, self._place = folder / FOLDER / f"{tool}.jsonl", tool, ""
        self.names: dict[str, str] = {}
        """Name of each run in the tool."""
        self._ended: set[tuple[str, str]] = set()
        """Runs and how they ended; a run that was interrupted and resumed has several ends."""

    def __enter__(self) -> Self:
        self._path.parent.mkdir(exist_ok=True)
        self._lock = filelock.FileLock(self._path.with_name(f".{self._path.name}.lock"), timeout=0)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise UserError(
                f"--log {self._tool}: another process logs this study there; wait for its end.",
                ErrorCode.STUDY_IN_USE,
            ) from None
        mend_last_line(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._lock.release()

    def open(self, place: str) -> None:
        """Read the lines of `place`, and write lines for it from now on."""
        self._place = place
        for content in map(json.loads, self._path.read_text(encoding="utf-8").splitlines()):
            if content["place"] == place and "id" in content:
                self.names[content["run"]] = content["id"]
            elif content["place"] == place:
                self._ended.add((content["run"], content["ended"]))

    def holds(self, record: RunRecord) -> bool:
        """Return whether this end of the run was written."""
        return (record.trial, _end_of(record)) in self._ended

    def started(self, run: str, name: str) -> None:
        """Record that a run was started in the tool under this name."""
        self.names[run] = name
        self._write(run, id=name)

    def ended(self, record: RunRecord) -> None:
        """Record that the run was written to this end."""
        self._ended.add((record.trial, _end_of(record)))
        self._write(record.trial, ended=_end_of(record))

    def _write(self, run: str, **what: str) -> None:
        self._file.write(json.dumps({"run": run, **what, "place": self._place}) + "\n")
        self._file.flush()


def _end_of(record: RunRecord) -> str:
    """Return a key that differs between the ends of a run that was interrupted and resumed."""
    return f"{record.finished} {record.stop} {record.samples}"


@dataclass
class _OpenRun:
    """A run whose record has not been read yet."""

    curve: list[Evaluation] = field(default_factory=list)
    what: tuple[Role, RunSpec] | None = None
    logged: LoggedRun | None = None
    """The run in the tool; None before it is started there, and when it has to be started again."""
    num_written: int = 0
    """Points of the curve that the tool has."""


class Feed:
    """Writes each run of a study to a tool once, with the curve of its last attempt."""

    def __init__(self, sink: Sink, ledger: WrittenLedger) -> None:
        self._sink, self._ledger = sink, ledger
        self._open: dict[str, _OpenRun] = {}
        self.num_ended = 0
        """Runs that were written to their end."""

    def take(self, name: str, found: object, line: dict[str, Any]) -> None:
        """Take the content of a line of the records, as `record_of` returns it."""
        if isinstance(found, Evaluation):
            run = self._open.setdefault(name, _OpenRun())
            run.what = what_runs(line) or run.what
            add_point(run.curve, found)
            if len(run.curve) <= run.num_written:  # the tool has points that no longer count
                run.logged, run.num_written = None, 0
        elif isinstance(found, RunRecord):
            self._end(found, self._open.pop(name, _OpenRun()))

    def flush(self) -> None:
        """Write the new points of open runs."""
        for name, run in self._open.items():
            if run.what is not None and run.num_written < len(run.curve):
                self._write(name, run, began=unix_seconds() - run.curve[-1].train_s)
        self._sink.flush()

    def close(self) -> None:
        """End the runs that have no record."""
        for run in self._open.values():
            if run.logged is not None:
                self._sink.cut_off(run.logged)
        self._open.clear()

    def _end(self, record: RunRecord, run: _OpenRun) -> None:
        is_held = run.logged is None and self._ledger.holds(record)
        if is_held and self._sink.has(self._ledger.names[record.trial]):
            return
        run.what = record.role, record.spec
        finished = record.finished
        ended_s = datetime.fromisoformat(finished).timestamp() if finished else unix_seconds()
        logged = self._write(record.trial, run, began=ended_s - record.ledger["train"])
        self._sink.end(logged, run_figures(record), run_words(record))
        self._ledger.ended(record)
        self.num_ended += 1

    def _write(self, name: str, run: _OpenRun, *, began: float) -> LoggedRun:
        """Write the new points; start the run first if the tool does not have it."""
        assert run.what is not None
        if run.logged is None:
            role, spec = run.what
            run.logged = LoggedRun(name=name, role=role, spec=spec, began=began)
            earlier = self._ledger.names.get(name)
            self._ledger.started(name, self._sink.start(run.logged, earlier))
        metric = run.logged.spec.objective.judged_by.name
        new = run.curve[run.num_written :]
        self._sink.points(run.logged, [curve_values(point, metric) for point in new])
        run.num_written = len(run.curve)
        return run.logged


def new_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the whole lines that were appended to a file; the rest of a line waits for its end."""
    while (line := file.readline()).endswith(b"\n"):
        yield line
    file.seek(-len(line), os.SEEK_CUR)


POLL_S = 0.5
"""Seconds between two looks at the records."""
NOT_NEEDED = ("torch", "tensorflow")
"""Modules that tensorboardX and W&B import if installed: seconds, and hundreds of megabytes."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Follow a study until it ends, then exit the process.

    Exit handlers of libraries do not run: some wait for a server that never answers.

    Args:
        arguments: name of the tool, folder, name of the study, the folder as the user named it.
    """
    tool, folder, study, place = arguments
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as words:
        # What libraries print is not for the user.
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.nice(10)  # the cores are for the training
        for name in NOT_NEEDED:
            sys.modules[name] = None  # type: ignore[assignment]  # importing it is an ImportError
        try:
            _follow(tool, Path(folder), study, words)
            code = DONE
        except BaseException as error:  # noqa: BLE001 (a library's, its sys.exit too)
            _say(words, _sentence(tool, Path(folder), place, error))
            code = FAILED
    os._exit(code)


def _follow(tool: str, folder: Path, study: str, words: TextIO) -> None:
    with WrittenLedger(folder, tool) as ledger, (folder / RECORDS_FILE).open("rb") as records:
        module = importlib.import_module(f"raybench.loggers.to_{tool}")
        sink: Sink = module.open_sink(folder, study)
        ledger.open(sink.place)
        feed, ended, bad = Feed(sink, ledger), None, 0
        while ended is None:
            found, _, _ = select.select([0], [], [], POLL_S)
            if found:  # END, or the end of the file
                ended = os.read(0, len(END)) == END
            for line in new_lines(records):
                try:
                    content = json.loads(line)
                    name, one = record_of(plain(content))
                except ValueError:
                    bad += 1  # the study's own screen says which
                else:
                    feed.take(name, one, content)
            feed.flush()
        feed.close()
        if ended and feed.num_ended:
            # Late: pandas takes a second, and nothing is trained any more.
            from raybench.results.study import load

            if winners := winners_of(load(folder)):
                ledger.started(WINNERS, sink.winners(winners, ledger.names.get(WINNERS)))
        where = sink.close()
    if ended:
        runs = counted(feed.num_ended, "run")
        runs += f" (without {bad} lines that are no records)" if bad else ""
        _say(words, f"{LOGGERS[tool].title}: {runs} written: {where}")


def _sentence(tool: str, folder: Path, place: str, error: BaseException) -> str:
    """Return why this tool gets no more data; keep the traceback unless it is a UserError."""
    again = f"the study goes on; {command_line('report', place, '--log', tool)} writes the rest."
    reason = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, UserError):
        return f"{reason}; {again}"
    reason = reason.splitlines()[0][:300]
    try:
        path = StudyFiles(folder).write_error(f"log-{tool}", traceback.format_exc())
        kept = f" (traceback: {path})"
    except (OSError, StudyError) as problem:  # where the disk is full there is no room for this
        kept = f" (traceback not kept: {problem})"
    return (
        f"--log {tool}: ended, {type(error).__name__}: {reason}{kept}; {LOGGERS[tool].hint}{again}"
    )


def _say(words: TextIO, sentence: str) -> None:
    words.write(f"{shown(sentence)}\n")
    words.flush()
