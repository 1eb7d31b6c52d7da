"""What is known of a run: after each of its evaluations, and at its end."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from raybench.core.clock import OTHER, PHASES
from raybench.core.objective import Objective
from raybench.core.record import Evaluation, Failure, Role, RunRecord, StopReason
from raybench.core.score import search_score, worst_score
from raybench.core.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """A run so far, as its owner knows it; once `is_over`, what its record is made of."""

    evaluation: Evaluation | None = None
    """The last one; None before the first."""
    is_over: bool = False
    """Whether the run has ended, by itself or by a failure."""
    failure: Failure | None = None
    message: str | None = None
    """The cause of a failure, one line."""
    traceback: str = ""
    """Of a failure in code."""
    ledger: dict[str, float] = field(default_factory=dict)
    """Seconds of every phase (`queue`, `start`, `setup`, ...), of `input` and of `other`."""
    wall_s: float = 0.0
    num_parameters: int | None = None
    batch_statistics: bool | None = None
    chance: float | None = None
    """What an answer that does not look at the inputs reaches, where the objective does not say
    it: one over the number of classes; None where that is not known."""
    test_value: float | None = None
    concurrent: int = 0
    hosts: tuple[str, ...] = ()
    """Host of every rank."""
    devices: tuple[str, ...] = ()
    """Device of every rank."""
    workers_per_node: tuple[int, ...] = ()
    """Workers on each node, most first."""
    accelerators: tuple[str, ...] = ()
    """Models of the GPUs, each once."""
    waited_for: str | None = None
    """What was missing while it was queued, as it was last said."""
    saved: int | None = None
    """Index of the evaluation that follows its newest checkpoint; None where none was taken."""
    restarts: int = 0
    """How often it was given new workers, because it had lost those it had."""
    restart_reason: str | None = None
    """What the last of these losses was."""
    refused: str | None = None
    """Why it did not go on from the checkpoint it had, and began anew; a restart too."""

    @property
    def stop(self) -> StopReason | None:
        """Why the run ended by itself; None where it has not."""
        return self.evaluation.stop if self.evaluation else None

    def score(self, objective: Objective) -> float:
        """Return the number that the search minimises; the worst one without an evaluation."""
        if self.failure is not None or self.evaluation is None:
            return worst_score(objective, chance=self.chance)
        return search_score(
            objective,
            time_to_target_s=self.evaluation.time_to_target_s,
            best_value=self.evaluation.best_value,
            chance=self.chance,
        )

    def record(
        self, name: str, spec: RunSpec, *, role: Role, source: str | None, stopped_by: StopReason
    ) -> RunRecord:
        """Return the record of a run that has ended, or is ended from outside: by `stopped_by`."""
        last = self.evaluation
        return RunRecord(
            trial=name,
            role=role,
            source=source,
            state="failed" if self.failure else ("complete" if self.stop else "stopped"),
            failure=self.failure,
            message=self.message,
            stop=None if self.failure else (self.stop or stopped_by),
            spec=spec,
            num_parameters=self.num_parameters,
            batch_statistics=self.batch_statistics,
            time_to_target_s=None if self.failure or last is None else last.time_to_target_s,
            best_value=None if last is None else last.best_value,
            test_value=self.test_value,
            score=self.score(spec.objective),
            samples=0 if last is None else last.samples,
            ledger=dict.fromkeys((*PHASES, OTHER, "input"), 0.0) | self.ledger,
            wall_s=self.wall_s,
            concurrent=self.concurrent,
            hosts=list(self.hosts),
            devices=list(self.devices),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            workers_per_node=list(self.workers_per_node),
            accelerators=list(self.accelerators),
            waited_for=self.waited_for,
            restarts=self.restarts,
            restart_reason=self.restart_reason,
        )
