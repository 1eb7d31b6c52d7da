"""Records of a study: a line of `records.jsonl` for each evaluation and for each finished run.

`results.records` validates records that are read from a file against the type annotations below;
the constructors do not validate their arguments.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import Objective, StopReason, search_score, worst_score
from raybench.spec.run import RunSpec
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.step_times import Finite, NoiseSums, Seconds
from raybench.stats.step_times import StepTimes as StepTimes

Whole = Annotated[int, Strict()]
Truth = Annotated[bool, Strict()]
Measured = Annotated[
    float, Strict(), BeforeValidator(lambda value: math.nan if value is None else value)
]
"""Float that may be NaN, which is null in JSON."""


class Phase(StrEnum):
    """Phase of a study to which a run belongs."""

    SEARCH = "search"
    CONFIRM = "confirm"
    REFERENCE = "reference"
    SCALING = "scaling"
    COMPARE = "compare"


class Role(StrEnum):
    """Role of a run in a study."""

    TRIAL = "trial"
    """Run proposed by the search."""
    PLACEMENT_CHECK = "placement_check"
    """Rerun of a trial on workers, GPU, compilation or framework that were predicted to be
    faster."""
    RACE = "race"
    """Run of a candidate with a new seed, in parallel with others, to find the winner."""
    CONFIRM = "confirm"
    """Run of a winner with a new seed, alone on the machine, for the reported time."""
    REFERENCE = "reference"
    """Run of a default configuration that sets the target."""
    SCALING = "scaling"
    """Repeat of a configuration (cell) of a scaling study."""
    PAIR = "pair"
    """One of the two runs of a pair of `raybench compare`."""


PHASE_OF = {
    Role.TRIAL: Phase.SEARCH,
    Role.PLACEMENT_CHECK: Phase.SEARCH,
    Role.RACE: Phase.CONFIRM,
    Role.CONFIRM: Phase.CONFIRM,
    Role.REFERENCE: Phase.REFERENCE,
    Role.SCALING: Phase.SCALING,
    Role.PAIR: Phase.COMPARE,
}


class State(StrEnum):
    """How a run ended."""

    COMPLETE = "complete"
    """Ended by its own stop rule: target, epochs or time limit."""
    STOPPED = "stopped"
    """Ended by the driver; `RunRecord.stop` has the reason."""
    FAILED = "failed"
    """Ended by a failure; `RunRecord.failure` has its kind."""


class Failure(StrEnum):
    """Kind of failure that ended a run."""

    OOM = "oom"
    """Out of memory."""
    NAN = "nan"
    """Loss or weights that are not finite."""
    TIMEOUT = "timeout"
    """A training loop that hung or exceeded `search.trial_seconds`."""
    ERROR = "error"
    """An exception of the user's code, or an invalid setting."""
    WORKER_LOST = "worker_lost"
    """A process or node that died."""


MACHINE_FAULTS = (Failure.WORKER_LOST,)
"""Failures that the configuration did not cause; runs that failed this way may be retried."""
DISTURBED_SHARE, DISTURBED_S = 0.25, 0.05
"""Limits for the training time that other processes take from a run's cores: DISTURBED_SHARE as a
fraction of the training seconds, DISTURBED_S in seconds. A run that exceeds both counts as
disturbed. One competing process per core takes half of the time. On a busy machine, the search
process and the hypervisor took 9 to 20 % of ten short runs."""


class Purpose(StrEnum):
    """Use of a run's result; see `RunRecord.counts_for`."""

    MEASUREMENT = "measurement"
    """Result of a single run, which must have ended normally."""
    COMPARISON = "comparison"
    """One of several runs of a configuration; a run that the cutoff stopped counts as a run that
    missed the target."""
    IMPORTANCE = "importance"
    """Input to hyperparameter importance; trials that were stopped early count too."""
    TRANSFER = "transfer"
    """Evidence for another study; errors and timeouts may be due to code or machines that have
    changed since."""


