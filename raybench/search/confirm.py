"""The confirm phase: the best trials again, with new seeds, alone on the machine, interleaved."""

from typing import Any

from raybench.cluster.run_once import run_once
from raybench.cluster.session import Session
from raybench.core.documents import validate
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec
from raybench.results.store import Store
from raybench.search.control import Control
from raybench.search.screen import Screen

FIRST_SEED = 1000
"""Seeds of confirming runs begin here, far from those of searches."""


def confirm(
    candidates: dict[str, dict[str, Any]],
    *,
    repeats: int,
    already: set[str],
    session: Session,
    store: Store,
    control: Control,
    screen: Screen,
) -> None:
    """Train every candidate `repeats` times, in the order ABCABC, one run at a time.

    `candidates` are run specs by the name of their trial; runs named in `already` are kept
    from an earlier session.
    """

    def on_evaluation(name: str, evaluation: Evaluation) -> None:
        store.append(evaluation.line(name))
        screen.evaluated(name, evaluation)

    for repeat in range(repeats):
        for trial, document in candidates.items():
            name = f"{trial}-confirm{repeat}"
            if name in already or control.over:
                continue
            spec = validate(RunSpec, document | {"seed": FIRST_SEED + repeat}, trial)
            screen.started(name, spec.document())
            record, _ = run_once(
                session.hub,
                spec,
                name,
                "confirm",
                on_evaluation=on_evaluation,
                outer_stop=control.reason,
            )
            store.append(record.line())
            screen.finished(record)
