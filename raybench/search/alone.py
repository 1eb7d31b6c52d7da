"""Runs of a study outside Ray Tune, alone on the machine: recorded and shown like the others."""

from dataclasses import dataclass

from raybench.cluster.run_once import run_once
from raybench.cluster.session import Session
from raybench.core.record import Evaluation, Phase, RunRecord
from raybench.core.spec import RunSpec
from raybench.results.store import Store
from raybench.search.control import Control
from raybench.search.screen import Screen


@dataclass(frozen=True)
class Alone:
    """Trains one run at a time, for the phases before and after the search."""

    session: Session
    store: Store
    control: Control
    screen: Screen

    def train(self, spec: RunSpec, name: str, phase: Phase, *, test: bool = False) -> RunRecord:
        """Train `spec` to its end, or until `control` ends it; measure the test split if `test`."""
        self.screen.started(name, spec.document())
        record, _ = run_once(
            self.session.hub,
            spec,
            name,
            phase,
            on_evaluation=self._record,
            outer_stop=self.control.reason,
            test=test,
        )
        self.store.append(record.line())
        self.screen.finished(record)
        return record

    def _record(self, name: str, evaluation: Evaluation) -> None:
        self.store.append(evaluation.line(name))
        self.screen.evaluated(name, evaluation)
