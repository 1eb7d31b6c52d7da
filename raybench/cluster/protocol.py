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
    """Driver to workers: set up this run and train to its first evaluation."""

    spec: RunSpec
    cores: tuple[int, ...] = ()
    """CPU cores to pin this worker to; empty to allow all cores."""
    resume: Checkpoint | None = None
    """Checkpoint from which the run continues; set by the pool if it has a checkpoint of this run.
    Its file is on the pool's host; read it with `session_files.fetch_state`."""


@dataclass(frozen=True)
class Advance:
    """Driver to workers: train to the next evaluation."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Driver to workers: end the run and release its memory."""

    save: bool = False
    """Whether rank 0 sends the weights to the pool."""
    test: bool = False
    """Whether to measure the metric on the test split before the run ends."""


@dataclass(frozen=True)
class Close:
    """Pool to workers: return from Ray Train's train function, which ends the worker group."""


@dataclass(frozen=True)
class Measure:
    """Driver to workers, for `raybench doctor`: measure the time of all-reduces, outside of any
    run."""

    sizes: tuple[int, ...]
    """Sizes of the all-reduces in bytes."""
    rounds: int
    """Number of all-reduces of each size."""


Command = Start | Advance | Finish | Close | Measure


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Worker to pool: the worker has started, on this host and device; sent once."""

    host: str
    node: str
    """Ray's id of the node."""
    pid: int
    device: str
    cores: tuple[int, ...]
    """CPU cores that the worker may use; for a worker with a GPU, the cores near the GPU."""
    actor: Any = None
    """Handle of the worker's actor, with which the pool kills the worker if it hangs."""


@dataclass(frozen=True, kw_only=True)
class WorkerAnswer:
    """Worker to driver: the result of a command."""

    busy_s: float = 0.0
    """Seconds from receiving the command to this reply, on the worker's clock."""
    sent_bytes: int | None = None
    """Size in bytes of the run state (checkpoint or weights) that rank 0 has sent to the pool
    before this reply; None if it has sent none."""
    printed: bytes = b""
    """Output to stdout and stderr since the last reply; the pool keeps it and removes it from the
    reply."""


@dataclass(frozen=True, kw_only=True)
class Progress(WorkerAnswer):
    """Worker to driver: the run has trained to its next evaluation."""

    evaluation: Evaluation
    num_parameters: int | None
    """Number of the model's parameters; None for a user's own training loop."""
    batch_statistics: bool
    """Whether any layer of the model normalizes over the batch of one worker."""
    num_classes: int | None
    """Number of classes in the data; None for a regression."""
    state: RunState | None = None
    """State of the run in the checkpoint that rank 0 has sent before this reply; None without a
    checkpoint. The pool removes the state from the reply and sets `saved`."""
    saved: int | None = None
    """Index of the checkpoint, which is the index of the next evaluation; None without a
    checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Finished(WorkerAnswer):
    """Worker to driver: the run has ended and its memory is released."""

    ledger: dict[str, float]
    """Seconds of the run on this worker, keyed by phase."""
    weights: Path | None = None
    """File on the pool's host with the weights that rank 0 has sent; set by the pool. None without
    weights."""
    test_value: float | None = None
    """Metric on the test split; None if it was not measured."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about the model and how the run ended."""


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """Worker to driver: an exception ended the run, or the start of the group, on this worker."""

    failure: Failure
    """`Failure.OOM` if the worker ran out of memory, otherwise `Failure.ERROR`."""
    message: str
    """One line with the exception's type and message."""
    traceback: str
    """Traceback of the exception."""
    mistake: ErrorCode | None = None
    """Error code if a user mistake in the model or its settings kept the run from starting
    (`START_MISTAKES`); None for any other failure."""
    printed: bytes = b""
    """Output to stdout and stderr since the last reply; see `WorkerAnswer.printed`."""


@dataclass(frozen=True, kw_only=True)
class MeasuredSums(WorkerAnswer):
    """Worker to driver, for `raybench doctor`: the result of `Measure`."""

    seconds: dict[int, list[float]]
    """Seconds of every all-reduce, keyed by its size in bytes."""
    through: str
    """Library that runs the all-reduces: `gloo`, `ring` or `nccl`."""
    interface: str
    """Name of the network interface; empty if the framework chose it."""


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
"""Error codes of user mistakes in the model, its weights or its optimizer. Most other runs would
fail in the same way, so a mistake of this kind ends a study in which no run has trained yet."""

STOPPED: Final = "stopped"
"""`RunFailed.failure` of a run that was ended from outside. Such a run does not count as failed."""


class RunFailed(Exception):  # noqa: N818 (a result, not a bug of ours)
    """Raised if a run ends without a result, for example because a worker crashed, was lost or did
    not answer, or because the run was stopped."""

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
    """Raised if a group did not start because one of its hosts is leaving the cluster.

    The restart that follows does not count toward a run's limit of restarts.
    """


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Pool to run client: the worker group that was assigned to the run."""

    queue_s: float
    """Seconds until resources for the group were free."""
    start_s: float
    """Seconds that starting the group took; 0 if it was already alive."""
    hosts: tuple[str, ...] = ()
    """Host names of the ranks, in rank order."""
    devices: tuple[str, ...] = ()
    """Device names of the ranks, in rank order."""
    workers_per_node: tuple[int, ...] = ()
    """Number of workers on each node, largest first."""
    accelerators: tuple[str, ...] = ()
    """Distinct models of the group's GPUs."""
    waited_for: str | None = None
    """Description of what the run waited for; None if it did not have to wait."""
    resume: RunState | None = None
    """State from which the run continues; None to start from scratch."""
