"""Messages between driver, pool and workers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from raybench.cluster.connectivity import MISNAMED
from raybench.spec.errors import StudyError, UserError
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import Checkpoint, RunState
from raybench.stats.record import Evaluation, Failure
from raybench.training.probe import DIFFERENT


@dataclass(frozen=True, kw_only=True)
class Start:
    """Driver to workers: build this run and train to its first evaluation."""

    spec: RunSpec
    cores: tuple[int, ...] = ()
    """CPU cores to pin this worker to; empty leaves it free."""
    resume: Checkpoint | None = None
    """Checkpoint to continue from; the pool fills it in, where it holds one of this run. Its file
    is beside the pool (`states.fetch`)."""


@dataclass(frozen=True)
class Advance:
    """Driver to workers: train to the next evaluation."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Driver to workers: end the run, release its memory."""

    save: bool = False
    """Send the weights to the pool (rank 0)."""
    test: bool = False
    """Measure the metric on the test split first."""


@dataclass(frozen=True)
class Close:
    """Driver to workers: leave the train function."""


@dataclass(frozen=True)
class Measure:
    """Doctor to workers: time sums over all of them, of so many bytes each; no run is open."""

    sizes: tuple[int, ...]
    rounds: int


Command = Start | Advance | Finish | Close | Measure


@dataclass(frozen=True, kw_only=True)
class Ready:
    """Worker to driver, once: where it runs."""

    host: str
    node: str
    pid: int
    device: str
    cores: tuple[int, ...]
    """CPU cores it may use; of a GPU's worker those next to it."""
    actor: Any = None
    """Handle of the worker's actor, to end it when it hangs."""


@dataclass(frozen=True, kw_only=True)
class WorkerAnswer:
    """Worker to driver: what a command has come to."""

    busy_s: float = 0.0
    """Seconds from hearing the command to this reply, on the worker's clock."""
    sent_bytes: int | None = None
    """Size of the state that rank 0 has sent to the pool before it (`states.send`), if any."""
    printed: bytes = b""
    """Output to stdout and stderr since the last reply; the pool takes it out."""


@dataclass(frozen=True, kw_only=True)
class Progress(WorkerAnswer):
    """Worker to driver: an evaluation was reached."""

    evaluation: Evaluation
    num_parameters: int | None
    """None of a training loop of the user's own."""
    batch_statistics: bool
    num_classes: int | None
    """Number of classes in the data; None for a regression."""
    state: RunState | None = None
    """Data that go with a checkpoint that was sent; the pool keeps it and takes it out."""
    saved: int | None = None
    """The part that the pool leaves: the index of the evaluation that follows."""


@dataclass(frozen=True, kw_only=True)
class Finished(WorkerAnswer):
    """Worker to driver: the run has ended and its memory is released."""

    ledger: dict[str, float]
    weights: Path | None = None
    """The file in which the pool holds the weights that were sent (`states.parts`)."""
    test_value: float | None = None
    note: str | None = None
    """Remark for the user on how it ended, in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """Worker to driver: an exception ended the run on this worker."""

    failure: Literal["oom", "error", "refused"]
    """`REFUSED`: of the checkpoint that it should go on from."""
    message: str
    """One line: the exception's type and text; of what was refused the sentence alone."""
    traceback: str
    printed: bytes = b""


@dataclass(frozen=True, kw_only=True)
class MeasuredSums(WorkerAnswer):
    """Worker to doctor: the answer to `Measure`."""

    seconds: dict[int, list[float]]
    """Seconds of each round, by size."""
    through: str
    """`gloo`, `ring`, `nccl`."""
    interface: str
    """The network interface; empty where the framework chose it by itself."""


Reply = Ready | WorkerAnswer | Crashed


STOPPED: Final = "stopped"
"""Message of RunFailed for a run that was ended from outside before it had workers: no failure."""

REFUSED: Final = "refused"
"""Message of RunFailed where the workers refuse the run's checkpoint: it can begin anew."""


def sender_of(group: int) -> str:
    """Return the name by which a worker group sends states to the pool."""
    return f"group-{group}"


class RunFailed(Exception):  # noqa: N818 (a result, not a bug of ours)
    """A run ended without a result; the driver's side of `Crashed`, lost and hung workers."""

    def __init__(
        self,
        failure: Failure | Literal["stopped", "refused"],
        message: str,
        traceback: str = "",
    ) -> None:
        super().__init__(failure, message, traceback)
        self.failure, self.message, self.traceback = failure, message, traceback


class HostLeaves(RunFailed):
    """A group did not start because one of its hosts had been given notice; no fault of the run."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Pool to client: a group was given."""

    queue_s: float
    """Seconds until there was room for it."""
    start_s: float
    """Seconds its start took, starts that failed included; 0 when it was warm."""
    hosts: tuple[str, ...] = ()
    """Host of every rank."""
    devices: tuple[str, ...] = ()
    """Device of every rank."""
    workers_per_node: tuple[int, ...] = ()
    """Workers on each node, most first."""
    accelerators: tuple[str, ...] = ()
    """Models of the group's GPUs, each once."""
    waited_for: str | None = None
    """Resources that were missing while it was queued, in words."""
    resume: RunState | None = None
    """Position from which the run will go on; None: its beginning."""
    slowest_start_s: float | None = None
    """Seconds of the longest beginning of a run so far, to its first evaluation; None before."""


def fault_of(message: str | None) -> Exception | None:
    """Return what ends a study at once, by the `message` of a run that failed; None of others.

    It fails all its runs alike: workers that cannot meet, or that build different models.
    """
    if message is None:
        return None
    if message.startswith(MISNAMED):
        return UserError(message)
    _, found, rest = message.partition(DIFFERENT)
    return StudyError(found + rest) if found else None
