"""Records of a study: one line per evaluation, one per finished run.

The annotations validate records that are read from a file (`results.records`); constructors do not
validate.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import Objective, search_score, worst_score
from raybench.spec.run import RunSpec
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.step_times import Finite, NoiseSums, Seconds
from raybench.stats.step_times import StepTimes as StepTimes

Whole = Annotated[int, Strict()]
Truth = Annotated[bool, Strict()]
Measured = Annotated[
    float, Strict(), BeforeValidator(lambda value: math.nan if value is None else value)
]
"""May be NaN, which is null in a JSON file."""

Phase = Literal["search", "confirm", "reference", "scaling", "compare"]
Role = Literal["trial", "placement_check", "race", "confirm", "reference", "scaling", "pair"]
"""Purpose of a run.

| role | run |
|---|---|
| trial | proposed by the search |
| placement_check | another placement of a trial, whose time was only predicted |
| race | candidate with a new seed, beside others, to find the winner |
| confirm | winner with a new seed, alone, for its printed time |
| reference | sets the target |
| scaling | repeat of a cell of a scaling study |
| pair | one side of a pair of `raybench compare` |
"""
PHASE_OF: dict[Role, Phase] = {
    "trial": "search",
    "placement_check": "search",
    "race": "confirm",
    "confirm": "confirm",
    "reference": "reference",
    "scaling": "scaling",
    "pair": "compare",
}
State = Literal["complete", "stopped", "failed"]
Failure = Literal["oom", "nan", "timeout", "error", "worker_lost"]
MACHINE_FAULTS = ("worker_lost",)
"""Failures that the configuration did not cause, so that the run may be retried. A `timeout` is
its own: the loop did not answer, or took longer than `search.trial_seconds`."""
DISTURBED_SHARE, DISTURBED_S = 0.25, 0.05
"""A run is disturbed if other processes took more than this share of its training seconds, and
more than these seconds. One busy process per core takes half; ten short runs with the highest
priority on a busy machine lost 0.09 to 0.20 to the search itself and the host."""
StopReason = Literal[
    "target", "max_train_seconds", "epochs", "scheduler", "cap", "time_budget", "interrupted"
]
Purpose = Literal["measurement", "comparison", "importance"]
CUT_SHORT: dict[Purpose, tuple[StopReason, ...]] = {
    "measurement": ("interrupted", "time_budget", "cap", "scheduler"),
    "comparison": ("interrupted", "time_budget", "scheduler"),
    "importance": ("interrupted", "time_budget"),
}
"""Stop reasons with which a run does not count, by purpose: see `RunRecord.counts_for`."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One point of a learning curve, reduced over all workers."""

    index: Whole
    """0, 1, 2, ... within the run."""
    epoch: Measured
    """Epochs trained so far."""
    samples: Whole
    """Training samples seen so far by all workers together."""
    train_s: Measured
    """Seconds on the training clock so far, max over ranks."""
    train_loss: Measured
    """Mean training loss since the last evaluation, with what a Keras model adds to it (weight and
    activity penalties, `add_loss`)."""
    value: Measured
    """Metric of the objective on the full validation set."""
    learning_rate: Measured
    """Learning rate of the last step."""
    samples_per_s: Measured
    """Training samples per train second since the last evaluation."""
    ledger: dict[str, float] = field(default_factory=dict)
    """Seconds of every worker phase so far, max over ranks."""
    best_value: float | None = None
    """Best value so far, or with `best_at_budget` the last: the run is judged by it."""
    time_to_target_s: float | None = None
    """Train seconds to the target; None while it is not reached (and held)."""
    stop: StopReason | None = None
    """Reason why the run ends here; None if it goes on."""
    failure: Literal["nan"] | None = None
    """`nan` if the loss or the weights are not finite."""
    value_error: Measured | None = None
    """Standard error of `value` by the sampling of the validation rows; None for a share, whose
    error is binomial."""
    rank_s: tuple[Measured, ...] | None = None
    """Training seconds of each rank since the last evaluation, without waiting for other ranks;
    None if workers exchange gradients."""
    rank_parts: tuple[tuple[Measured, Measured, Measured], ...] | None = None
    """Parts of each rank's training seconds since the last evaluation: CPU time, time when other
    processes had its cores, waiting for data. Only for several workers that exchange nothing, and
    with `record_steps`."""
    steps: StepTimes | None = None
    """Times of the optimizer steps since the last evaluation, None if none had a whole global
    batch; this and the following are None unless the run spec asks for `record_steps`."""
    input_s: Measured | None = None
    """Seconds of `train_s` spent waiting for data so far, max over ranks."""
    evenness: Measured | None = None
    """Seconds of the fastest worker over those of the slowest for these steps, at most 1. Workers
    that exchange gradients wait for one another and are near 1. None for one worker."""
    memory_peak_bytes: Whole | None = None
    """Peak memory of a worker since the run began, max over ranks: its tensors on a GPU, the whole
    process on a CPU, with memory kept from earlier runs."""
    gpu_utilization: Measured | None = None
    """Share of the training time since the last evaluation in which the GPU was busy, mean over
    ranks; None without GPUs, or if unknown."""
    bytes_exchanged_per_step: Whole | None = None
    """Bytes that a worker contributes to the gradient exchange of one optimizer step."""
    noise_scale: NoiseSums | None = None
    """Gradient noise over several workers, for `scaling.fits.noise_scales`."""
    skipped_steps: Whole | None = None
    """With `precision: fp16`: steps since the run began that were skipped because a gradient was
    not finite; of the first worker if workers exchange nothing."""

    def line(
        self, trial: str, *, role: "Role | None" = None, spec: RunSpec | None = None
    ) -> dict[str, Any]:
        """Return the record line of this evaluation.

        That of a run's first evaluation also holds the role and run spec, if given, for readers of
        a running study: the run's own record is written at its end.
        """
        content = asdict(self)
        keys = (*CURVE_KEYS, *(key for key in OPTIONAL_KEYS if content[key] is not None))
        what = {}
        if spec is not None and self.index == 0:
            what = {"role": role, "spec": spec.document()}
        own = {"kind": "eval", "trial": trial}
        return own | what | {key: content[key] for key in keys}


