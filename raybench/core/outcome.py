"""From the last thing known of a run to its record."""

from datetime import UTC, datetime
from typing import Any

from raybench.core.clock import OTHER, PHASES
from raybench.core.record import Failure, Phase, RunRecord, State
from raybench.core.score import worst_score
from raybench.core.spec import Objective


def run_record(
    name: str,
    spec: dict[str, Any],
    result: dict[str, Any],
    objective: Objective,
    outer_stop: str,
    *,
    phase: Phase = "search",
) -> RunRecord:
    """Turn what is known of a run at its end into its record.

    `result` holds the last `evaluation` (as a dict), `failure`, `message`, `stop`, `score`,
    `ledger`, `wall_s`, `num_parameters`, `batch_statistics`, `concurrent`, `hosts`, `devices`,
    `test_accuracy`; what is missing was never known. `outer_stop` says why a run ended that had
    no reason of its own to stop.
    """
    failure: Failure | None = result.get("failure")
    stop = result.get("stop")
    state: State = "failed" if failure else ("complete" if stop else "stopped")
    evaluation = result.get("evaluation") or {}
    ledger = dict.fromkeys((*PHASES, OTHER, "input"), 0.0) | result.get("ledger", {})
    return RunRecord(
        trial=name,
        phase=phase,
        state=state,
        failure=failure,
        message=result.get("message"),
        stop=None if failure else (stop or outer_stop),
        spec=spec,
        num_parameters=result.get("num_parameters"),
        batch_statistics=result.get("batch_statistics"),
        time_to_target_s=None if failure else evaluation.get("time_to_target_s"),
        best_accuracy=evaluation.get("best_accuracy"),
        test_accuracy=result.get("test_accuracy"),
        score=worst_score(objective) if failure else result.get("score", worst_score(objective)),
        samples=evaluation.get("samples", 0),
        ledger=ledger,
        wall_s=result.get("wall_s", 0.0),
        concurrent=result.get("concurrent", 0),
        hosts=result.get("hosts", []),
        devices=result.get("devices", []),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )
