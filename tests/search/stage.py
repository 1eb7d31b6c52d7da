"""A search of three trials with store, deadline and screen, but without a cluster."""

import errno
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from raybench.cluster.signals import Interrupt
from raybench.report.progress import ProgressDisplay
from raybench.results.records import read_records
from raybench.results.store import RECORDS_FILE, Store
from raybench.runs.lifecycle import FirstRuns, RunRecorder, SingleRun
from raybench.runs.wait_watch import Deadline
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.curve_search import Decision
from raybench.search.ray_tune import LiveTrials
from raybench.search.search import Search
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, RunOutcome, RunRecord
from tests.search.made_up import STUDY, outcome, parts_of

CONTENT = STUDY | {"search": {"trials": 3}}
FIRST, SECOND = outcome(1.0), outcome(2.0, index=1)
"""Outcomes after which a trial goes on."""
REACHED = outcome(3.0, index=2, value=0.96, time_to_target_s=3.0, stop="target")
LEADER = outcome(0.3, value=0.96, time_to_target_s=0.3, stop="target")
"""Outcome of a trial so fast that others are beyond the cap after a second."""


class RecordingSearch(Search):
    """Keeps the outcomes and records that are reported to it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.told: list[RunRecord] = []
        self.reported: list[tuple[str, RunOutcome]] = []
        super().__init__(*arguments, **options)

    def on_result(self, name: str, outcome: RunOutcome) -> Decision:
        self.reported.append((name, outcome))
        return super().on_result(name, outcome)

    def on_end(self, record: RunRecord) -> None:
        self.told.append(record)
        super().on_end(record)


class FullDisk(Store):
    """Holds `room` lines; numbers its errors."""

    room = 10**9

    def append(self, line: dict[str, Any]) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, f"No space left for {-self.room}")
        super().append(line)


class FakeSavedRuns:
    """Records the calls; a trial resumes after the evaluations `curve`."""

    def __init__(self) -> None:
        self.curve: tuple[Evaluation, ...] = ()
        self.written: list[str] = []
        self.over_with: list[str] = []

    def resume(self, name: str, spec: RunSpec) -> tuple[Evaluation, ...]:
        return self.curve

    def save(self, name: str) -> None:
        self.written.append(name)

    def write_output(self, name: str) -> None:
        pass

    def log(self, name: str) -> Path | None:
        return None

    def finish(self, record: RunRecord) -> None:
        self.over_with.append(record.trial)


def single_run_in(store: Store, deadline: Deadline) -> SingleRun:
    """Return the trainer of single runs without a session; `use_clients` gives it workers."""
    session: Any = SimpleNamespace(pool=None)
    saved: Any = FakeSavedRuns()
    progress = ProgressDisplay(Console(file=io.StringIO()), num_trials=3)
    return SingleRun(
        session=session, store=store, deadline=deadline, progress=progress, saved=saved
    )


class Stage:
    """The search with all that it needs; `released` are the trials whose workers were released."""

    def __init__(self, folder: Path) -> None:
        study, space, _ = parts_of(CONTENT)
        self.search = RecordingSearch(study, space, folder)
        self.store, self.screen = FullDisk(folder), io.StringIO()
        self.interrupt = Interrupt()
        self.deadline = Deadline(None, interrupt=self.interrupt)
        self.released: list[str] = []
        self.saved = FakeSavedRuns()
        self.first_runs = FirstRuns()
        self.trials = LiveTrials(
            self.search,
            RunRecorder(
                store=self.store,
                progress=ProgressDisplay(Console(file=self.screen), num_trials=3),
                deadline=self.deadline,
                saved=self.saved,  # type: ignore[arg-type]
                first_runs=self.first_runs,
            ),
            confirm_budget=ConfirmBudget(study),
            release=self._release,
        )

    def _release(self, name: str) -> int:
        self.released.append(name)
        return 2

    def start(self) -> str:
        proposal = self.trials.next()
        assert proposal is not None
        self.trials.started(proposal[0])
        return proposal[0]

    def lead(self) -> None:
        """Run a trial so fast that others are beyond the cap."""
        name = self.start()
        self.trials.observe(name, LEADER)
        self.trials.ended(name)

    def lines(self) -> list[dict[str, Any]]:
        text = (self.store.folder / RECORDS_FILE).read_text()
        return [json.loads(line) | {"finished": None} for line in text.splitlines()]

    def record(self, name: str) -> RunRecord:
        """Return the record on the disk, which was also reported to the search, once."""
        (reported,) = [record for record in self.search.told if record.trial == name]
        kinds = [line["kind"] for line in self.lines() if line["trial"] == name]
        assert kinds.count("run") == 1
        recorded = read_records(self.store.folder).runs[name]
        assert recorded == reported
        return recorded
