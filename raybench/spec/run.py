"""Run spec (all settings of one training run): keys, conflicts between keys, the worker group that
the run needs, and the one-line label of a configuration.
"""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError

from raybench.spec.dataset_spec import Augmentation
from raybench.spec.dataset_spec import DatasetSpec as DatasetSpec
from raybench.spec.documents import (
    Document,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
)
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.optimizer import (
    DEFAULTS,
    OPTIMIZER_DEFAULT_KEYS,
    Optimizer,
    problem_of_optimizer,
)
from raybench.spec.own_loop import (
    framework_of_command,
    is_command,
    is_launched,
    is_own_loop,
    with_own_data,
)
from raybench.spec.text import identity, short

ROUNDING = 1e-6
"""Tolerance for floating-point errors when workers are counted, so that ten workers with 0.1 GPU
each fit on one GPU."""


@dataclass(frozen=True)
class ResourceRequest:
    """Worker group that a run needs: framework, number and resources of its workers."""

    framework: str
    num_workers: int
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0
    """GPUs per worker; a fraction only if there is a single worker."""
    packing: str = "pack"
    """`pack` places the workers on as few hosts as possible, `spread` on as many as possible."""
    accelerator_type: str | None = None
    """Ray's name for the GPU model; None for any model."""
    replicas_per_process: int = 1
    """Replicas of the model in each process. A process with several replicas is the only worker of
    its group and has the resources of all replicas."""

    @property
    def in_one_process(self) -> Self:
        """Copy in which a single process runs all workers as replicas of the model."""
        request = replace(self, cpus_per_worker=self.cpus, gpus_per_worker=self.gpus)
        return replace(request, num_workers=1, replicas_per_process=self.num_workers)

    @property
    def cpus(self) -> int:
        """CPU cores of the whole group."""
        return self.num_workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs of the whole group."""
        return self.num_workers * self.gpus_per_worker

    @property
    def num_replicas(self) -> int:
        """Number of replicas of the model in the whole worker group."""
        return self.num_workers * self.replicas_per_process

    @property
    def shares_a_gpu(self) -> bool:
        """Whether several workers would share a GPU, which collective operations on GPUs do not
        support."""
        return self.num_workers > 1 and 0 < self.gpus_per_worker < 1

    def num_fitting(self, cpus: float, gpus: float) -> int:
        """Return how many of the workers fit on a node.

        Args:
            cpus: Free CPU cores of the node.
            gpus: Free GPUs of the node.
        """
        fitting = float(self.num_workers)
        for free, per_worker in ((cpus, self.cpus_per_worker), (gpus, self.gpus_per_worker)):
            if per_worker:
                fitting = min(fitting, free / per_worker)
        return max(0, int(fitting + ROUNDING))


@dataclass(frozen=True)
class Placement:
    """Workers of a run, and how they execute an optimizer step.

    The placement, the model and the optimizer determine the step time. A search predicts the step
    times of placements and chooses among them.
    """

    framework: str
    num_workers: int
    batch_size_per_worker: int
    """Samples per worker in one forward and backward pass."""
    accelerator_type: str | None = None
    """Ray's name for the GPU model; None for any model."""
    compile: str = "none"
    """Compilation mode of the forward and backward pass (`RunSpec.compile`)."""
    accumulate: int = 1
    """Forward and backward passes per optimizer step."""
    prefetch: int = 0
    """Number of prefetched batches."""
    precision: str = "fp32"
    """Floating-point precision of the forward and backward pass."""

    @property
    def samples(self) -> int:
        """Samples per optimizer step."""
        return self.num_workers * self.batch_size_per_worker * self.accumulate


Framework = Literal["torch", "tensorflow", "python"]
ScheduleName = Literal[
    "constant", "cosine", "linear", "polynomial", "step", "one_cycle", "ramp_decay"
]
OWN_RAMP: tuple[ScheduleName, ...] = ("one_cycle", "ramp_decay")
"""Schedules with a built-in warm-up."""
FRAMEWORKS: tuple[str, ...] = ("torch", "tensorflow")
"""Frameworks that can train a `Workload`."""


def installed_frameworks() -> list[str]:
    """Return the installed ones of `FRAMEWORKS`, without the seconds that importing them takes."""
    return [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]


Decay = Annotated[float, Field(ge=0, lt=1)]
"""Decay rate or smoothing factor from 0 to below 1."""


