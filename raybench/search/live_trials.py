"""Running trials of a search: recorded, shown, and passed on to the scheduler.

Several hooks of Ray Tune report the same event, in any order; each evaluation and each end is
processed once.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from raybench.cluster.protocol import fault_of
from raybench.report.live.progress import ProgressDisplay
from raybench.report.tables import BATCH_STATISTICS
from raybench.results.store import Store, keep_error
from raybench.runs.deadline import Deadline
from raybench.runs.saved_runs import Disturbed, SavedRuns
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.search import Search
from raybench.spec.errors import ErrorCode, StudyError, UserError
from raybench.spec.own_loop import OTHER_KEYS, UNREPORTED
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, RunOutcome, StopReason

LOST = "the trial's own process was lost"
HOPELESS = 5
"""Number of trials with the same failure, before any has trained, that ends the search."""


@dataclass
class _Running:
    """A trial that runs or waits for its workers."""

    spec: RunSpec
    last: RunOutcome = field(default_factory=RunOutcome)
    reason: StopReason | None = None
    """First reason to stop the trial."""
    num_judged: int = 0


class LiveTrials:
    """Running trials of a search.

    Args:
        search: Scheduler of the trials.
        store: Records of the study.
        progress: Screen.
        deadline: Time budget and interruption.
        confirm_budget: Learns the cost of the confirmation from the records.
        saved: Checkpoints of the trials.
        release: Gives back the workers of a trial that is ended from outside; returns the largest
            number of trials that ran beside it.
        disturbed: Marks trials slowed down by other processes.
        on_begun: Called before each trial starts.
        has_trained: Whether a trial of an earlier session has trained.
    """

    def __init__(
        self,
        search: Search,
        *,
        store: Store,
        progress: ProgressDisplay,
        deadline: Deadline,
        confirm_budget: ConfirmBudget,
        saved: SavedRuns,
        release: Callable[[str], int],
        disturbed: Disturbed | None = None,
        on_begun: Callable[[], None] = lambda: None,
        has_trained: bool = False,
    ) -> None:
        self._search, self._store, self._progress = search, store, progress
        self._deadline, self._confirm_budget, self._release = deadline, confirm_budget, release
        self._saved, self._disturbed = saved, disturbed or Disturbed()
        self._on_begun = on_begun
        self._running: dict[str, _Running] = {}
        self._may_warn = search.placer is not None
        self._noted: set[str] = set()
        """Notes on trials printed so far."""
        self._has_trained = has_trained
        """Whether a trial of this study has trained."""
        self._causes: list[str] = []
        """Messages of trials that failed before any had trained, without numbers."""
        self.ended_by: StopReason | None = None
        """Why the search asks for no more trials; None while it does, or if there are none."""

    def __getstate__(self) -> dict[str, object]:
        """Return nothing for Ray Tune to save: the records hold the study."""
        return {}

    def next(self) -> tuple[str, RunSpec] | None:
        """Return the next trial; None once the search is over. An interrupted trial resumes from
        its checkpoint, and its curve up to there is recorded again."""
        self.ended_by = self.ended_by or self._deadline.reason()
        asked = None if self.ended_by else self._search.suggest()
        if asked is not None:
            self._on_begun()
            name, spec = asked
            run = self._running[name] = _Running(spec)
            for point in self._saved.resume(name, spec):
                run.last = RunOutcome(evaluation=point, ledger=dict(point.ledger))
                self._evaluated(name, run, point)
        return asked

    def started(self, name: str) -> None:
        """Show a trial that waits for its workers."""
        self._progress.started(name, self._running[name].spec)

    def seen(self, name: str, outcome: RunOutcome) -> None:
        """Record the newest evaluation of a trial, and save its checkpoint."""
        run = self._running.get(name)
        if run is None or _moment(outcome) < _moment(run.last):
            return  # the trial has ended, or a newer outcome is known
        before, run.last = run.last, outcome
        if self._may_warn and outcome.batch_statistics:
            self._may_warn = False
            self._progress.say(BATCH_STATISTICS)
        if outcome.refused is not None and before.refused is None:
            self._saved.refused(name, outcome.refused)
        elif outcome.restarts > before.restarts and not outcome.is_over:
            reason = outcome.restart_reason
            self._progress.say(f"trial {name} goes on in new workers: {reason}")
        point = outcome.evaluation
        if point is not None and _is_new(outcome, before):
            self._evaluated(name, run, point)
            self._progress.evaluated(name, point)
        self._saved.look(name)
        if outcome.saved is not None and outcome.saved != before.saved:
            self._saved.save(name)

    def must_stop(self, name: str, outcome: RunOutcome) -> bool:
        """Return whether a trial must stop after its newest evaluation."""
        self.seen(name, outcome)
        run = self._running.get(name)
        if run is None:
            return True
        if outcome.evaluation is None or outcome.is_over:
            return False
        number = outcome.evaluation.index + 1
        if run.reason is None and run.num_judged < number:
            run.num_judged = number
            run.reason = self._search.on_result(name, outcome).stop
        return run.reason is not None

    def ended(self, name: str, *, is_lost: bool = False, error: str = "") -> None:
        """Record the end of a trial and tell the scheduler.

        Args:
            name: Name of the trial.
            is_lost: Whether its Tune actor died.
            error: Traceback of an exception in its Tune actor.
        """
        run = self._running.pop(name, None)
        if run is None:
            return
        outcome = run.last
        if is_lost:
            outcome = replace(outcome, failure="worker_lost", message=LOST)
        elif error:
            message = error.strip().splitlines()[-1]
            outcome = replace(outcome, failure="error", message=message, traceback=error)
        if is_lost or error or not outcome.is_over:
            outcome = replace(outcome, concurrent=self._release(name))
        if (fault := fault_of(outcome.message) or self._hopeless(outcome)) is not None:
            self._deadline.ends_with(fault)
        if outcome.failure not in (None, "nan"):
            with self._writing():
                log = self._saved.log(name)
                told = outcome.message or "", outcome.traceback
                kept = keep_error(self._store, name, *told, log=log)
                outcome = replace(outcome, message=kept)
        if outcome.note is not None and outcome.note not in self._noted:
            self._noted.add(outcome.note)
            self._progress.say(f"trial {name}: {outcome.note}")
        stopped_by = run.reason or self._deadline.reason() or "scheduler"
        record = outcome.record(name, run.spec, role="trial", source=None, stopped_by=stopped_by)
        record = self._disturbed.judged(record)
        if not self._append(record.line()):
            record = replace(record, stop="interrupted")  # without a record it runs again
        self._saved.over(record)
        if record.failure is None:
            self._search.on_complete(record)
        else:
            self._search.on_error(record)
        self._confirm_budget.add(record)
        self._deadline.reserve_s = self._confirm_budget.reserve_s()
        self._progress.state.after_s = self._confirm_budget.confirming_s()
        self._progress.finished(record)

    def _hopeless(self, outcome: RunOutcome) -> StudyError | UserError | None:
        """Return the error that ends the search: the first HOPELESS trials all failed with the same
        message before training, or a failure that no other configuration can avoid."""
        if outcome.evaluation is not None:
            self._has_trained = True
        if self._has_trained or outcome.failure not in ("error", "timeout"):
            return None
        if (message := outcome.message or "").startswith(UNREPORTED) and OTHER_KEYS in message:
            return UserError(outcome.message or "", ErrorCode.COMMAND)
        self._causes.append(re.sub(r"\d+", "", outcome.message or ""))
        if len(self._causes) < HOPELESS or len(set(self._causes)) > 1:
            return None
        why = (outcome.message or "").removesuffix(".")
        return StudyError(
            f"the first {HOPELESS} trials have all failed before they trained ({why}); mend it, "
            "then the same command goes on."
        )

    def _evaluated(self, name: str, run: _Running, point: Evaluation) -> None:
        self._append(point.line(name, role="trial", spec=run.spec))

    def _append(self, line: dict[str, object]) -> bool:
        """Write a record; return whether it was written."""
        with self._writing():
            self._store.append(line)
            return True
        return False

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """End the study if writing fails."""
        try:
            yield
        except (OSError, StudyError) as error:
            self._deadline.ends_with(error)


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