_KEYS = [one.name for one in fields(Evaluation)]
CURVE_KEYS = tuple(_KEYS[: _KEYS.index("ledger")])
"""Fields of an Evaluation that every `eval` line holds."""
OPTIONAL_KEYS = tuple(_KEYS[_KEYS.index("value_error") :])
"""Fields that an `eval` line holds where they are not None."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted time to the target of a trial on another placement; never a measurement."""

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
        """Workers times seconds to the target."""
        return self.num_workers * self.time_to_target_s

    def line(self) -> dict[str, Any]:
        """Return the record line of this prediction."""
        return {"kind": "prediction", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Record of one finished run; the columns of `trials.csv` come from here."""

    trial: str
    """Name of the run, unique in the study."""
    role: Role
    source: str | None
    """Trial whose configuration it repeats, or cell that it is a repeat of."""
    state: State
    failure: Failure | None
    message: str | None
    """The cause of a failure, one line."""
    stop: StopReason | None
    spec: RunSpec
    num_parameters: Whole | None
    batch_statistics: Truth | None
    """Whether the model normalizes over the samples of one worker's batch."""
    time_to_target_s: Seconds | None
    best_value: Finite | None
    test_value: Finite | None
    score: Measured
    samples: Whole
    ledger: dict[str, Finite]
    """Seconds of every phase (`queue`, `start`, `setup`, ...), of `input` and of `other`."""
    wall_s: Seconds
    """Seconds from asking for workers until the result was known, on the driver's clock; for a run
    that another driver began, its ledger up to the checkpoint counts."""
    concurrent: Whole
    """Largest number of other runs that trained at the same time."""
    hosts: list[str]
    devices: list[str]
    finished: str
    """UTC, ISO 8601."""
    workers_per_node: list[Whole] = field(default_factory=list)
    """Workers on each node of the cluster, most first; empty if unknown."""
    accelerators: list[str] = field(default_factory=list)
    """GPU models of its workers, each once; empty without GPUs."""
    waited_for: str | None = None
    """Resources that were missing while it was queued, in words; None if none were."""
    restarts: Whole = 0
    """Number of times that it was resumed or restarted after losing its workers."""
    restart_reason: str | None = None
    """Reason of the last of these losses, one line."""
    code: str | None = None
    """Version of the user's code that it ran (`models.code`); None if unknown."""

    @property
    def disturbed_s(self) -> float:
        """Training seconds that other processes took, max over ranks; 0 if unknown."""
        return self.ledger.get("disturbed", 0.0)

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes took too much of its training seconds: see DISTURBED_SHARE."""
        return self.disturbed_s > max(DISTURBED_SHARE * self.ledger["train"], DISTURBED_S)

    def counts_for(self, purpose: Purpose) -> bool:
        """Return whether the run says something about its configuration.

        Args:
            purpose: `measurement`: a result of its own, so it must have run to its end.
                `comparison`: a run of a configuration that is repeated; one stopped by the cutoff
                of the race counts too, as a miss. `importance`: the score of a trial; one stopped
                early by the search counts too.

        Returns:
            False for a run that was cut short in a way that the purpose does not allow
            (`CUT_SHORT`), and for one lost to a fault of the machine. A failure of the
            configuration itself (out of memory, NaN, an error) always counts.
        """
        return self.failure not in MACHINE_FAULTS and self.stop not in CUT_SHORT[purpose]

    @property
    def num_nodes(self) -> int:
        """Number of nodes of its workers; 0 if unknown."""
        return len(self.workers_per_node)

    @property
    def places(self) -> list[str]:
        """Host and device of each rank, for people."""
        pairs = zip(self.hosts, self.devices, strict=True)
        return [f"host {host}, {device}" for host, device in pairs]

    @property
    def phase(self) -> Phase:
        """Phase of the study."""
        return PHASE_OF[self.role]

    def line(self) -> dict[str, Any]:
        """Return the record line of this run."""
        own = {"kind": "run", "trial": self.trial, "phase": self.phase}
        content = {one.name: getattr(self, one.name) for one in fields(self)}
        return own | content | {"spec": self.spec.document()}


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """State of a run as its driver knows it; once `is_over`, the source of its record."""

    evaluation: Evaluation | None = None
    """The last one; None before the first."""
    is_over: bool = False
    """Whether the run has ended by itself or by a failure."""
    traceback: str = ""
    """Traceback of a failure in code."""
    baseline_value: float | None = None
    """Baseline value where the objective has none: 1 / number of classes; None if unknown."""
    saved: int | None = None
    """Index of the evaluation that follows its newest checkpoint; None without a checkpoint."""
    refused: str | None = None
    """Reason why it started over instead of resuming from its checkpoint."""
    notes: tuple[str, ...] = ()
    """Sentences for the user on the model and on how it ended; not a failure."""
    mistake: ErrorCode | None = None
    """Kind of mistake in the model or its settings with which it could not start."""
    # The following fields are in the record under the same names.
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
        """Reason why the run ended by itself; None if it has not."""
        return self.evaluation.stop if self.evaluation else None

    @property
    def user_error(self) -> UserError | None:
        """The user's mistake with which the run could not start; None for any other end."""
        if self.mistake is None:
            return None
        return UserError(self.message, self.mistake, self.traceback)

    def score(self, objective: Objective) -> float:
        """Return the score that the search minimizes; the worst one without an evaluation."""
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
        """Return the record of the run; `stopped_by`: why it was stopped, if not by itself."""
        last = self.evaluation
        names = {one.name for one in fields(self)} & {one.name for one in fields(RunRecord)}
        same = {name: getattr(self, name) for name in names}
        same |= {name: list(one) for name, one in same.items() if isinstance(one, tuple)}
        own = {
            "trial": name,
            "role": role,
            "source": source,
            "spec": spec,
            "state": "failed" if self.failure else ("complete" if self.stop else "stopped"),
            "stop": None if self.failure else (self.stop or stopped_by),
            "time_to_target_s": None if self.failure or last is None else last.time_to_target_s,
            "best_value": None if last is None else last.best_value,
            "score": self.score(spec.objective),
            "samples": 0 if last is None else last.samples,
            "ledger": dict.fromkeys((*PHASES, OTHER, "input"), 0.0) | self.ledger,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return RunRecord(**same | own)
