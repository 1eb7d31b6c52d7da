"""Messages between the driver, the worker pool and the workers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import Checkpoint, RunState
from raybench.stats.record import Evaluation, Failure


@dataclass(frozen=True, kw_only=True)
class Start:
    """Driver to workers: build this run and train to its first evaluation."""

    spec: RunSpec
    cores: tuple[int, ...] = ()
    """CPU cores to pin this worker to; empty to allow all cores."""
    resume: Checkpoint | None = None
    """Checkpoint to continue from, set by the pool if it has one of this run. The file is on the
    pool's host; read the file by `states.fetch`."""


@dataclass(frozen=True)
class Advance:
    """Driver to workers: train to the next evaluation."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Driver to workers: end the run and release its memory."""

    save: bool = False
    """Send the weights to the pool (rank 0)."""
    test: bool = False
    """Measure the metric on the test split first."""


@dataclass(frozen=True)
class Close:
    """Pool to workers: return from the train function, which ends the worker group."""


@dataclass(frozen=True)
class Measure:
    """`raybench doctor` to workers: measure the time of all-reduces, outside of any run."""

    sizes: tuple[int, ...]
    """Sizes of the all-reduces in bytes."""
    rounds: int
    """Number of all-reduces of each size."""


Command = Start | Advance | Finish | Close | Measure


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Worker to driver, sent once after the worker has started: where the worker runs."""

    host: str
    node: str
    pid: int
    device: str
    cores: tuple[int, ...]
    """CPU cores that the worker may use; for a worker with a GPU, those near the GPU."""
    actor: Any = None
    """Handle of the worker's actor, to kill the worker if it hangs."""


@dataclass(frozen=True, kw_only=True)
class WorkerAnswer:
    """Worker to driver: the result of a command."""

    busy_s: float = 0.0
    """Seconds from receiving the command to this reply, on the worker's clock."""
    sent_bytes: int | None = None
    """Bytes of the state that rank 0 has sent to the pool before this reply; None if none."""
    printed: bytes = b""
    """Output to stdout and stderr since the last reply; not passed on to the driver."""


@dataclass(frozen=True, kw_only=True)
class Progress(WorkerAnswer):
    """Worker to driver: an evaluation was reached."""

    evaluation: Evaluation
    num_parameters: int | None
    """None for a user's own training loop."""
    batch_statistics: bool
    """Whether the model has batch normalization."""
    num_classes: int | None
    """Number of classes in the data; None for a regression."""
    state: RunState | None = None
    """State of the run at a checkpoint that was sent; the pool removes it and sets `saved`."""
    saved: int | None = None
    """Index of the checkpoint, equal to that of the next evaluation; None without a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Finished(WorkerAnswer):
    """Worker to driver: the run has ended and its memory is released."""

    ledger: dict[str, float]
    """Seconds of the run by phase."""
    weights: Path | None = None
    """File on the pool's host with the weights that were sent; read it by `states.parts`."""
    test_value: float | None = None
    """Metric on the test split; None if it was not measured."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about the model and how the run ended."""


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """Worker to driver: an exception ended the run on this worker."""

    failure: Literal["oom", "error"]
    """`oom`: out of memory."""
    message: str
    """One line with the exception's type and message."""
    traceback: str
    mistake: ErrorCode | None = None
    """Error code if a user mistake in the model or its settings kept the run from starting
    (`START_MISTAKES`); None for any other failure."""
    printed: bytes = b""


@dataclass(frozen=True, kw_only=True)
class MeasuredSums(WorkerAnswer):
    """Worker to `raybench doctor`: the result of `Measure`."""

    seconds: dict[int, list[float]]
    """Seconds of every all-reduce, by size in bytes."""
    through: str
    """Library of the all-reduce: `gloo`, `ring`, `nccl`."""
    interface: str
    """Network interface; empty if the framework chose it."""


Reply = Ready | WorkerAnswer | Crashed


START_MISTAKES = (
    ErrorCode.INVALID_MODEL,
    ErrorCode.INVALID_WEIGHTS,
    ErrorCode.INVALID_VALUE,
    ErrorCode.MISSING,
    ErrorCode.NOT_FOUND,
    ErrorCode.UNKNOWN_KEY,
    ErrorCode.UNKNOWN_NAME,
    ErrorCode.UNSUPPORTED,
)
"""User mistakes in the model, its weights or its optimizer. Most other runs would fail in the same
way, so a mistake of this kind ends a study in which no run has trained yet."""

STOPPED: Final = "stopped"
"""`RunFailed.failure` of a run that was ended from outside, which is not counted as failed."""


class RunFailed(Exception):  # noqa: N818 (a result, not a bug of ours)
    """A run ended without a result: a worker crashed, was lost, or did not answer."""

    def __init__(
        self,
        failure: Failure | Literal["stopped"],
        message: str,
        traceback: str = "",
        mistake: ErrorCode | None = None,
    ) -> None:
        super().__init__(failure, message, traceback, mistake)
        self.failure, self.message, self.traceback = failure, message, traceback
        self.mistake = mistake


class HostLeaves(RunFailed):
    """A group did not start because one of its hosts is leaving the cluster. The restart does not
    count toward the limit of restarts of a run."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Pool to run client: the worker group that a run was given."""

    queue_s: float
    """Seconds until resources for the group were free."""
    start_s: float
    """Seconds that starting the group took; 0 if it was already alive."""
    hosts: tuple[str, ...] = ()
    """Host of every rank."""
    devices: tuple[str, ...] = ()
    """Device of every rank."""
    workers_per_node: tuple[int, ...] = ()
    """Number of workers on each node, largest first."""
    accelerators: tuple[str, ...] = ()
    """Models of the group's GPUs, each once."""
    waited_for: str | None = None
    """Description of the resources that the run waited for; None if none were missing."""
    resume: RunState | None = None
    """State from which the run continues; None to start from scratch."""
