"""Life of a run as the driver sees it: resumed, evaluated, moved to other workers, recorded.

`search.live_trials` drives the trials of a search through it, from the hooks of Ray Tune, and
`runs.single_run` every other run.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from raybench.cluster.protocol import fault_of
from raybench.results.records import read_records
from raybench.results.store import Store, keep_error
from raybench.runs.deadline import Deadline
from raybench.runs.saved_runs import Disturbed, SavedRuns
from raybench.spec.errors import StudyError
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Role, RunOutcome, RunRecord, StopReason


@dataclass(frozen=True, kw_only=True)
class RunRecorder:
    """Where the runs of a study are recorded and shown; several threads may use it."""

    store: Store
    deadline: Deadline
    """End of the study; an error of the store ends it."""
    progress: Any
    """Screen: a `RunScreen`, and for the phases of a study a `ProgressDisplay`."""
    saved: SavedRuns
    """Checkpoints and output of the runs."""
    disturbed: Disturbed = field(default_factory=Disturbed)
    """Marks runs that other processes have slowed down."""
    said: set[str] = field(default_factory=set, repr=False)
    """Notes on runs that were printed."""
    writing: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Held while records are written and shown."""

    def append(self, line: dict[str, object]) -> bool:
        """Write a record; return whether it was written."""
        with self.ending_study(), self.writing:
            self.store.append(line)
            return True
        return False

    @contextmanager
    def ending_study(self) -> Iterator[None]:
        """End the study if its folder cannot be written."""
        try:
            yield
        except (OSError, StudyError) as error:
            self.deadline.ends_with(error)


class RunLifecycle:
    """One run from its request for workers to its record.

    Calls: `resume` before it starts, `take` with every state of the run, in any order and any
    number of times, then `end` once.

    Args:
        recorder: Where the run is recorded and shown.
        name: Name of the run, unique in the study.
        spec: The run.
        role: Its role in the study.
        source: Trial, cell or side that it repeats.
    """

    def __init__(
        self,
        recorder: RunRecorder,
        name: str,
        spec: RunSpec,
        role: Role,
        *,
        source: str | None = None,
    ) -> None:
        self._recorder, self.name, self.spec = recorder, name, spec
        self._role, self._source = role, source
        self.outcome = RunOutcome()
        """Newest known state of the run."""

    def resume(self) -> tuple[Evaluation, ...]:
        """Give the workers the checkpoint of an earlier session, if there is one.

        Returns:
            The evaluations up to the checkpoint, which are recorded again.
        """
        curve = self._recorder.saved.resume(self.name, self.spec)
        for point in curve:
            self._append(point)
        if curve:
            self.outcome = RunOutcome(evaluation=curve[-1], ledger=dict(curve[-1].ledger))
        return curve

    def take(self, outcome: RunOutcome) -> bool:
        """Record and show a state of the run; ignore one that is older than the newest known.

        Args:
            outcome: The run so far, as its client returns it.

        Returns:
            Whether it has a new evaluation. After a restart, repeated evaluations are new.
        """
        before, recorder = self.outcome, self._recorder
        if _moment(outcome) < _moment(before):
            return False
        self.outcome = outcome
        if outcome.refused is not None and before.refused is None:
            recorder.saved.refused(self.name, outcome.refused)
        elif outcome.restarts > before.restarts and not outcome.is_over:
            reason = outcome.restart_reason
            recorder.progress.say(f"trial {self.name} goes on in new workers: {reason}")
        point = outcome.evaluation
        is_new = point is not None and _is_new(outcome, before)
        if is_new and point is not None:
            self._append(point)
            recorder.progress.evaluated(self.name, point)
        recorder.saved.look(self.name)
        if outcome.saved is not None and outcome.saved != before.saved:
            recorder.saved.save(self.name)
        return is_new

    def end(self, *, stopped_by: StopReason, cap_s: float = math.inf) -> RunRecord:
        """Write the record of the run's newest state.

        An error that every other run would meet, too, ends the study. So does a mistake in the
        model while no run of the study has been evaluated, and the run has no record; later it
        fails its run alone.

        Args:
            stopped_by: Why the run was stopped, unless it ended by itself.
            cap_s: Seconds of training after which a run that the time budget ends counts as one
                that missed the target (`cap`).

        Returns:
            The record. `interrupted` if it was not written: the run is then repeated.
        """
        recorder, outcome = self._recorder, self.outcome
        if (fault := fault_of(outcome.message)) is not None:
            recorder.deadline.ends_with(fault)
        mistake = outcome.user_error
        if mistake is not None and read_records(recorder.store.folder).curves:
            mistake = None
        if mistake is not None:
            recorder.deadline.ends_with(mistake)
        if outcome.failure not in (None, "nan"):
            with recorder.ending_study():
                log = recorder.saved.log(self.name)
                error = outcome.message or "", outcome.traceback
                message = keep_error(recorder.store, self.name, *error, log=log)
                outcome = replace(outcome, message=message)
        for note in outcome.notes:
            if note not in recorder.said:
                recorder.said.add(note)
                recorder.progress.say(f"trial {self.name}: {note}")
        record = outcome.record(
            self.name, self.spec, role=self._role, source=self._source, stopped_by=stopped_by
        )
        if record.stop == "time_budget" and record.ledger["train"] > cap_s:
            record = replace(record, stop="cap")
        record = recorder.disturbed.judged(record)
        if mistake is not None or not recorder.append(record.line()):
            record = replace(record, stop="interrupted")
        recorder.saved.over(record)
        return record

    def _append(self, point: Evaluation) -> None:
        self._recorder.append(point.line(self.name, role=self._role, spec=self.spec))


def _moment(outcome: RunOutcome) -> tuple[bool, int, int]:
    """Return a sort key that grows with the outcomes of a run."""
    index = -1 if outcome.evaluation is None else outcome.evaluation.index
    return outcome.is_over, outcome.restarts, index


def _is_new(outcome: RunOutcome, before: RunOutcome) -> bool:
    """Return whether an outcome has a new evaluation; after a restart all are new."""
    point, last = outcome.evaluation, before.evaluation
    if point is None or last is None or point == last:
        return point is not None and last is None
    return point.index > last.index or outcome.restarts > before.restarts
