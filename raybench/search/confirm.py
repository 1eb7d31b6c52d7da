"""The confirm phase: the best trials again, with new seeds, alone on the machine, interleaved."""

from dataclasses import asdict
from typing import Any

from raybench.cluster.lease import Lease
from raybench.cluster.messages import RunFailed
from raybench.cluster.session import Session
from raybench.core.documents import validate
from raybench.core.outcome import run_record
from raybench.core.record import Phase, RunRecord
from raybench.core.score import search_score
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
    for repeat in range(repeats):
        for trial, document in candidates.items():
            name = f"{trial}-confirm{repeat}"
            if name in already or control.over:
                continue
            spec = validate(RunSpec, document | {"seed": FIRST_SEED + repeat}, trial)
            screen.started(name, spec.document())
            record = run_once(
                spec, name, "confirm", session=session, store=store, control=control, screen=screen
            )
            store.append(record.line())
            screen.finished(record)


def run_once(
    spec: RunSpec,
    name: str,
    phase: Phase,
    *,
    session: Session,
    store: Store,
    control: Control,
    screen: Screen,
    weights_file: str | None = None,
) -> RunRecord:
    """Train one run spec outside a search, test it, and return its record."""
    lease = Lease(session.hub, name, spec)
    result: dict[str, Any] = {}
    try:
        lease.acquire()
        evaluation = lease.start()
        while True:
            result["evaluation"] = asdict(evaluation)
            result["stop"], result["failure"] = evaluation.stop, evaluation.failure
            store.append(evaluation.line(name))
            screen.evaluated(name, evaluation)
            if evaluation.stop or evaluation.failure or control.over:
                break
            evaluation = lease.advance()
        if evaluation.failure:
            result["message"] = "the training loss is not finite"
        else:
            finished = lease.finish(test=True, save=weights_file is not None)
            result["test_accuracy"] = finished.test_accuracy
            if weights_file is not None and finished.weights is not None:
                store.write_bytes(weights_file, finished.weights)
        result["score"] = search_score(
            spec.objective,
            time_to_target_s=evaluation.time_to_target_s,
            best_accuracy=None if evaluation.failure else evaluation.best_accuracy,
            chance=lease.chance,
        )
    except RunFailed as error:
        result |= {"failure": error.failure, "message": error.message}
    ledger, wall = lease.ledger()
    lease.close()
    result |= {
        "ledger": ledger,
        "wall_s": wall,
        "num_parameters": lease.num_parameters,
        "concurrent": lease.concurrent,
        "hosts": lease.hosts,
        "devices": lease.devices,
    }
    stop = "interrupted" if control.interrupted else "time_budget"
    return run_record(name, spec.document(), result, spec.objective, stop, phase=phase)
