"""One run from asking for workers to its record, without a search around it."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from raybench.cluster.protocol import STOPPED, RunFailed
from raybench.cluster.run_client import RunClient
from raybench.core.objective import search_score
from raybench.core.outcome import run_record
from raybench.core.record import Evaluation, Phase, RunRecord
from raybench.core.spec import RunSpec


def run_once(
    hub: Any,
    spec: RunSpec,
    name: str,
    phase: Phase,
    *,
    on_evaluation: Callable[[str, Evaluation], None],
    outer_stop: Callable[[], str | None],
    on_error: Callable[[str, str, str], str] = lambda name, message, traceback: message,
    save: bool = False,
    test: bool = False,
    keep: bool = True,
) -> tuple[RunRecord, bytes | None]:
    """Train `spec`, measure the test split if `test`, and return the record and the saved weights.

    `outer_stop` is asked after every evaluation and ends the run by returning a reason. A
    failed run is a record too, and `on_error` is given its traceback; weights are None unless
    `save` and the run ended well. With `keep` False the workers are new and end with the run.
    """
    lease = RunClient(hub, name, spec, keep=keep)
    result: dict[str, Any] = {}
    weights: bytes | None = None
    reason: str | None = None
    try:
        lease.acquire()
        evaluation = lease.start()
        while True:
            on_evaluation(name, evaluation)
            result |= {
                "evaluation": asdict(evaluation),
                "stop": evaluation.stop,
                "failure": evaluation.failure,
                "message": "the training loss is not finite" if evaluation.failure else None,
                "score": search_score(
                    spec.objective,
                    time_to_target_s=evaluation.time_to_target_s,
                    best_accuracy=None if evaluation.failure else evaluation.best_accuracy,
                    chance=lease.chance,
                ),
            }
            reason = outer_stop()
            if evaluation.stop or evaluation.failure or reason:
                break
            evaluation = lease.advance()
        if not evaluation.failure:
            finished = lease.finish(test=test, save=save)
            result["test_accuracy"], weights = finished.test_accuracy, finished.weights
    except RunFailed as error:
        if error.failure != STOPPED:
            message = on_error(name, error.message, error.traceback)
            result |= {"failure": error.failure, "message": message}
    result |= lease.account()
    lease.close()
    result["concurrent"] = lease.concurrent
    record = run_record(
        name, spec.document(), result, spec.objective, reason or "interrupted", phase=phase
    )
    return record, weights
