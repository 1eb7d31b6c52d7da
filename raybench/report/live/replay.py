"""A study that runs elsewhere, or has ended: what is new in its records, as events of its state.

Records tell less than the driver knows: of a run that has not ended only its evaluations, and no
moments but those at which runs ended. Clock of the state: seconds of Unix time.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from raybench.report.live.state import Cause, LiveState
from raybench.results.bucket import Bucket, BucketError
from raybench.results.lock import LEASE_KEY, driver_of, owner_of
from raybench.results.lock import Driver as Driver
from raybench.results.place import is_url, local_path
from raybench.results.records import record_of
from raybench.results.staging import log_of, start_of
from raybench.results.store import RECORDS_FILE, STUDY_FILE, plain
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.stats.clock import unix_seconds
from raybench.stats.record import Evaluation, RunRecord

MARK_BYTES = 256
"""Of what was read last, by which the same file is known again."""


@dataclass(frozen=True)
class News:
    """What a look at the records has found."""

    lines: list[bytes]
    """Whole lines, in order, without their ends."""
    is_anew: bool = False
    """Whether the records were replaced, or begun anew: what was read before counts no more."""


def source_of(place: str) -> "Source":
    """Return a study to look at; UserError where there is none."""
    source = UrlSource(place) if is_url(place) else FolderSource(place)
    try:
        is_none = source.study_yaml() is None and source.driver() not in ("lives", "unknown")
    except BucketError as error:
        raise UserError(str(error)) from None
    if is_none:
        raise UserError(f"{place}: holds no study; name the results folder, or the URL, of one.")
    return source


class FolderSource:
    """A study in a folder, of this machine or a shared one."""

    def __init__(self, place: str) -> None:
        self.folder = local_path(place)
        if not self.folder.is_dir():
            raise UserError(f"{place}: is no folder; name the results folder of a study.")
        self._begin(None)

    def _begin(self, inode: int | None) -> None:
        self._inode, self._offset, self._torn, self._mark = inode, 0, b"", b""

    def study_yaml(self) -> bytes | None:
        """Return the content of study.yaml, None while there is none."""
        return _read(self.folder / STUDY_FILE)

    def news(self) -> News:
        """Return what is new in the records since the last look."""
        path = self.folder / RECORDS_FILE
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return News([])
        except OSError as error:
            raise _unreadable(path, error) from None
        with file:
            inode = os.fstat(file.fileno()).st_ino
            # A file that was cut and has grown again differs in what was read last.
            file.seek(self._offset - len(self._mark))
            is_same = file.read(len(self._mark)) == self._mark
            is_anew = self._inode not in (None, inode) or not is_same
            if is_anew or self._inode is None:
                self._begin(inode)
            file.seek(self._offset)
            content = file.read()
        self._offset += len(content)
        self._mark = (self._mark + content)[-MARK_BYTES:]
        *lines, self._torn = (self._torn + content).split(b"\n")
        return News(lines, is_anew)

    def driver(self) -> Driver:
        """Say whether somebody writes the study: who does has put a file beside its lock."""
        owner = owner_of(self.folder)
        return "ended" if owner is None else driver_of(owner)

    def idle_s(self) -> float | None:
        """Return for how many seconds nothing was written, as far as clocks tell it."""
        try:
            written = (self.folder / RECORDS_FILE).stat().st_mtime
        except OSError:
            return None
        return max(unix_seconds() - written, 0.0)


class UrlSource:
    """A study below a URL: its records are objects, of which the last one alone changes."""

    def __init__(self, url: str) -> None:
        self._bucket = Bucket(url)
        self._length = 0
        """Bytes of the records that were read: whole lines."""
        self._written_s: float | None = None

    def study_yaml(self) -> bytes | None:
        """Return the content of study.yaml, None while there is none."""
        return self._bucket.get(STUDY_FILE)

    def news(self) -> News:
        """Return what is new in the records since the last look; one request where nothing is."""
        entries = self._bucket.entries()
        parts = sorted(key for key in entries if log_of(key) == RECORDS_FILE)
        self._written_s = max((entries[key].modified for key in parts), default=None)
        is_anew = sum(entries[key].size for key in parts) < self._length
        read, content = 0 if is_anew else self._length, b""
        for key in parts:
            start = start_of(key)
            if start + entries[key].size > read:
                part = self._bucket.get(key) or b""
                content += part[max(read - start, 0) :]
                read = start + len(part)
        self._length = read
        return News(content.split(b"\n")[:-1], is_anew)

    def driver(self) -> Driver:
        """Say whether somebody writes the study, by what its lease says."""
        content = self._bucket.get(LEASE_KEY)
        try:
            lease = {"released": True} if content is None else json.loads(content)
        except (ValueError, RecursionError):  # torn
            return "unknown"
        is_released = isinstance(lease, dict) and lease.get("released") is True
        return "ended" if is_released else "unknown"

    def idle_s(self) -> float | None:
        """Return for how many seconds nothing was written, as far as clocks tell it."""
        return None if self._written_s is None else max(unix_seconds() - self._written_s, 0.0)


Source = FolderSource | UrlSource
"""A study that somebody else writes; looks at it cost what is new alone. All methods may raise
BucketError where it is below a URL, and go on the next time."""


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be read ({error.strerror}); give yourself the right to.")


PAUSE_S = 120.0
"""A study in which nothing ran for so long was continued: a phase begins again."""
PHASE_OF_NAME = (
    (r"reference\d+", "reference"),
    (r".*-race\d+", "race"),
    (r".*-confirm\d+", "confirm"),
    (r"\d+\..+", "placement_check"),
)


@dataclass(frozen=True)
class Plan:
    """What study.yaml says of the runs to come."""

    num_runs: Mapping[str, int] = field(default_factory=dict)
    """Runs of a phase, where the file has them."""
    specs: Mapping[str, RunSpec] = field(default_factory=dict)
    """The run specs that are known before, by the names of their runs: of a scaling study."""
    concurrency: int | None = None
    """Runs at the same time; None where it does not say."""
    only: str | None = None
    """The phase of all its runs, where they are no search."""


OnEnd = Callable[[RunRecord, Cause | None, float], None]
"""Told of every run that counts, the cause of its failure, and when it ended."""


class Forecast:
    """What the runs so far say of those that follow; this one knows nothing."""

    def add(self, record: RunRecord) -> None:
        """Take a run that has ended."""

    def after_s(self, phase: str) -> float:
        """Return the seconds of what follows a phase."""
        return 0.0

    def expect_s(self, phase: str) -> float | None:
        """Return the seconds of a phase that begins now; None where they are not known."""

    def num_runs(self, phase: str) -> int | None:
        """Return the runs of a phase, at most; None where they are not known."""


class Replay:
    """Feeds a state with what is read."""

    def __init__(self, state: LiveState, plan: Plan) -> None:
        self.state, self.plan, self._forecast = state, plan, Forecast()
        self.on_end: OnEnd = lambda record, cause, at: None
        self.is_interrupted = False
        """Whether the last run that ended was cut off by the user, or by what went wrong."""
        self.last_s: float | None = None
        """When the last run ended."""
        self.bad: list[tuple[int, str]] = []
        """Number of every line that is no record, and why."""
        self._num_lines = 0
        self.records: dict[str, RunRecord] = {}
        """The last of every run."""
        self._open: dict[str, list[Evaluation]] = {}
        """New evaluations of runs without a record, in the order in which they were heard of."""
        self._has_begun = False

    def replan(self, plan: Plan, forecast: Forecast) -> None:
        """Take what study.yaml says by now; what is known of the runs stays."""
        self.plan, self._forecast = plan, forecast
        for record in self.records.values():
            forecast.add(record)

    def feed(self, lines: Iterable[bytes], at: float) -> None:
        """Take whole lines that were read at a moment; `bad` keeps those that are no records.

        Of runs that have not ended, as many run as the study has at the same time: those that
        were heard of last.
        """
        for line in lines:
            self._num_lines += 1
            try:
                if line.strip():
                    self._take(json.loads(line))
            except (ValueError, RecursionError) as wrong:
                self.bad.append((self._num_lines, str(wrong)))
        now = max(at, self.last_s or at)
        for name, points in self._open.items():
            if points:
                self._runs_on(name, points, now)
                points.clear()  # the state has its curve
        if self.plan.concurrency is not None:  # others are of a session that was killed
            for name in list(self._open)[: -self.plan.concurrency]:
                self.state.runs.pop(name, None)
        self.state.after_s = self._forecast.after_s(self.state.phase)

    def _take(self, line: Any) -> None:
        name, found = record_of(plain(line))
        if isinstance(found, Evaluation):
            points = self._open.pop(name, [])
            self._open[name] = [*points, found]  # the last one heard of
        elif isinstance(found, RunRecord):
            self._ended(found)

    def _ended(self, record: RunRecord) -> None:
        try:
            ended_s = datetime.fromisoformat(record.finished).timestamp()
        except ValueError:  # of a version that did not say it
            ended_s = self.last_s or self.state.began_s
        self._enter(self._phase(record), ended_s - record.wall_s)
        self._open.pop(record.trial, None)
        before = self.records.get(record.trial)
        self.records[record.trial] = record
        self.last_s = max(ended_s, self.last_s or ended_s)
        self.is_interrupted = record.stop == "interrupted"
        self._forecast.add(record)
        is_counted = before is not None and before.stop != "interrupted"
        if is_counted or self.is_interrupted:
            self.state.runs.pop(record.trial, None)
        else:
            self.on_end(record, self.state.finished(record, ended_s), ended_s)

    def _runs_on(self, name: str, points: Sequence[Evaluation], at: float) -> None:
        begun_s = at - points[-1].train_s
        found = (phase for pattern, phase in PHASE_OF_NAME if re.fullmatch(pattern, name))
        self._enter(self.plan.only or next(found, "search"), begun_s)
        if name not in self.state.runs:
            self.state.started(name, self._spec_of(name), begun_s)
        for point in points:
            self.state.evaluated(name, point, at)

    def _enter(self, phase: str, at: float) -> None:
        """Begin a phase where a run is the first of it, or of a session."""
        state = self.state
        is_pause = self.last_s is not None and at - self.last_s > PAUSE_S and not state.runs
        if self._has_begun and phase == state.phase and not is_pause:
            return
        ended = [one for one in self.records.values() if one.stop != "interrupted"]
        done = sum(self._phase(one) == phase for one in ended)
        if not self._has_begun:
            state.began_s = at
        num_runs = self.plan.num_runs.get(phase) or self._forecast.num_runs(phase)
        expect_s = self._forecast.expect_s(phase)
        state.begin(phase, num_runs, at, num_done=done, expect_s=expect_s)
        self._has_begun = True

    def _phase(self, record: RunRecord) -> str:
        return self.plan.only or ("search" if record.role == "trial" else record.role)

    def _spec_of(self, name: str) -> RunSpec | None:
        """Return the run spec of a run that has not ended: that of what it runs again."""
        if name in self.plan.specs:
            return self.plan.specs[name]
        source = self.records.get(re.sub(r"-(race|confirm)\d+$", "", name))
        return None if source is None or source.trial == name else source.spec
