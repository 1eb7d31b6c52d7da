"""What happens to the trials of a search, whoever drives them: judged, recorded, shown.

Every method may be called twice for the same event and by any hook of Ray Tune that comes first:
an evaluation counts once, and so does an end.
"""

from collections.abc import Callable
from dataclasses import replace

from raybench.cluster.reach import MISNAMED
from raybench.core.errors import StudyError, UserError
from raybench.core.outcome import RunOutcome
from raybench.core.record import StopReason
from raybench.core.spec import RunSpec
from raybench.results.errors import keep_error
from raybench.results.live.progress import Progress
from raybench.results.store import Store
from raybench.results.tables import BATCH_STATISTICS
from raybench.search.ask_tell import Search
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.deadline import Deadline
from raybench.search.saved_runs import SavedRuns

LOST = "the trial's own process was lost"


class LiveTrials:
    """The trials of a search between its proposals and its records."""

    def __init__(
        self,
        search: Search,
        *,
        store: Store,
        progress: Progress,
        deadline: Deadline,
        confirm_budget: ConfirmBudget,
        saved: SavedRuns,
        release: Callable[[str], int],
    ) -> None:
        """`release` gives the workers of a run back that is ended from outside; it returns the
        most others that ran beside it."""
        self._search, self._store, self._progress = search, store, progress
        self._deadline, self._confirm_budget, self._release = deadline, confirm_budget, release
        self._saved = saved
        self._specs: dict[str, RunSpec] = {}
        self._last: dict[str, RunOutcome] = {}
        self._reasons: dict[str, StopReason | None] = {}
        """Why a trial must end: the first reason there was."""
        self._num_judged: dict[str, int] = {}
        self._may_warn = search.placer is not None
        self.ended_by: StopReason | None = None
        """Why no more trials were asked for; None while they are, or where there are no more."""

    def __getstate__(self) -> dict[str, object]:
        """Give Ray Tune, which saves all that it is given, nothing: the records hold the study."""
        return {}

    def next(self) -> tuple[str, RunSpec] | None:
        """Return the next trial; None once the search is over.

        One that was cut off goes on from its checkpoint; its curve is written anew up to there.
        """
        self.ended_by = self.ended_by or self._deadline.reason()
        asked = None if self.ended_by else self._search.ask()
        if asked is not None:
            name, spec = asked
            self._specs[name] = spec
            for point in self._saved.resume(name, spec):
                self._last[name] = RunOutcome(evaluation=point, ledger=dict(point.ledger))
                self._append(point.line(name, role="trial", spec=spec))
        return asked

    def started(self, name: str) -> None:
        """Show a trial that waits for its workers."""
        self._progress.started(name, self._specs[name])

    def seen(self, name: str, outcome: RunOutcome) -> None:
        """Write a trial's newest evaluation, one that was repeated too; keep its checkpoint."""
        before = self._last.get(name, RunOutcome())
        if name not in self._specs or _moment(outcome) < _moment(before):
            return  # it has ended, or more is known of it already
        self._last[name] = outcome
        if self._may_warn and outcome.batch_statistics:
            self._may_warn = False  # once is enough
            self._progress.say(BATCH_STATISTICS)
        if outcome.refused is not None and before.refused is None:
            self._saved.refused(name, outcome.refused)
        elif outcome.restarts > before.restarts and not outcome.is_over:
            reason = outcome.restart_reason
            self._progress.say(f"trial {name} goes on in new workers: {reason}")
        point = outcome.evaluation
        if point is not None and _is_new(outcome, before):
            self._deadline.evaluated()
            self._append(point.line(name, role="trial", spec=self._specs[name]))
            self._progress.evaluated(name, point)
        if outcome.saved is not None and outcome.saved != before.saved:
            self._saved.save(name)

    def must_stop(self, name: str, outcome: RunOutcome) -> bool:
        """Judge a trial that would go on after its newest evaluation."""
        self.seen(name, outcome)
        if name not in self._specs:
            return True
        if outcome.evaluation is None or outcome.is_over:
            return False
        number = outcome.evaluation.index + 1
        if self._reasons.get(name) is None and self._num_judged.get(name, 0) < number:
            self._num_judged[name] = number
            self._reasons[name] = self._search.report(name, outcome)
        return self._reasons.get(name) is not None

    def ended(self, name: str, *, is_lost: bool = False, error: str = "") -> None:
        """Write the record of a trial that ends, by itself or from outside, and learn from it.

        `is_lost`: its own process has died; `error`: the traceback of what went wrong in it.
        """
        spec = self._specs.pop(name, None)
        if spec is None:
            return
        outcome = self._last.pop(name, RunOutcome())
        if is_lost:
            outcome = replace(outcome, failure="worker_lost", message=LOST)
        elif error:
            message = error.strip().splitlines()[-1]
            outcome = replace(outcome, failure="error", message=message, traceback=error)
        if is_lost or error or not outcome.is_over:
            outcome = replace(outcome, concurrent=self._release(name))
        if outcome.message is not None and outcome.message.startswith(MISNAMED):
            self._deadline.fault = self._deadline.fault or UserError(outcome.message)
        if outcome.traceback:
            outcome = replace(outcome, message=self._kept_error(name, outcome))
        self._num_judged.pop(name, None)
        stopped_by = self._reasons.pop(name, None) or self._deadline.reason() or "scheduler"
        record = outcome.record(name, spec, role="trial", source=None, stopped_by=stopped_by)
        if not self._append(record.line()):
            record = replace(record, stop="interrupted")  # without a record it has to run again
        self._saved.over(record)
        self._search.tell(record)
        self._confirm_budget.add(record)
        self._deadline.reserve_s = self._confirm_budget.reserve_s()
        self._progress.after_s = self._confirm_budget.confirming_s()
        self._progress.finished(record)

    def _kept_error(self, name: str, outcome: RunOutcome) -> str:
        """Keep a traceback in a file of its own; return the message that names it."""
        message = outcome.message or ""
        try:
            return keep_error(self._store, name, message, outcome.traceback)
        except (OSError, StudyError) as error:
            self._deadline.ends_with(error)
            return message

    def _append(self, line: dict[str, object]) -> bool:
        """Write a record; where that fails the study ends, and says why when it has."""
        try:
            self._store.append(line)
        except (OSError, StudyError) as error:
            self._deadline.ends_with(error)
            return False
        return True


def _moment(outcome: RunOutcome) -> tuple[bool, int, int]:
    """Return what is greater of the later one of a run's outcomes."""
    index = -1 if outcome.evaluation is None else outcome.evaluation.index
    return outcome.is_over, outcome.restarts, index


def _is_new(outcome: RunOutcome, before: RunOutcome) -> bool:
    """Whether the evaluation of the later outcome was not known: after a restart all are new."""
    point, last = outcome.evaluation, before.evaluation
    if point is None or last is None or point == last:
        return point is not None and last is None
    return point.index > last.index or outcome.restarts > before.restarts
