"""A run of the study outside Ray Tune, alone on the machine: recorded and shown like the others."""

from raybench.cluster.run_once import run_once
from raybench.cluster.session import Session
from raybench.core.record import Evaluation, Phase, RunRecord
from raybench.core.spec import RunSpec
from raybench.results.store import Store
from raybench.search.control import Control
from raybench.search.screen import Screen


def run_alone(
    spec: RunSpec,
    name: str,
    phase: Phase,
    *,
    session: Session,
    store: Store,
    control: Control,
    screen: Screen,
    test: bool = False,
) -> RunRecord:
    """Train `spec` to its end, or until `control` ends it; measure the test split if `test`."""

    def on_evaluation(name: str, evaluation: Evaluation) -> None:
        store.append(evaluation.line(name))
        screen.evaluated(name, evaluation)

    screen.started(name, spec.document())
    record, _ = run_once(
        session.hub,
        spec,
        name,
        phase,
        on_evaluation=on_evaluation,
        outer_stop=control.reason,
        test=test,
    )
    store.append(record.line())
    screen.finished(record)
    return record