CUT_SHORT: dict[Purpose, tuple[StopReason, ...]] = {
    Purpose.MEASUREMENT: (
        StopReason.INTERRUPTED,
        StopReason.TIME_BUDGET,
        StopReason.CAP,
        StopReason.SCHEDULER,
    ),
    Purpose.COMPARISON: (StopReason.INTERRUPTED, StopReason.TIME_BUDGET, StopReason.SCHEDULER),
    Purpose.IMPORTANCE: (StopReason.INTERRUPTED, StopReason.TIME_BUDGET),
    Purpose.TRANSFER: (),
}
"""Stop reasons of runs that do not count, keyed by purpose (see `RunRecord.counts_for`)."""
NOT_CAUSED: dict[Purpose, tuple[Failure, ...]] = dict.fromkeys(Purpose, MACHINE_FAULTS) | {
    Purpose.TRANSFER: (*MACHINE_FAULTS, Failure.TIMEOUT, Failure.ERROR)
}
"""Failures of runs that do not count, because the configuration did not cause the failure, keyed by
purpose."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One point of a learning curve, reduced over all workers."""

    index: Whole
    """Number of the evaluation within the run: 0, 1, 2, ..."""
    epoch: Measured
    """Epochs trained so far."""
    samples: Whole
    """Training samples seen so far by all workers together."""
    train_s: Measured
    """Training seconds so far (phase `train`), max over ranks."""
    train_loss: Measured
    """Mean training loss since the last evaluation, including losses that a Keras model adds
    (regularizers, `add_loss`)."""
    value: Measured
    """Metric of the objective on the full validation set."""
    learning_rate: Measured
    """Learning rate of the last step."""
    samples_per_s: Measured
    """Training samples per train second since the last evaluation."""
    ledger: dict[str, float] = field(default_factory=dict)
    """Seconds of every worker phase so far, max over ranks."""
    best_value: float | None = None
    """Value by which the run is judged: the best value so far or, with `best_at_budget`, the
    latest."""
    time_to_target_s: float | None = None
    """Training seconds to the target; None until the target is reached for as many consecutive
    evaluations as `objective.hold` requires."""
    stop: StopReason | None = None
    """Reason why the run ends after this evaluation; None if it continues."""
    failure: Failure | None = None
    """`Failure.NAN` if the loss or the weights are not finite; otherwise None."""
    value_error: Measured | None = None
    """Standard error of `value` due to the finite size of the validation set; None for a proportion
    such as accuracy, whose error is binomial."""
    rank_s: tuple[Measured, ...] | None = None
    """Training seconds of each rank since the last evaluation, excluding waits for other ranks;
    None if workers exchange gradients."""
    rank_parts: tuple[tuple[Measured, Measured, Measured], ...] | None = None
    """Tuples (CPU seconds, seconds that other processes took from its cores, seconds spent waiting
    for data) since the last evaluation, one for each rank. None for a single worker, and if workers
    exchange gradients while `record_steps` is not set."""
    steps: StepTimes | None = None
    """Step times since the last evaluation; None if no step had a full global batch. This field and
    all following fields are None unless `record_steps` is set, except `skipped_steps` and, in a
    user's own training loop, `memory_peak_bytes`."""
    input_s: Measured | None = None
    """Seconds of `train_s` spent waiting for data so far, max over ranks."""
    evenness: Measured | None = None
    """Load balance since the last evaluation: seconds of the fastest worker divided by seconds of
    the slowest, at most 1. Near 1 if workers exchange gradients, since they wait for each other.
    None for one worker."""
    memory_peak_bytes: Whole | None = None
    """Peak memory of a worker since the run began, max over ranks: allocated tensors on a GPU; on a
    CPU the whole process, including memory kept from earlier runs."""
    gpu_utilization: Measured | None = None
    """Fraction of the training time since the last evaluation in which the GPU was busy, mean over
    ranks; None without GPUs, or if unknown."""
    bytes_exchanged_per_step: Whole | None = None
    """Bytes that a worker contributes to the gradient exchange of one optimizer step."""
    flops_per_sample: Measured | None = None
    """Floating-point operations of the forward and backward pass for one training sample, as
    counted by torch; None in TensorFlow."""
    tokens_per_sample: Whole | None = None
    """Number of predicted tokens per sample; None unless the task is language modelling."""
    noise_scale: NoiseSums | None = None
    """Sums of gradient-noise estimates, from which `scaling.fits.noise_scales` computes the
    gradient noise scale."""
    skipped_steps: Whole | None = None
    """Number of steps so far that were skipped because a gradient was not finite; None unless
    `precision` is `fp16`. If workers do not exchange gradients, it is the number on rank 0."""

    def line(
        self, trial: str, *, role: Role | None = None, spec: RunSpec | None = None
    ) -> dict[str, Any]:
        """Return this evaluation as a dict, the content of one line of `records.jsonl`.

        The line of a run's first evaluation also contains the role and the run spec, if they are
        given, so that unfinished runs can be read before their record is written.

        Args:
            trial: Name of the run.
            role: Role of the run.
            spec: Run spec of the run.
        """
        content = asdict(self)
        keys = (*CURVE_KEYS, *(key for key in OPTIONAL_KEYS if content[key] is not None))
        run = {}
        if spec is not None and self.index == 0:
            run = {"role": role, "spec": spec.document()}
        head = {"kind": "eval", "trial": trial}
        return head | run | {key: content[key] for key in keys}


