"""Runs of a study outside Ray Tune, alone on the machine: recorded and shown like the others."""

from dataclasses import dataclass

from raybench.cluster.reach import MISNAMED
from raybench.cluster.run_once import run_once
from raybench.cluster.session import Session
from raybench.core.errors import UserError
from raybench.core.record import Evaluation, Role, RunRecord
from raybench.core.spec import RunSpec
from raybench.results.errors import keep_error
from raybench.results.progress import Progress
from raybench.results.store import Store
from raybench.search.deadline import Deadline
from raybench.search.saved_runs import SavedRuns


@dataclass(frozen=True)
class SingleRun:
    """Trains one run at a time, for the phases before and after the search."""

    session: Session
    store: Store
    deadline: Deadline
    progress: Progress
    saved: SavedRuns
    keep_groups: bool = True
    """False gives every run new worker processes."""

    def train(
        self, spec: RunSpec, name: str, role: Role, *, source: str | None = None, test: bool = False
    ) -> RunRecord:
        """Train `spec` to its end, or until `deadline` ends it; measure the test split if `test`.

        One that was cut off in an earlier session goes on from its checkpoint.
        """
        self.progress.started(name, spec)
        for evaluation in self.saved.resume(name, spec):
            self._record(name, evaluation)
        record, _ = run_once(
            self.session.pool,
            spec,
            name,
            role=role,
            source=source,
            on_evaluation=self._record,
            stopped_by=self.deadline.reason,
            on_error=lambda *error: keep_error(self.store, *error),
            on_saved=self.saved.save,
            on_refused=self.saved.refused,
            test=test,
            keep=self.keep_groups,
        )
        if record.message is not None and record.message.startswith(MISNAMED):
            self.deadline.fault = self.deadline.fault or UserError(record.message)
        self.store.append(record.line())
        self.saved.over(record)
        self.progress.finished(record)
        return record

    def _record(self, name: str, evaluation: Evaluation) -> None:
        self.store.append(evaluation.line(name))
        self.progress.evaluated(name, evaluation)
