"""Records of a study: one line per evaluation, one per finished run."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from raybench.core.spec import RunSpec

Phase = Literal["search", "confirm", "reference"]
Role = Literal["trial", "finalist", "confirm", "reference", "sentinel"]
"""What a run is for: proposed by the search; a placement that was only predicted; a winner with a
new seed; what sets a target; what measures how trials disturb each other."""
PHASE_OF: dict[Role, Phase] = {
    "trial": "search",
    "finalist": "search",
    "confirm": "confirm",
    "reference": "reference",
    "sentinel": "reference",
}
State = Literal["complete", "stopped", "failed"]
Failure = Literal["oom", "nan", "timeout", "error", "worker_lost"]
MACHINE_FAULTS = ("timeout", "worker_lost")
"""Failures that say nothing of the configuration: such a run may be tried again."""
StopReason = Literal[
    "target", "max_train_seconds", "epochs", "scheduler", "cap", "time_budget", "interrupted"
]
CURVE_KEYS = (
    "index",
    "epoch",
    "samples",
    "train_s",
    "train_loss",
    "accuracy",
    "learning_rate",
    "samples_per_s",
)
"""What an `eval` line holds of an Evaluation."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One point of a learning curve, reduced over all workers."""

    index: int
    """0, 1, 2, ... within the run."""
    epoch: float
    """Epochs trained so far."""
    samples: int
    """Training samples seen so far by all workers together."""
    train_s: float
    """Seconds on the training clock so far, max over ranks."""
    train_loss: float
    """Mean training loss since the last evaluation."""
    accuracy: float
    """Accuracy on the full validation set."""
    learning_rate: float
    """Rate really used in the last step."""
    samples_per_s: float
    """Training samples per train second since the last evaluation."""
    ledger: dict[str, float] = field(default_factory=dict)
    """Seconds of every worker phase so far, max over ranks."""
    best_accuracy: float | None = None
    """Best accuracy of the run so far."""
    time_to_target_s: float | None = None
    """Train seconds to the target; None while it is not reached (and held)."""
    stop: StopReason | None = None
    """Why the run ends here; None if it goes on."""
    failure: Literal["nan"] | None = None
    """`nan` if the loss or the weights are not finite."""

    def line(self, trial: str) -> dict[str, Any]:
        """Return the record line of this evaluation."""
        content = asdict(self)
        return {"kind": "eval", "trial": trial} | {key: content[key] for key in CURVE_KEYS}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a trial would need to the target on another split; never a measurement."""

    trial: str
    framework: str
    num_workers: int
    batch_size_per_worker: int
    time_to_target_s: float

    @property
    def worker_seconds(self) -> float:
        """Workers times seconds to the target."""
        return self.num_workers * self.time_to_target_s

    def line(self) -> dict[str, Any]:
        """Return the record line of this prediction."""
        return {"kind": "prediction", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What is kept of one finished run; the columns of `trials.csv` come from here."""

    trial: str
    """Name of the run, its own in the study."""
    role: Role
    source: str | None
    """The trial whose configuration it runs again (`finalist`, `confirm`, `sentinel`)."""
    state: State
    failure: Failure | None
    message: str | None
    """The cause of a failure, one line."""
    stop: StopReason | None
    spec: RunSpec
    num_parameters: int | None
    batch_statistics: bool | None
    """Whether the model normalises over the samples of one worker's batch."""
    time_to_target_s: float | None
    best_accuracy: float | None
    test_accuracy: float | None
    score: float
    samples: int
    ledger: dict[str, float]
    """Seconds of every phase (`queue`, `start`, `setup`, ...), of `input` and of `other`."""
    wall_s: float
    """Seconds from asking for workers until the result was known, on the owner's clock."""
    concurrent: int
    """The most other runs that trained at the same time at any moment of this one."""
    hosts: list[str]
    devices: list[str]
    finished: str
    """UTC, ISO 8601."""

    @property
    def phase(self) -> Phase:
        """The phase of the study that it belongs to."""
        return PHASE_OF[self.role]

    def line(self) -> dict[str, Any]:
        """Return the record line of this run."""
        content = {one.name: getattr(self, one.name) for one in fields(self)}
        own = {"kind": "run", "trial": self.trial, "phase": self.phase}
        return own | content | {"spec": self.spec.document()}