_KEYS = [item.name for item in fields(Evaluation)]
CURVE_KEYS = tuple(_KEYS[: _KEYS.index("ledger")])
"""Fields of an Evaluation that every `eval` line contains."""
OPTIONAL_KEYS = tuple(_KEYS[_KEYS.index("value_error") :])
"""Fields of an Evaluation that an `eval` line contains only if they are not None."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted time to the target of a trial on another placement (framework, number of workers,
    GPU model, ...), on which it has not run."""

    trial: str
    framework: str
    num_workers: Annotated[Whole, Field(gt=0)]
    batch_size_per_worker: Annotated[Whole, Field(gt=0)]
    time_to_target_s: Finite
    accelerator_type: str | None = None
    compile: str = "none"
    accumulate: int = 1
    prefetch: int = 0

    @property
    def worker_seconds(self) -> float:
        """Predicted worker-seconds to the target: number of workers times seconds."""
        return self.num_workers * self.time_to_target_s

    def line(self) -> dict[str, Any]:
        """Return this prediction as a dict, the content of one line of `records.jsonl`."""
        return {"kind": "prediction", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Record of one finished run, from which the columns of `trials.csv` are computed."""

    trial: str
    """Name of the run, unique in the study."""
    role: Role
    source: str | None
    """Trial whose configuration this run repeats, or cell (run spec) of the scaling study to which
    the run belongs; None for other runs."""
    state: State
    failure: Failure | None
    message: str | None
    """Cause of the failure in one line; None if the run did not fail."""
    stop: StopReason | None
    spec: RunSpec
    num_parameters: Whole | None
    batch_statistics: Truth | None
    """Whether the model normalizes with the batch statistics of one worker (unsynchronized
    BatchNorm)."""
    time_to_target_s: Seconds | None
    best_value: Finite | None
    test_value: Finite | None
    score: Measured
    samples: Whole
    ledger: dict[str, Finite]
    """Seconds of every phase (`queue`, `start`, `setup`, ...), of `input` and of `other`."""
    wall_s: Seconds
    """Wall-clock seconds from the request for workers to the result, measured by the driver. For a
    run that another driver has resumed, the ledger seconds up to the checkpoint are added."""
    concurrent: Whole
    """Maximum number of other runs of the study that trained at the same time."""
    hosts: list[str]
    devices: list[str]
    finished: str
    """End of the run as UTC time in ISO 8601 format."""
    workers_per_node: list[Whole] = field(default_factory=list)
    """Number of workers on each node, in descending order; empty if unknown."""
    accelerators: list[str] = field(default_factory=list)
    """Distinct GPU models of the workers; empty without GPUs."""
    waited_for: str | None = None
    """Description of the resources that the run had to wait for; None if it did not wait."""
    restarts: Whole = 0
    """Number of times the run was resumed or restarted after losing its workers."""
    restart_reason: str | None = None
    """Reason for the last restart in one line; None if the run was not restarted."""
    code: str | None = None
    """Version of the user's code that the run executed (see `runs.code_change`); None if
    unknown."""

    @property
    def disturbed_s(self) -> float:
        """Training seconds that other processes took from the cores of a worker, maximum over
        ranks; 0 if unknown."""
        return self.ledger.get("disturbed", 0.0)

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes took more than DISTURBED_SHARE of the run's training seconds, and
        more than DISTURBED_S."""
        return self.disturbed_s > max(DISTURBED_SHARE * self.ledger["train"], DISTURBED_S)

    def counts_for(self, purpose: Purpose) -> bool:
        """Return whether the run is valid evidence about its configuration, for a given purpose.

        A run does not count if the configuration did not cause its failure (`NOT_CAUSED`), or if
        the purpose excludes its stop reason (`CUT_SHORT`). A failure of the configuration itself,
        such as out of memory or NaN, always counts.
        """
        return self.failure not in NOT_CAUSED[purpose] and self.stop not in CUT_SHORT[purpose]

    @property
    def runs_again(self) -> bool:
        """Whether a resumed search runs this trial again: it was interrupted, or the time budget
        ended it before its first evaluation."""
        is_cut = self.stop == StopReason.TIME_BUDGET and not self.samples
        return is_cut or self.stop == StopReason.INTERRUPTED

    @property
    def is_start_failure(self) -> bool:
        """Whether an error ended the run before its first training step."""
        return self.failure == Failure.ERROR and not self.samples

    @property
    def num_nodes(self) -> int:
        """Number of nodes on which the workers ran; 0 if unknown."""
        return len(self.workers_per_node)

    @property
    def places(self) -> list[str]:
        """Host and device of each rank, as display text."""
        pairs = zip(self.hosts, self.devices, strict=True)
        return [f"host {host}, {device}" for host, device in pairs]

    @property
    def phase(self) -> Phase:
        """Phase of the study to which the run belongs."""
        return PHASE_OF[self.role]

    def line(self) -> dict[str, Any]:
        """Return this run as a dict, the content of one line of `records.jsonl`."""
        head = {"kind": "run", "trial": self.trial, "phase": self.phase}
        content = {item.name: getattr(self, item.name) for item in fields(self)}
        return head | content | {"spec": self.spec.document()}


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """State of a run in the driver (the process that runs the study). The run's record is built
    from it when the run has ended."""

    evaluation: Evaluation | None = None
    """Latest evaluation; None before the first."""
    is_over: bool = False
    """Whether the run has ended, by its stopping rule or by a failure."""
    traceback: str = ""
    """Traceback of the exception that made the run fail; empty if there is none."""
    baseline_value: float | None = None
    """Baseline value to use if the objective does not set one, which is 1 / number of classes; None
    if unknown."""
    saved: int | None = None
    """Index of the first evaluation after the newest checkpoint; None without a checkpoint."""
    notes: tuple[str, ...] = ()
    """Messages for the user about the model or the end of the run; not failures."""
    mistake: ErrorCode | None = None
    """Error code if an invalid model or setting kept the run from starting; otherwise None."""
    # The following fields have the same names in `RunRecord`.
    failure: Failure | None = None
    message: str | None = None
    ledger: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    num_parameters: int | None = None
    batch_statistics: bool | None = None
    test_value: float | None = None
    concurrent: int = 0
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    workers_per_node: tuple[int, ...] = ()
    accelerators: tuple[str, ...] = ()
    waited_for: str | None = None
    restarts: int = 0
    restart_reason: str | None = None

    @property
    def stop(self) -> StopReason | None:
        """Stop reason of the last evaluation; None if the run is not over, or ended by a failure or
        from outside."""
        return self.evaluation.stop if self.evaluation else None

    @property
    def state(self) -> State:
        """State to write to the record of the run."""
        if self.failure is not None:
            return State.FAILED
        return State.STOPPED if self.stop is None else State.COMPLETE

    @property
    def user_error(self) -> UserError | None:
        """Error to show if an invalid model or setting kept the run from starting; otherwise
        None."""
        if self.mistake is None:
            return None
        return UserError(self.message, self.mistake, self.traceback)

    def score(self, objective: Objective) -> float:
        """Return the score that the search minimizes; the worst possible score for a run that
        failed or has no evaluation."""
        if self.failure is not None or self.evaluation is None:
            return worst_score(objective, baseline_value=self.baseline_value)
        return search_score(
            objective,
            time_to_target_s=self.evaluation.time_to_target_s,
            best_value=self.evaluation.best_value,
            baseline_value=self.baseline_value,
        )

    def record(
        self, name: str, spec: RunSpec, *, role: Role, source: str | None, stopped_by: StopReason
    ) -> RunRecord:
        """Return the record of the run.

        Args:
            name: Name of the run.
            spec: Run spec of the run.
            role: Role of the run.
            source: Trial or cell that the run repeats; None for other runs.
            stopped_by: Stop reason to record if the last evaluation has none.
        """
        point = self.evaluation
        names = {item.name for item in fields(self)} & {item.name for item in fields(RunRecord)}
        common = {name: getattr(self, name) for name in names}
        common |= {name: list(value) for name, value in common.items() if isinstance(value, tuple)}
        derived = {
            "trial": name,
            "role": role,
            "source": source,
            "spec": spec,
            "state": self.state,
            "stop": None if self.failure else (self.stop or stopped_by),
            "time_to_target_s": None if self.failure or point is None else point.time_to_target_s,
            "best_value": None if point is None else point.best_value,
            "score": self.score(spec.objective),
            "samples": 0 if point is None else point.samples,
            "ledger": dict.fromkeys((*PHASES, OTHER, "input"), 0.0) | self.ledger,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return RunRecord(**common | derived)
