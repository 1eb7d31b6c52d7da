"""One run from asking for workers to its record."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raybench.cluster.run_client import RunClient, release
from raybench.core.record import Evaluation, Role, RunRecord, StopReason
from raybench.core.spec import RunSpec


def run_once(
    pool: Any,
    spec: RunSpec,
    name: str,
    *,
    role: Role,
    source: str | None = None,
    on_evaluation: Callable[[str, Evaluation], None],
    stopped_by: Callable[[], StopReason | None],
    on_error: Callable[[str, str, str], str] = lambda name, message, traceback: message,
    on_saved: Callable[[str], None] = lambda name: None,
    on_refused: Callable[[str, str], None] = lambda name, why: None,
    on_restart: Callable[[str, str], None] = lambda name, why: None,
    save: bool = False,
    test: bool = False,
    keep: bool = True,
) -> tuple[RunRecord, bytes | None]:
    """Train `spec` to its end; return its record, and the weights if `save`.

    `stopped_by` is asked after every evaluation and ends the run by returning a reason. A
    failed run is a record too, and `on_error` is given its name, message and traceback and
    returns the message to keep; it has no weights. `on_saved` is given the name when the pool has
    a new checkpoint of the run, `on_refused` the name and a sentence when it does not go on from
    the one it had, `on_restart` the name and what has happened when it has lost its workers and
    goes on in new ones. `test` measures the test split. With `keep` False the workers are new and
    end with the run.
    """
    client = RunClient(pool, name, spec, keep=keep, goes_on=lambda: stopped_by() is None)
    saved: int | None = None
    refused: str | None = None
    restarts = 0
    reason: StopReason | None = None
    last: Evaluation | None = None
    try:
        while reason is None:
            outcome = client.step()
            if outcome.refused is not None and refused is None:
                refused = outcome.refused
                on_refused(name, refused)
            elif outcome.restarts > restarts and outcome.failure is None:
                on_restart(name, outcome.restart_reason or "")
            restarts = outcome.restarts
            if outcome.evaluation is None or outcome.evaluation is last:
                break  # it failed, or was ended from outside, before it reached the next one
            last = outcome.evaluation
            on_evaluation(name, last)
            if outcome.saved != saved:
                saved = outcome.saved
                on_saved(name)
            reason = stopped_by()
            if outcome.is_over:
                break
    except BaseException:
        release(pool, name, keep=keep)
        raise
    outcome = client.finish(save=save, test=test)
    if outcome.message is not None and outcome.failure != "nan":
        message = on_error(name, outcome.message, outcome.traceback)
        outcome = replace(outcome, message=message)
    record = outcome.record(
        name, spec, role=role, source=source, stopped_by=reason or stopped_by() or "interrupted"
    )
    return record, client.weights
