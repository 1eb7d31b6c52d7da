"""The run spec: everything that determines one training, and what of it goes together.

Here too: how a run is spread over workers, and a configuration in one line.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from raybench.spec.dataset_spec import Augmentation
from raybench.spec.dataset_spec import DatasetSpec as DatasetSpec
from raybench.spec.dataset_spec import Task as Task
from raybench.spec.documents import (
    Document,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    one_name_each,
)
from raybench.spec.objective import Objective
from raybench.spec.optimizer import DEFAULTS, LEFT_TO_IT, Optimizer, problem_of_optimizer
from raybench.spec.optimizer import OPTIMIZERS as OPTIMIZERS
from raybench.spec.own_loop import is_command, is_own_loop, with_own_data
from raybench.spec.values import identity, short

ROUNDING = 1e-6
"""Parts of a worker that are an error of arithmetic: ten tenths of a GPU are a whole one."""


@dataclass(frozen=True)
class Placement:
    """Workers of one framework, what each of them has, and the samples each sees in a pass."""

    framework: str
    num_workers: int
    batch_size_per_worker: int = 0
    """0 where it does not matter, as in `group`."""
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0
    """A part of a GPU where there is one worker only."""
    strategy: str = "pack"
    """`pack`: on as few hosts as can be; `spread`: on as many."""
    accelerator_type: str | None = None
    """Ray's name of the GPU's model; by default any."""
    replicas_per_process: int = 1
    """Replicas of the model in each process; several where one process has them all, which is then
    the group's one worker and has what all of them need."""
    compile: str = "none"
    """Way to compile a pass; every worker group can."""
    accumulate: int = 1
    """Passes of a step."""
    prefetch: int = 0
    """Readers of the samples."""
    precision: str = "fp32"
    """Arithmetic of a pass."""

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return self.num_workers * self.batch_size_per_worker * self.accumulate

    @property
    def in_one_process(self) -> "Placement":
        """Replicas in one process of one node, in place of a worker for each."""
        whole = replace(self, cpus_per_worker=self.cpus, gpus_per_worker=self.gpus)
        return replace(whole, num_workers=1, replicas_per_process=self.num_workers)

    @property
    def group(self) -> "Placement":
        """The worker group it needs: groups with equal ones are interchangeable."""
        bare = replace(self, batch_size_per_worker=0, accumulate=1, prefetch=0)
        return replace(bare, compile="none", precision="fp32")

    @property
    def cpus(self) -> int:
        """CPU cores of the whole group."""
        return self.num_workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs of the whole group."""
        return self.num_workers * self.gpus_per_worker

    @property
    def shares_a_gpu(self) -> bool:
        """Whether its workers would have to share GPUs, which collectives between GPUs refuse."""
        return self.num_workers > 1 and 0 < self.gpus_per_worker < 1

    def num_fitting(self, cpus: float, gpus: float) -> int:
        """Return how many of its workers fit into so many free cores and GPUs of a node."""
        fitting = float(self.num_workers)
        for free, each in ((cpus, self.cpus_per_worker), (gpus, self.gpus_per_worker)):
            if each:
                fitting = min(fitting, free / each)
        return max(0, int(fitting + ROUNDING))


Framework = Literal["torch", "tensorflow", "python"]
ScheduleName = Literal[
    "constant", "cosine", "linear", "polynomial", "step", "one_cycle", "ramp_decay"
]
OWN_RAMP: tuple[ScheduleName, ...] = ("one_cycle", "ramp_decay")
"""Schedules that begin with a warm-up of their own."""
FRAMEWORKS: tuple[str, ...] = ("torch", "tensorflow")
"""Frameworks that can train a `Workload`."""

Decay = Annotated[float, Field(ge=0, lt=1)]


NOT_IN_ONE_PROCESS = (
    *("placement_strategy", "exchange_gradients", "gradient_compression", "bucket_mb"),
    "compile",
)
"""Keys on how processes are placed, exchange gradients and compile."""
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
COMPILES = {"torch": ("default", *CUDA_GRAPHS), "tensorflow": ("xla",)}
"""Values of `compile` beside `none`, by framework."""


Name = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Setting = JsonValue
"""A number, a text, true, false, null, or a list or a mapping of them."""


class RunSpec(Document):
    """Everything that determines one training. Frozen; unknown keys are refused."""

    workload: str = "mnist_small"
    """A shipped name, `module:Class` of your own, a function of a file with a training loop of your
    own (`train.py:train`), or a command (`$ python train.py --lr {learning_rate}`)."""
    model: dict[Name, Setting] = {}
    """The model's own settings, which the workload's constructor takes (a loop of your own has them
    as `run.model`): `{hidden_units: 128}`. In a
    space each is a key of its own, `model: {hidden_units: [64, 128]}`."""
    dataset: DatasetSpec = DatasetSpec(image_size=28)
    """Data, and how much of it."""
    data: dict[Name, Setting] = {}
    """The data's own settings, which the workload's `load_dataset` takes (dataset `workload`); in a
    space `data: {window: [16, 32]}`, lists alone: each value is a dataset."""
    objective: Objective = Objective(target=0.95)
    """Objective: what the run is judged by, and when it may end."""
    framework: Framework = "torch"
    """Backend that trains; `python` imports none: of a training loop of your own, with one worker,
    and of a command."""
    num_workers: PositiveInt = 1
    """Number of data-parallel workers: processes, or replicas of a `single_process`."""
    strategy: Literal["distributed", "single_process"] = "distributed"
    """`distributed`: a process a worker, by torch DDP or TensorFlow's MultiWorkerMirroredStrategy;
    `single_process`: all workers are replicas in one process of one host, by torch nn.DataParallel
    (GPUs alone) or TensorFlow's MirroredStrategy, and the first of them evaluates. The same samples
    and sums of gradients in both; with one worker they are the same."""
    cpus_per_worker: PositiveInt = 1
    """CPU cores of one worker; its thread pools are sized to them."""
    gpus_per_worker: Annotated[int | float, Field(ge=0, le=1)] = 0
    """GPUs of one worker: 0 or 1 (data parallelism is one worker a GPU); a run of one worker may
    take a part of one, such as 0.5. Where a search says nothing, 1 on a machine with GPUs that its
    frameworks see."""
    accelerator_type: str | None = None
    """Ray's name of the GPU's model, such as `H100`; by default any."""
    placement_strategy: Literal["pack", "spread"] = "pack"
    """Workers on as few hosts as hold them (`pack`) or on as many (`spread`)."""
    batch_size_per_worker: PositiveInt = 64
    """Samples one worker sees in one forward and backward pass."""
    accumulate: PositiveInt = 1
    """Forward and backward passes between two optimizer steps; `exchange_every` is its other
    name, as gradients are exchanged once a step."""
    exchange_gradients: bool = True
    """Whether workers exchange gradients; false lets each train by itself, to measure what the
    exchange costs: such a run is never ranked."""
    gradient_compression: Literal["none", "fp16", "bf16"] = "none"
    """Type of the gradients on their way between workers, in which they are added up too; fp16
    ends at 65,504, and a run whose gradients are beyond it fails as `nan`, unless it has
    `precision: fp16`, which scales them. `bf16` is not of tensorflow between GPUs."""
    bucket_mb: PositiveFloat = 25.0
    """MiB of gradients that are exchanged together, while the others are still computed."""
    optimizer: Optimizer = "adam"
    """The optimizer, with the same update in both frameworks: adam, radam, lars, lamb, sgd, adamw,
    muon. Or any class of torch.optim or keras.optimizers, for that framework: `torch:SGD`,
    `keras:Nadam`; of another module `torch:pytorch_optimizer.Lion`."""
    optimizer_options: dict[Name, Setting] = {}
    """Arguments of such a class beside the rate and `weight_decay`, by the names of its
    own: `{momentum: 0.9}`; null is the class's default. In a space each is a key of its own."""
    learning_rate: PositiveFloat = 1e-3
    """Base learning rate, before `learning_rate_scaling` and `schedule`."""
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiplies the rate by `num_workers` (linear) or its square root."""
    schedule: ScheduleName = "constant"
    """Shape of the rate over the training samples, after the warm-up and until `epochs`.
    `one_cycle` rises over 30 % of them from a 25th of the rate, and `ramp_decay` is that of study
    2: both have no other warm-up."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Epochs of linear warm-up, from the unscaled rate (from 0 where nothing is scaled)."""
    warmup_samples: NonNegativeInt = 0
    """Training samples of linear warm-up, in place of `warmup_epochs`."""
    final_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rate that cosine, linear, polynomial and one_cycle end at."""
    decay_power: PositiveFloat = 2.0
    """Power of the share of samples that is left (`polynomial`)."""
    step_at: list[Annotated[float, Field(gt=0, lt=1)]] = [0.5, 0.75]
    """Shares of `epochs` at which `step` multiplies the rate by `step_factor`."""
    step_factor: Fraction = 0.1
    """Factor of `step` on the rate."""
    epochs: PositiveFloat = 100.0
    """Epochs after which a run ends; also the horizon of the schedule."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; biases and norm parameters are left out."""
    momentum: Decay | None = None
    """Momentum of sgd, lars and muon; by default the optimizer's own (0.9; muon 0.95)."""
    nesterov: bool = False
    """Whether sgd looks ahead (Nesterov's momentum); muon always does."""
    beta1: Decay = 0.9
    """Decay of the first moment (all but sgd and lars); of muon for what AdamW trains."""
    beta2: Decay | None = None
    """Decay of the second moment (all but sgd and lars); by default 0.999."""
    epsilon: PositiveFloat | None = None
    """Added to denominators; by default the optimizer's own (1e-8; lamb 1e-6)."""
    trust_coefficient: PositiveFloat = 0.001
    """The trust coefficient of lars."""
    clip_norm: PositiveFloat | None = None
    """Most norm of the whole gradient of a step, which is scaled down to it; by default never."""
    label_smoothing: Decay = 0.0
    """Share of a label that is spread over all classes in the training loss (Szegedy et al. 2016,
    arXiv 1512.00567); evaluation uses the labels as they are."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay, a step, of an average of the weights that is evaluated and saved in their place."""
    augment: list[Augmentation] = []
    """Augmentations of training samples, in this order, keyed by seed, epoch and sample: `flip`, or
    `{kind: random_crop, padding: 4}`."""
    weights: str = "none"
    """Weights that training begins with, of a model by name: `none` draws them, `cached` takes the
    library's own where this machine has them, anything else is a file."""
    frozen_epochs: NonNegativeFloat | Literal["all"] = 0.0
    """Epochs in which only the head of a model by name is trained, `all`: to the end."""
    sync_batch_norm: bool = False
    """Whether batch normalisation takes the samples of all workers, or of each worker alone. On
    GPUs, and of a whole step, so with `accumulate: 1` only."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward; weights stay fp32. `tf32` multiplies float32 with 10 bits
    of mantissa on NVIDIA's GPUs since Ampere, elsewhere as fp32 does, which never uses it. `fp16`
    scales the loss, and does not take a step whose gradients overflow."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune", "xla"] = "none"
    """Compiles what a pass does with a full batch (forward, loss, backward), before the training
    clock starts: of torch `default`, `reduce-overhead` (CUDA graphs) and `max-autotune`, of
    tensorflow `xla`. The same numbers within rounding, but dropout may draw others. A smaller
    batch, as an epoch's last, is not compiled."""
    prefetch: Annotated[int, Field(ge=0)] = 0
    """Batches prepared ahead (with tensorflow those of so many optimizer steps) by as many threads,
    of data that are augmented or read on demand; data in memory need none. Samples on demand are
    read by one thread at a time. More threads than `cpus_per_worker` bring nothing."""
    eval_every_samples: PositiveInt | None = None
    """Training samples between two evaluations; by default one epoch."""
    seed: Seed = 0
    """Seed of initial weights, dropout and sample order."""
    checkpoint_every_s: NonNegativeFloat = 300.0
    """Seconds of training and evaluation between two checkpoints, taken at evaluations: what a
    lost worker costs at most, and more than a short run lasts; 0 takes none."""
    record_steps: bool = False
    """Record the time of every step, memory, bytes exchanged and gradient noise; see `StepTimes`
    and what follows `steps` in an `eval` record."""

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, content: Any) -> Any:
        """Take `exchange_every: 4` for `accumulate: 4`; name what follows from a loop's name."""
        content = with_own_data(one_name_each(content))
        if isinstance(content, dict) and is_command(content.get("workload", "")):
            content = {"framework": "python"} | content
        return content

    @field_validator("optimizer_options")
    @classmethod
    def _by_default(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Leave out null: a case of a space says so that there is nothing to set."""
        return {name: one for name, one in options.items() if one is not None}

    @model_validator(mode="after")
    def _keys_go_together(self) -> "RunSpec":
        for problem in _problems(self):
            raise ValueError(problem)
        return self

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same configuration; settings of 1, 1.0 and true are not."""
        return (
            super().__eq__(other)
            and isinstance(other, RunSpec)
            and all(identity(getattr(self, key)) == identity(getattr(other, key)) for key in OPEN)
        )

    @property
    def replicas_per_process(self) -> int:
        """Replicas of the model in each process: all of them (so of a command), or one."""
        is_one = self.strategy == "single_process" or is_command(self.workload)
        return self.num_workers if is_one else 1

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step: per worker x workers x accumulate."""
        return self.batch_size_per_worker * self.num_workers * self.accumulate

    @property
    def placement(self) -> Placement:
        """Placement: its spread over processes."""
        workers = Placement(
            self.framework,
            self.num_workers,
            self.batch_size_per_worker,
            self.cpus_per_worker,
            self.gpus_per_worker,
            self.placement_strategy,
            self.accelerator_type,
            compile=self.compile,
            accumulate=self.accumulate,
            prefetch=self.prefetch,
            precision=self.precision,
        )
        return workers.in_one_process if self.replicas_per_process > 1 else workers

    def complete(self) -> dict[str, Any]:
        """Return the spec for other scripts: what is left to the optimizer in numbers, and without
        what it does not read. Read back it is another spec of the same run: see `in_short`."""
        own = DEFAULTS.get(self.optimizer, {})
        found = self.document()
        found |= {key: own.get(key) for key in LEFT_TO_IT if found[key] is None}
        return {key: one for key, one in found.items() if key not in LEFT_TO_IT or one is not None}

    def in_short(self) -> "RunSpec":
        """Return the same run with null where a number is the optimizer's own default."""
        own = DEFAULTS.get(self.optimizer, {})
        same = [key for key in LEFT_TO_IT if key in own and getattr(self, key) == own[key]]
        return self.model_copy(update=dict.fromkeys(same))


def _problems(spec: RunSpec) -> Iterator[str]:
    """Yield what excludes each other; a space tries all values of the keys that are looked at."""
    if spec.warmup_samples and spec.warmup_epochs:
        yield "warmup_samples and warmup_epochs are one warm-up; keep one of them"
    for key in ("warmup_epochs", "warmup_samples"):
        if spec.schedule in OWN_RAMP and getattr(spec, key):
            yield f"schedule {spec.schedule} has a ramp of its own; set {key}: 0"
    if 0 < spec.gpus_per_worker < 1 < spec.num_workers:
        yield (
            f"gpus_per_worker {spec.gpus_per_worker} is for num_workers 1: several workers "
            "need a whole GPU each (NCCL refuses two on one); set gpus_per_worker: 1"
        )
    if spec.accelerator_type and not spec.gpus_per_worker:
        yield "accelerator_type is of GPUs; set gpus_per_worker: 1 with it"
    if ":" in spec.optimizer or spec.optimizer_options:
        problem = problem_of_optimizer(spec.optimizer, spec.framework, spec.optimizer_options)
        yield from [problem] if problem else []
    yield from _problems_of_processes(spec)
    yield from _problems_of_own_loop(spec)


def _problems_of_processes(spec: RunSpec) -> Iterator[str]:
    if spec.strategy == "single_process":
        for key in NOT_IN_ONE_PROCESS:
            if (value := getattr(spec, key)) != RunSpec.model_fields[key].default:
                shown = str(value).lower() if isinstance(value, bool) else value
                yield (
                    f"{key}: {shown} is of workers in processes of their own; leave it out with "
                    "strategy: single_process, or set strategy: distributed"
                )
        if spec.framework == "torch" and spec.num_workers > 1 and not spec.gpus_per_worker:
            yield (
                "strategy single_process of torch needs GPUs (nn.DataParallel has no CPU "
                "devices); set gpus_per_worker: 1 or strategy: distributed"
            )
    is_between_gpus = spec.gpus_per_worker and spec.num_workers > 1
    if (spec.framework, spec.gradient_compression) == ("tensorflow", "bf16") and is_between_gpus:
        yield (
            "gradient_compression: bf16 is not of tensorflow between GPUs, whose NCCL adds up no "
            "bfloat16; set gradient_compression: fp16 or none"
        )
    if spec.compile != "none" and not is_own_loop(spec.workload):
        if spec.compile not in (known := COMPILES.get(spec.framework, ())):
            yield (
                f"compile: {spec.compile} is not of {spec.framework}; set it to one of "
                f"{', '.join(['none', *known])}"
            )
        if spec.compile in CUDA_GRAPHS and spec.gpus_per_worker and spec.accumulate > 1:
            yield (
                f"compile: {spec.compile} writes the gradients of a pass over those of the one "
                "before (pytorch#169545); set accumulate: 1 or compile: default"
            )
        if spec.compile == "xla" and spec.sync_batch_norm:
            yield "compile: xla sums nothing over workers; set compile: none with sync_batch_norm"
    if spec.sync_batch_norm:
        if spec.num_workers > 1 and not spec.gpus_per_worker:
            yield "sync_batch_norm is for workers on GPUs; set it to false, or gpus_per_worker: 1"
        if spec.accumulate > 1:
            yield (
                "sync_batch_norm normalises over all samples of a step, which several passes do "
                "not see at once; set accumulate: 1"
            )
        if spec.framework == "torch" and spec.replicas_per_process > 1:
            yield (
                "sync_batch_norm is not for strategy single_process of torch (nn.DataParallel has "
                "no way between its replicas); set strategy: distributed"
            )


def _problems_of_own_loop(spec: RunSpec) -> Iterator[str]:
    if not is_own_loop(spec.workload):
        if spec.framework == "python":
            yield (
                "framework python is of a training loop of your own (--train FILE.py:FUNCTION, "
                "--command); name torch or tensorflow"
            )
        return
    if spec.strategy == "single_process":
        yield "strategy single_process is not of a training loop of your own; leave it out"
    if is_command(spec.workload):
        if spec.framework != "python":
            yield "a command is started by framework python; leave framework out"
    elif spec.framework == "python" and spec.num_workers > 1:
        yield (
            "workers of framework python have no way to exchange gradients; set num_workers: 1, "
            "or framework: torch"
        )


RESOURCES = ("cpus_per_worker", "gpus_per_worker", "placement_strategy", "accelerator_type")
"""Keys of what a worker is given."""
OPEN = ("model", "data", "optimizer_options")
"""Keys that hold settings of the user's own, each a key of its own: `model.hidden_units`."""


def is_open(key: str, *parents: str) -> bool:
    """Whether a key is a setting below one of OPEN, or of these among them."""
    parent, dot, _ = key.partition(".")
    return bool(dot) and parent in (parents or OPEN)


def is_key(key: str) -> bool:
    """Whether a run spec has this key; `model.NAME` is one whatever the name."""
    return key in RunSpec.model_fields or is_open(key)


def value_of(spec: RunSpec, key: str) -> Any:
    """Return the value of a key; of a setting below OPEN that the spec does not name None."""
    parent, _, name = key.partition(".")
    return getattr(spec, parent).get(name) if is_open(key) else getattr(spec, key)


def has_value(spec: RunSpec, key: str) -> bool:
    """Return whether a run spec has a key; of a setting below OPEN, whether it is named, even as
    null."""
    parent, _, name = key.partition(".")
    return not is_open(key) or name in getattr(spec, parent)


def flat(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys and what they have, each setting below OPEN as a key of its own."""
    found: dict[str, Any] = {}
    for key, value in content.items():  # at its place: later keys may depend on it
        own = isinstance(value, dict) and key in OPEN
        found |= {f"{key}.{name}": one for name, one in value.items()} if own else {key: value}
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as a run spec has them: the settings below OPEN in their places."""
    found: dict[str, Any] = {}
    for key, one in values.items():
        parent, _, name = key.partition(".")
        if is_open(key):
            found[parent] = {**found.get(parent, {}), name: one}
        else:
            found[key] = {**one, **found[key]} if key in found else one
    return found


def is_case(content: object) -> bool:
    """Return whether an item of a searched key's list is a case of other keys, not a value."""
    return isinstance(content, Mapping) and "when" in content


BASE_KEYS = ("framework", "num_workers", "batch_size_per_worker", "optimizer", "learning_rate")
"""Keys that every label has."""


def label_keys(space: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the searched keys, in order, that a label needs beside BASE_KEYS.

    `space` is a study's space as its file has it; a key with one value does not differ.
    """
    return tuple(
        str(key)
        for key, values in space.items()
        if is_key(str(key))
        and key not in BASE_KEYS
        and not (isinstance(values, list) and len(values) == 1 and not is_case(values[0]))
    )


def describe(spec: RunSpec, keys: Iterable[str] = ()) -> str:
    """Return a configuration in one line: framework, workers x batch, optimizer, rate, `keys`;
    passes of a step where there are several: `2x16x4`.

    `keys` (see `label_keys`) follow with their names: `torch 1x64 adam 0.003 weight_decay 0.01`.
    """
    passes = f"x{spec.accumulate}" if spec.accumulate > 1 else ""
    base = (
        f"{spec.framework} {spec.num_workers}x{spec.batch_size_per_worker}{passes} "
        f"{named_optimizer(spec)} {spec.learning_rate:.3g}"
    )
    shown = [key for key in keys if key != "accumulate" and has_value(spec, key)]
    return " ".join([base, *(f"{shown_key(key)} {_shown_value(spec, key)}" for key in shown)])


def _shown_value(spec: RunSpec, key: str) -> str:
    """Return a key's value as labels have it; `0` for 0.0 where the key's type is known."""
    text = short(value_of(spec, key))
    return text if is_open(key) else text.removesuffix(".0")


RATE = "rate"
"""Label of the rate where the optimizer is not known."""


def named_optimizer(spec: RunSpec) -> str:
    """Return the optimizer as labels have it: a training loop of the user's own may have any where
    the default stands."""
    is_default = spec.optimizer == RunSpec.model_fields["optimizer"].default
    return RATE if is_own_loop(spec.workload) and is_default else spec.optimizer


def shown_key(key: str) -> str:
    """Return a key as labels have it: a setting of the model or the optimizer by its name alone."""
    return key.partition(".")[2] if is_open(key, "model", "optimizer_options") else key
