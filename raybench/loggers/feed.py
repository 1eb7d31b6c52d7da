"""The process that writes a study to one tool: it reads the records as they come, and remembers
beside them what the tool has, so that nothing comes twice.

A process of its own, because of what such a tool may do: hang, end the process, fill the memory, or
take signals and the interpreter's exit. It is told on its standard input that the study has ended
(`END`); where that is closed without a word, whoever ran the study is gone. Sentences for the user
go to its standard output, one a line.
"""

import importlib
import json
import os
import select
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self, TextIO

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
from raybench.loggers.tail import Tail
from raybench.results.records import add_point, record_of, what_runs
from raybench.results.store import RECORDS_FILE, StudyFiles, mend_last_line, plain
from raybench.spec.errors import DONE, FAILED, StudyError, UserError
from raybench.spec.run import RunSpec
from raybench.spec.text import command_line, counted
from raybench.stats.clock import unix_seconds
from raybench.stats.record import Evaluation, Role, RunRecord

FOLDER = "logged"


class WrittenLedger:
    """`logged/<tool>.jsonl`: every run that was begun in the tool, and every one that was ended.

    A line names the place it was written to; what lies elsewhere does not count. Without the file
    the tool is told everything anew. A context manager: one process has it.
    """

    def __init__(self, folder: Path, tool: str) -> None:
        self._path = folder / FOLDER / f"{tool}.jsonl"
        self._tool = tool
        self._names: dict[str, str] = {}
        self._ended: set[tuple[str, str]] = set()
        """Runs with their ends; of one that was interrupted and went on there are several."""
        self._place = ""

    def __enter__(self) -> Self:
        self._path.parent.mkdir(exist_ok=True)
        self._lock = filelock.FileLock(self._path.with_name(f".{self._path.name}.lock"), timeout=0)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise UserError(
                f"--log {self._tool}: another process logs this study there; wait for its end."
            ) from None
        mend_last_line(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._lock.release()

    def open(self, place: str) -> None:
        """Read what was written to `place`."""
        self._place = place
        for content in map(json.loads, self._path.read_text(encoding="utf-8").splitlines()):
            if content["place"] == place and "id" in content:
                self._names[content["run"]] = content["id"]
            elif content["place"] == place:
                self._ended.add((content["run"], content["ended"]))

    def name_of(self, run: str) -> str | None:
        """Return what a run is called in the tool, if it was begun there."""
        return self._names.get(run)

    def holds(self, record: RunRecord) -> bool:
        """Whether the tool has this end of a run, or had it before the run went on."""
        return (record.trial, _end_of(record)) in self._ended

    def begun(self, run: str, name: str) -> None:
        """Keep that a run was begun, by its name in the tool."""
        self._names[run] = name
        self._write(run, id=name)

    def ended(self, record: RunRecord) -> None:
        """Keep that a run was ended."""
        self._ended.add((record.trial, _end_of(record)))
        self._write(record.trial, ended=_end_of(record))

    def _write(self, run: str, **what: str) -> None:
        self._file.write(json.dumps({"run": run, **what, "place": self._place}) + "\n")
        self._file.flush()


def _end_of(record: RunRecord) -> str:
    """Return what differs between two ends of a run that was interrupted and went on."""
    return f"{record.finished} {record.stop} {record.samples}"


@dataclass
class _Live:
    """A run without a record."""

    curve: list[Evaluation] = field(default_factory=list)
    what: tuple[Role, RunSpec] | None = None
    run: LoggedRun | None = None
    """The tool's own run; None before there is one."""
    num_written: int = 0
    """Points of the curve that the tool has; -1 where it has some that count no more."""


class Feed:
    """Writes a study's runs to a tool: each once, with the curve of its last attempt."""

    def __init__(self, sink: Sink, ledger: WrittenLedger) -> None:
        self._sink, self._ledger = sink, ledger
        self._live: dict[str, _Live] = {}
        self.num_ended = 0
        """Runs that were written to their end."""

    def take(self, name: str, found: object, line: dict[str, Any]) -> None:
        """Take what a line of the records holds, as `record_of` returns it."""
        if isinstance(found, Evaluation):
            live = self._live.setdefault(name, _Live())
            live.what = what_runs(line) or live.what
            add_point(live.curve, found)
            if len(live.curve) <= live.num_written:
                live.num_written = -1
        elif isinstance(found, RunRecord):
            self._end(found, self._live.pop(name, _Live()))

    def flush(self) -> None:
        """Write the new points of runs that go on."""
        for name, live in self._live.items():
            if live.what is not None and live.num_written < len(live.curve):
                self._write(name, live, began=unix_seconds() - live.curve[-1].train_s)
        self._sink.flush()

    def close(self) -> None:
        """End in the tool what nobody trains any more."""
        for live in self._live.values():
            if live.run is not None:
                self._sink.cut_off(live.run)
        self._live.clear()

    def _end(self, record: RunRecord, live: _Live) -> None:
        name = self._ledger.name_of(record.trial)
        is_there = name is not None and self._ledger.holds(record) and self._sink.has(name)
        if live.run is None and is_there:
            return
        live.what = record.role, record.spec
        finished = record.finished
        ended_s = datetime.fromisoformat(finished).timestamp() if finished else unix_seconds()
        run = self._write(record.trial, live, began=ended_s - record.ledger["train"])
        self._sink.end(run, run_figures(record), run_words(record))
        self._ledger.ended(record)
        self.num_ended += 1

    def _write(self, name: str, live: _Live, *, began: float) -> LoggedRun:
        """Write the points that are new; all of them where the run is, or begins again."""
        assert live.what is not None
        if live.run is None or live.num_written < 0:
            role, spec = live.what
            live.run, live.num_written = LoggedRun(name=name, role=role, spec=spec, began=began), 0
            self._ledger.begun(name, self._sink.start(live.run, self._ledger.name_of(name)))
        metric = live.run.spec.objective.judged_by.name
        new = live.curve[live.num_written :]
        self._sink.points(live.run, [curve_values(point, metric) for point in new])
        live.num_written = len(live.curve)
        return live.run


POLL_S = 0.5
"""New records are in the tool about so long after they were written."""
NOT_NEEDED = ("torch", "tensorflow")
"""Modules that tensorboardX and W&B import where they are there: seconds and hundreds of
megabytes."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Follow the study in a folder: tool, folder, name of the study, place as the user named it.

    The process ends here, without what libraries do at the interpreter's exit: some wait there for
    a server that never answers.
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
    with WrittenLedger(folder, tool) as ledger:
        module = importlib.import_module(f"raybench.loggers.to_{tool}")
        sink: Sink = module.open_sink(folder, study)
        ledger.open(sink.place)
        feed, tail = Feed(sink, ledger), Tail(folder / RECORDS_FILE)
        ended, bad = None, 0
        while ended is None:
            found, _, _ = select.select([0], [], [], POLL_S)
            if found:  # a word, or the end of all words
                ended = os.read(0, len(END)) == END
            news = tail.news()
            if news.is_anew:
                feed.close()
            for line in news.lines:
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
            # Late: pandas takes a second, while nothing is trained any more.
            from raybench.results.study import load

            if winners := winners_of(load(folder)):
                ledger.begun(WINNERS, sink.winners(winners, ledger.name_of(WINNERS)))
        where = sink.close()
    if ended:
        runs = counted(feed.num_ended, "run")
        runs += f" (without {bad} lines that are no records)" if bad else ""
        _say(words, f"{LOGGERS[tool].title}: {runs} written: {where}")


def _sentence(tool: str, folder: Path, place: str, error: BaseException) -> str:
    """Say why this tool gets no more; keep the traceback where there is more to know."""
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
