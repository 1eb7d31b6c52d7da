"""Runs of a study outside Ray Tune, alone on the machine: recorded and shown like the others."""

from dataclasses import dataclass

from raybench.cluster.reach import MISNAMED
from raybench.cluster.run_client import run_once
from raybench.cluster.session import Session
from raybench.core.errors import UserError
from raybench.core.record import MACHINE_FAULTS, Evaluation, Role, RunRecord
from raybench.core.spec import RunSpec
from raybench.results.errors import keep_error
from raybench.results.progress import Progress
from raybench.results.store import Store
from raybench.search.deadline import Deadline

ATTEMPTS = 3
"""How often a run is tried that loses its workers, or does not get them."""


@dataclass(frozen=True)
class SingleRun:
    """Trains one run at a time, for the phases before and after the search."""

    session: Session
    store: Store
    deadline: Deadline
    progress: Progress
    keep_groups: bool = True
    """False gives every run new worker processes."""

    def train(
        self, spec: RunSpec, name: str, role: Role, *, source: str | None = None, test: bool = False
    ) -> RunRecord:
        """Train `spec` to its end, or until `deadline` ends it; measure the test split if `test`.

        A run that the machine broke is no answer: it is repeated, a few times.
        """
        self.progress.started(name, spec)
        for _ in range(ATTEMPTS):
            record, _ = run_once(
                self.session.pool,
                spec,
                name,
                role=role,
                source=source,
                on_evaluation=self._record,
                stopped_by=self.deadline.reason,
                on_error=lambda *error: keep_error(self.store, *error),
                test=test,
                keep=self.keep_groups,
            )
            if record.message is not None and record.message.startswith(MISNAMED):
                self.deadline.fault = self.deadline.fault or UserError(record.message)
            if record.failure not in MACHINE_FAULTS or self.deadline.over:
                break
        self.store.append(record.line())
        self.progress.finished(record)
        return record

    def _record(self, name: str, evaluation: Evaluation) -> None:
        self.store.append(evaluation.line(name))
        self.progress.evaluated(name, evaluation)