NOT_IN_ONE_PROCESS = (
    *("placement_strategy", "exchange_gradients", "gradient_compression", "bucket_mb"),
    "compile",
)
"""Keys that must keep their defaults with `strategy: single_process`."""
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Values of `compile` that run the compiled pass as CUDA graphs."""
COMPILES = {"torch": ("default", *CUDA_GRAPHS), "tensorflow": ("xla",)}
"""Values of `compile` besides `none`, keyed by framework."""


Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Setting = JsonValue
"""Any plain value: a number, string, boolean or null, or a list or mapping of these."""


class RunSpec(Document):
    """All settings of one training run (the run spec)."""

    workload: str = "mnist_small"
    """Model and task to train: the name of a workload shipped with raybench, your own class
    (`module:Class`), a function with your own training loop (`train.py:train`), or a command
    (`$ python train.py --lr {learning_rate}`)."""
    model: dict[Name, Setting] = {}
    """Settings of the model, such as `{hidden_units: 128}`, passed to the constructor of the
    workload; your own training loop reads them from `run.model`. A search space gives each setting
    its own values: `model: {hidden_units: [64, 128]}`."""
    dataset: DatasetSpec = DatasetSpec(image_size=28)
    """Training data, and how much of it to use."""
    data: dict[Name, Setting] = {}
    """Settings of the data, passed to the workload's `load_dataset`; they require `dataset:
    workload`. A search space lists their values, such as `data: {window: [16, 32]}`; each value
    makes a separate dataset."""
    objective: Objective = Objective(target=0.95)
    """Metric, target and budget of the run."""
    framework: Framework = "torch"
    """Framework that trains the model. `python` imports neither framework; it is for commands, and
    for your own training loop on one worker."""
    num_workers: PositiveInt = 1
    """Number of data-parallel workers: processes, or replicas with `single_process`."""
    strategy: Literal["distributed", "single_process"] = "distributed"
    """`distributed` runs one process per worker, with torch DDP or TensorFlow's
    MultiWorkerMirroredStrategy. `single_process` runs all workers as replicas in one process on one
    host, with torch nn.DataParallel (GPUs only) or TensorFlow's MirroredStrategy; the first replica
    evaluates. Both train on the same samples and sum the same gradients."""
    cpus_per_worker: PositiveInt = 1
    """CPU cores per worker; also the size of the worker's thread pools."""
    gpus_per_worker: Annotated[int | float, Field(ge=0, le=1)] = 0
    """GPUs per worker: 0 or 1; a run with one worker may use a fraction, such as 0.5. In a search,
    the default is 1 on machines with GPUs that the searched frameworks can use."""
    accelerator_type: str | None = None
    """Ray's name for the required GPU model, such as `H100`; by default, any model."""
    placement_strategy: Literal["pack", "spread"] = "pack"
    """Placement of workers on as few hosts as possible (`pack`) or on as many as possible
    (`spread`)."""
    batch_size_per_worker: PositiveInt = 64
    """Samples per worker in one forward and backward pass."""
    accumulate: PositiveInt = 1
    """Forward and backward passes per optimizer step; workers exchange gradients once per step."""
    exchange_gradients: bool = True
    """Whether workers exchange gradients. Without the exchange, each worker trains its own model;
    such runs measure the cost of the exchange and are not ranked."""
    gradient_compression: Literal["none", "fp16", "bf16"] = "none"
    """Data type in which workers send and sum gradients. The largest fp16 number is 65,504; a run
    with larger gradients fails (`nan`), unless `precision: fp16` scales them. TensorFlow does not
    support `bf16` between GPUs."""
    bucket_mb: PositiveFloat = 25.0
    """MiB of gradients that are exchanged at once (bucket size); the exchange overlaps with the
    rest of the backward pass."""
    optimizer: Optimizer = "adam"
    """Optimizer: adam, radam, lars, lamb, sgd, adamw or muon, whose updates are the same in both
    frameworks; or a framework's own class (`torch:SGD`, `keras:Nadam`) or one from another module
    (`torch:pytorch_optimizer.Lion`)."""
    optimizer_options: dict[Name, Setting] = {}
    """Arguments of a library's optimizer class, such as `{momentum: 0.9}`, in addition to the
    learning rate and `weight_decay`; null leaves the default of the class. A search space gives
    each argument its own values."""
    learning_rate: PositiveFloat = 1e-3
    """Base learning rate, before `learning_rate_scaling` and `schedule`."""
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Factor by which the learning rate is multiplied: 1 (`none`), `num_workers` (`linear`) or the
    square root of `num_workers` (`sqrt`)."""
    schedule: ScheduleName = "constant"
    """Learning-rate schedule over the training samples, from the end of the warm-up to `epochs`.
    `one_cycle` rises from 1/25 of the rate during the first 30 % of these samples; `ramp_decay`
    rises for 5 epochs, then decays by a factor of 0.8 per epoch toward its initial rate of 1e-5.
    Neither allows another warm-up."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Epochs of linear warm-up. It starts from the unscaled learning rate, or from 0 if
    `learning_rate_scaling` does not raise the rate."""
    warmup_samples: NonNegativeInt = 0
    """Training samples of linear warm-up, instead of `warmup_epochs`."""
    final_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Final learning rate as a fraction of the peak, for cosine, linear, polynomial and
    one_cycle."""
    decay_power: PositiveFloat = 2.0
    """Exponent of the `polynomial` schedule."""
    step_at: list[Annotated[float, Field(gt=0, lt=1)]] = [0.5, 0.75]
    """Fractions of `epochs` at which the `step` schedule multiplies the rate by `step_factor`."""
    step_factor: Fraction = 0.1
    """Factor by which the `step` schedule multiplies the learning rate at each of `step_at`."""
    epochs: PositiveFloat = 100.0
    """Maximum number of epochs; also the length of the schedule."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay, not applied to biases and normalization parameters."""
    momentum: Decay | None = None
    """Momentum of sgd, lars and muon; by default 0.9 (0.95 for muon)."""
    nesterov: bool = False
    """Whether sgd uses Nesterov momentum; muon always does."""
    beta1: Decay = 0.9
    """Decay rate of the first moment (all optimizers but sgd and lars); for muon, it applies to the
    parameters that AdamW trains."""
    beta2: Decay | None = None
    """Decay rate of the second moment (all optimizers but sgd and lars); by default 0.999."""
    epsilon: PositiveFloat | None = None
    """Term added to the denominator of the update; by default 1e-8 (1e-6 for lamb)."""
    trust_coefficient: PositiveFloat = 0.001
    """Trust coefficient of lars."""
    clip_norm: PositiveFloat | None = None
    """Maximum norm of the gradient of a step; larger gradients are scaled down to this norm. By
    default, gradients are not clipped."""
    label_smoothing: Decay = 0.0
    """Label smoothing of the training loss (Szegedy et al. 2016, arXiv 1512.00567); evaluation uses
    the original labels."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay per step of an exponential moving average of the weights; the average is evaluated and
    saved instead of the weights. By default, no average is kept."""
    augment: list[Augmentation] = []
    """Augmentations of training samples, applied in this order, such as `flip` or `{kind:
    random_crop, padding: 4}`. Their random numbers depend only on seed, epoch and sample."""
    weights: str = "none"
    """Initial weights of a library's model: `none` initializes them at random, `cached` uses the
    library's pretrained weights, which this machine must have already, and any other value is the
    path of a file with weights."""
    frozen_epochs: NonNegativeFloat | Literal["all"] = 0.0
    """Number of epochs at the start in which only the model's head is trained, or `all`."""
    sync_batch_norm: bool = False
    """Whether batch normalization uses the samples of all workers instead of each worker's own.
    Requires GPUs and `accumulate: 1`."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Floating-point precision of the forward and backward pass; weights stay fp32. `tf32`
    multiplies with a 10-bit mantissa on NVIDIA GPUs since Ampere and equals fp32 elsewhere; `fp32`
    never uses TF32. `fp16` scales the loss and skips steps whose gradients overflow."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune", "xla"] = "none"
    """Compilation of the forward and backward pass for full batches, before the training clock
    starts: `default`, `reduce-overhead` (CUDA graphs) or `max-autotune` with torch, `xla` with
    tensorflow. Results are equal within rounding, except for the random numbers of dropout. Smaller
    batches, such as the last one of an epoch, are not compiled."""
    prefetch: Annotated[int, Field(ge=0)] = 0
    """Number of batches (with tensorflow: of optimizer steps) prepared ahead, by as many threads.
    It helps only if samples are augmented or read on demand; only one thread at a time reads. More
    threads than `cpus_per_worker` do not help."""
    eval_every_samples: PositiveInt | None = None
    """Training samples between two evaluations; by default one epoch. In a search, reference runs
    (runs of a default configuration before the search) set the default."""
    seed: Seed = 0
    """Seed of initial weights, dropout and sample order."""
    checkpoint_every_s: NonNegativeFloat = 300.0
    """Minimum seconds of training and evaluation between two checkpoints, which are saved at
    evaluations. A run that loses a worker resumes from its last checkpoint. 0 saves none."""
    record_steps: bool = False
    """Whether to record step times, memory, exchanged bytes, gradient noise, tokens per sample and
    (torch only) floating-point operations per sample in the `eval` lines of `records.jsonl`, under
    the key `steps` (see `StepTimes`) and the keys listed after `steps`. `raybench train` then
    prints TFLOP/s and MFU."""

    @model_validator(mode="before")
    @classmethod
    def _own_loop_defaults(cls, content: Any) -> Any:
        """Set the keys whose values follow from the user's own training loop: `dataset`, and for a
        command `framework`."""
        content = with_own_data(content)
        if isinstance(content, dict) and is_command(content.get("workload", "")):
            content = {"framework": framework_of_command(content["workload"])} | content
        return content

    @field_validator("optimizer_options")
    @classmethod
    def _without_null(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Remove arguments that are null, for which the optimizer class uses its default."""
        return {name: value for name, value in options.items() if value is not None}

    @model_validator(mode="after")
    def _check_conflicts(self) -> "RunSpec":
        """Raise an error with the code CONFLICT if two keys contradict each other."""
        for problem in _problems(self):
            raise PydanticCustomError(ErrorCode.CONFLICT, problem)
        return self

    def __eq__(self, other: object) -> bool:
        """Return whether both run specs have the same values.

        Settings under a key of OPEN, such as `model.NAME`, have no known type. For them, 1, 1.0 and
        true are different values.
        """
        return (
            super().__eq__(other)
            and isinstance(other, RunSpec)
            and all(identity(getattr(self, key)) == identity(getattr(other, key)) for key in OPEN)
        )

    @property
    def replicas_per_process(self) -> int:
        """Replicas of the model in each process: `num_workers` with `single_process` and for a
        command that runs as one process, else 1."""
        is_command_alone = is_command(self.workload) and not is_launched(self.workload)
        is_one = self.strategy == "single_process" or is_command_alone
        return self.num_workers if is_one else 1

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step: batch size per worker x workers x accumulate."""
        return self.batch_size_per_worker * self.num_workers * self.accumulate

    @property
    def resources(self) -> ResourceRequest:
        """Worker group that the run needs."""
        request = ResourceRequest(
            self.framework,
            self.num_workers,
            self.cpus_per_worker,
            self.gpus_per_worker,
            self.placement_strategy,
            self.accelerator_type,
        )
        return request.in_one_process if self.replicas_per_process > 1 else request

    @property
    def placement(self) -> Placement:
        """Workers of the run, and how they execute an optimizer step."""
        return Placement(
            self.framework,
            self.num_workers,
            self.batch_size_per_worker,
            self.accelerator_type,
            self.compile,
            self.accumulate,
            self.prefetch,
            self.precision,
        )

    def complete(self) -> dict[str, Any]:
        """Return the run spec as plain data for other programs.

        If momentum, beta2 or epsilon is not set, it has the default of the optimizer, or is left
        out if the optimizer does not use it. `without_defaults` reverses this.
        """
        defaults, document = DEFAULTS.get(self.optimizer, {}), self.document()
        for key in OPTIMIZER_DEFAULT_KEYS:
            if document[key] is None and key in defaults:
                document[key] = defaults[key]
            elif document[key] is None:
                del document[key]
        return document

    def without_defaults(self) -> "RunSpec":
        """Return a copy in which momentum, beta2 and epsilon are None where they equal the default
        of the optimizer."""
        defaults = DEFAULTS.get(self.optimizer, {})
        default_keys = [
            key
            for key in OPTIMIZER_DEFAULT_KEYS
            if key in defaults and getattr(self, key) == defaults[key]
        ]
        return self.model_copy(update=dict.fromkeys(default_keys))


def _problems(spec: RunSpec) -> Iterator[str]:
    """Yield a sentence about each conflict between keys.

    A search space is checked with all combinations of values of the keys that are read here.
    """
    if spec.warmup_samples and spec.warmup_epochs:
        yield "warmup_samples and warmup_epochs both set the warm-up; keep one of them"
    for key in ("warmup_epochs", "warmup_samples"):
        if spec.schedule in OWN_RAMP and getattr(spec, key):
            yield f"schedule {spec.schedule} has its own warm-up; set {key}: 0"
    if 0 < spec.gpus_per_worker < 1 < spec.num_workers:
        yield (
            f"gpus_per_worker {spec.gpus_per_worker} requires num_workers 1: NCCL does "
            "not support several workers on one GPU; set gpus_per_worker: 1"
        )
    if spec.accelerator_type and not spec.gpus_per_worker:
        yield "accelerator_type requires GPUs; set gpus_per_worker: 1"
    if ":" in spec.optimizer or spec.optimizer_options:
        problem = problem_of_optimizer(spec.optimizer, spec.framework, spec.optimizer_options)
        yield from [problem] if problem else []
    yield from _problems_of_processes(spec)
    yield from _problems_of_own_loop(spec)


def _problems_of_processes(spec: RunSpec) -> Iterator[str]:
    if spec.strategy == "single_process":
        for key in NOT_IN_ONE_PROCESS:
            if (value := getattr(spec, key)) != RunSpec.model_fields[key].default:
                value_text = str(value).lower() if isinstance(value, bool) else value
                yield (
                    f"{key}: {value_text} is not supported with strategy: single_process; leave it "
                    "out, or set strategy: distributed"
                )
        if spec.framework == "torch" and spec.num_workers > 1 and not spec.gpus_per_worker:
            yield (
                "strategy single_process of torch needs GPUs (nn.DataParallel has no CPU "
                "devices); set gpus_per_worker: 1 or strategy: distributed"
            )
    is_between_gpus = spec.gpus_per_worker and spec.num_workers > 1
    if (spec.framework, spec.gradient_compression) == ("tensorflow", "bf16") and is_between_gpus:
        yield (
            "tensorflow does not support gradient_compression: bf16 between GPUs; set it to fp16 "
            "or none"
        )
    if spec.compile != "none" and not is_own_loop(spec.workload):
        if spec.compile not in (modes := COMPILES.get(spec.framework, ())):
            yield (
                f"compile: {spec.compile} is not supported by {spec.framework}; set it to one of "
                f"{', '.join(['none', *modes])}"
            )
        if spec.compile in CUDA_GRAPHS and spec.gpus_per_worker and spec.accumulate > 1:
            yield (
                f"compile: {spec.compile} overwrites the gradients of the previous pass "
                "(pytorch#169545); set accumulate: 1 or compile: default"
            )
        if spec.compile == "xla" and spec.sync_batch_norm:
            yield "compile: xla does not support sync_batch_norm; set compile: none"
    if spec.sync_batch_norm:
        if spec.num_workers > 1 and not spec.gpus_per_worker:
            yield "sync_batch_norm requires GPUs; set it to false, or gpus_per_worker: 1"
        if spec.accumulate > 1:
            yield ("sync_batch_norm does not support several passes per step; set accumulate: 1")
        if spec.framework == "torch" and spec.replicas_per_process > 1:
            yield (
                "torch does not support sync_batch_norm with strategy single_process; set "
                "strategy: distributed"
            )


def _problems_of_own_loop(spec: RunSpec) -> Iterator[str]:
    if not is_own_loop(spec.workload):
        if spec.framework == "python":
            yield (
                "framework python requires your own training loop (--train FILE.py:FUNCTION, "
                "--command); set torch or tensorflow"
            )
        return
    if spec.strategy == "single_process":
        yield "strategy single_process does not support your own training loop; leave it out"
    if is_command(spec.workload):
        if spec.framework != framework_of_command(spec.workload):
            name = framework_of_command(spec.workload)
            yield f"a command requires framework {name}; leave framework out"
    elif spec.framework == "python" and spec.num_workers > 1:
        yield (
            "framework python does not exchange gradients between workers; set num_workers: 1, or "
            "framework: torch"
        )


RESOURCES = ("cpus_per_worker", "gpus_per_worker", "placement_strategy", "accelerator_type")
"""Run-spec keys that set the resources of a worker."""
OPEN = ("model", "data", "optimizer_options")
"""Keys whose values are mappings with arbitrary names. Each name is a setting with a dotted key,
such as `model.hidden_units`."""


def is_open(key: str, *parents: str) -> bool:
    """Return whether a key is a setting such as `model.NAME`, under one of the keys `parents` (by
    default OPEN)."""
    parent, dot, _ = key.partition(".")
    return bool(dot) and parent in (parents or OPEN)


def is_key(key: str) -> bool:
    """Return whether a run spec may have a key; settings such as `model.NAME` may have any name."""
    return key in RunSpec.model_fields or is_open(key)


def value_of(spec: RunSpec, key: str) -> Any:
    """Return the value of a key of a run spec; None for a setting such as `model.NAME` that the
    spec does not have."""
    parent, _, name = key.partition(".")
    return getattr(spec, parent).get(name) if is_open(key) else getattr(spec, key)


def has_value(spec: RunSpec, key: str) -> bool:
    """Return whether a run spec has a value for a key, even if the value is null.

    Only settings such as `model.NAME` can be missing.
    """
    parent, _, name = key.partition(".")
    return not is_open(key) or name in getattr(spec, parent)


def flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run spec's content with dotted keys for settings such as `model.NAME`; the inverse
    of `nested`."""
    result: dict[str, Any] = {}
    for key, value in content.items():  # keep the order: later keys may depend on earlier ones
        if isinstance(value, dict) and key in OPEN:
            result |= {f"{key}.{name}": setting for name, setting in value.items()}
        else:
            result[key] = value
    return result


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run spec's content with nested mappings in place of dotted keys such as
    `model.NAME`; the inverse of `flat`."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        parent, _, name = key.partition(".")
        if is_open(key):
            result[parent] = {**result.get(parent, {}), name: value}
        else:
            result[key] = {**value, **result[key]} if key in result else value
    return result


def is_case(content: object) -> bool:
    """Return whether an item in the list of a searched key is a case, which has a condition
    (`when`), rather than a value."""
    return isinstance(content, Mapping) and "when" in content


BASE_KEYS = ("framework", "num_workers", "batch_size_per_worker", "optimizer", "learning_rate")
"""Keys that the label of every configuration shows."""


def label_keys(space: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the searched keys that labels show in addition to BASE_KEYS, in the order of `space`.

    Keys with a single value are left out.

    Args:
        space: Content of `space` in a search-space file, before it is parsed.
    """
    return tuple(
        str(key)
        for key, values in space.items()
        if is_key(str(key))
        and key not in BASE_KEYS
        and not (isinstance(values, list) and len(values) == 1 and not is_case(values[0]))
    )


def describe(spec: RunSpec, keys: Iterable[str] = ()) -> str:
    """Return the label of a configuration: `torch 1x64 adam 0.003 weight_decay 0.01`.

    The label shows the framework, workers x batch size per worker (x `accumulate` if above 1), the
    optimizer, the learning rate, and the names and values of `keys` (see `label_keys`).
    """
    passes = f"x{spec.accumulate}" if spec.accumulate > 1 else ""
    base = (
        f"{spec.framework} {spec.num_workers}x{spec.batch_size_per_worker}{passes} "
        f"{named_optimizer(spec)} {spec.learning_rate:.3g}"
    )
    settings = settings_words(spec, [key for key in keys if key != "accumulate"])
    return f"{base} {settings}" if settings else base


def settings_words(spec: RunSpec, keys: Iterable[str]) -> str:
    """Return the names and values of keys as text, such as `n 3 act relu`; keys that the run spec
    does not have are left out."""
    words = []
    for key in keys:
        if not has_value(spec, key):
            continue
        # The prefix of a setting (`model.`, `optimizer_options.`) is left out, except `data.`.
        name = key.partition(".")[2] if is_open(key, "model", "optimizer_options") else key
        text = short(value_of(spec, key))
        # In settings under OPEN, 0 and 0.0 differ.
        words.append(f"{name} {text if is_open(key) else text.removesuffix('.0')}")
    return " ".join(words)


RATE = "rate"
"""Text that replaces the name of an unknown optimizer in a label."""


def named_optimizer(spec: RunSpec) -> str:
    """Return the name of the optimizer for a label.

    The label of a user's own training loop has RATE in place of the default optimizer, because the
    loop may use another optimizer.
    """
    is_default = spec.optimizer == RunSpec.model_fields["optimizer"].default
    return RATE if is_own_loop(spec.workload) and is_default else spec.optimizer
