"""The keys of a run, each with its default and its unit."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from raybench.core.augmentation import Augmentation
from raybench.core.dataset_spec import DatasetSpec
from raybench.core.documents import (
    Document,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    one_name_each,
)
from raybench.core.objective import Objective

Framework = Literal["torch", "tensorflow"]
Optimizer = Literal[
    "adam",
    "radam",
    "lars",
    "lamb",
    "sgd",
    "adamw",
    "nadamw",
    "lion",
    "schedule_free_adamw",
    "muon",
]
ScheduleName = Literal[
    "constant", "cosine", "linear", "polynomial", "step", "one_cycle", "ramp_decay"
]
OWN_RAMP: tuple[ScheduleName, ...] = ("one_cycle", "ramp_decay")
"""Schedules that begin with a warm-up of their own."""
FRAMEWORKS: tuple[str, ...] = get_args(Framework)
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)

Decay = Annotated[float, Field(ge=0, lt=1)]


class RunKeys(Document):
    """What a run spec says, key by key; `RunSpec` knows which of them go together."""

    workload: str = "mnist_small"
    """A shipped name, or `module:Class` of your own."""
    dataset: DatasetSpec = DatasetSpec(image_size=28)
    """Which data, and how much of it."""
    objective: Objective = Objective(target=0.95)
    """What the run is judged by, and when it may end."""
    framework: Framework = "torch"
    """Which backend trains."""
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
    """Ray's name of the GPU's model, such as `H100`; none takes any."""
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
    ends at 65,504, and a run whose gradients are beyond it fails as `nan`."""
    bucket_mb: PositiveFloat = 25.0
    """MiB of gradients that are exchanged together, while the others are still computed."""
    optimizer: Optimizer = "adam"
    """The optimizer; the same update in both frameworks."""
    learning_rate: PositiveFloat = 1e-3
    """Base learning rate, before `learning_rate_scaling` and `schedule`."""
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiplies the rate by `num_workers` (linear) or its square root."""
    schedule: ScheduleName = "constant"
    """Shape of the rate over the training samples, after the warm-up and until `epochs`.
    `one_cycle` rises over 30 % of them from a 25th of the rate, and `ramp_decay` is that of study
    2: both have no other warm-up. Of schedule_free_adamw `constant`."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Epochs of linear warm-up, from the unscaled rate (from 0 where nothing is scaled)."""
    warmup_samples: NonNegativeInt = 0
    """The same in training samples; one of the two."""
    final_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rate that cosine, linear, polynomial and one_cycle end at."""
    decay_power: PositiveFloat = 2.0
    """Power of the share of samples that is left (`polynomial`)."""
    step_at: list[Annotated[float, Field(gt=0, lt=1)]] = [0.5, 0.75]
    """Shares of `epochs` at which `step` multiplies the rate by `step_factor`."""
    step_factor: Fraction = 0.1
    """What `step` multiplies the rate by."""
    epochs: PositiveFloat = 100.0
    """Epochs after which a run ends; also the horizon of the schedule."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; biases and norm parameters are left out."""
    momentum: Decay | None = None
    """Momentum of sgd, lars and muon; none is the optimizer's own (0.9; muon 0.95)."""
    nesterov: bool = False
    """Whether sgd looks ahead (Nesterov's momentum); muon always does."""
    beta1: Decay = 0.9
    """Decay of the first moment (all but sgd and lars); of schedule_free_adamw how far the weights
    in training are drawn to their average, above 0; of muon for what AdamW trains."""
    beta2: Decay | None = None
    """Decay of the second moment (all but sgd and lars), of lion that of its momentum; none is the
    optimizer's own (0.999; lion 0.99)."""
    epsilon: PositiveFloat | None = None
    """Added to denominators; none is the optimizer's own (1e-8; lamb 1e-6)."""
    trust_coefficient: PositiveFloat = 0.001
    """The trust coefficient of lars."""
    clip_norm: PositiveFloat | None = None
    """Most norm of the whole gradient of a step, which is scaled down to it; none scales none."""
    label_smoothing: Decay = 0.0
    """Share of a label that is spread over all classes in the training loss (Szegedy et al. 2016,
    arXiv 1512.00567); evaluation uses the labels as they are."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay, a step, of an average of the weights that is evaluated and saved in their place."""
    augment: list[Augmentation] = []
    """What is done to training samples, in this order, keyed by seed, epoch and sample: `flip`, or
    `{kind: random_crop, padding: 4}`."""
    weights: str = "none"
    """Weights that training begins with, of a model by name: `none` draws them, `cached` takes the
    library's own where this machine has them, anything else is a file."""
    frozen_epochs: NonNegativeFloat | Literal["all"] = 0.0
    """Epochs in which only the head of a model by name is trained, `all`: to the end."""
    sync_batch_norm: bool = False
    """Whether batch normalisation takes the samples of all workers, or of each worker alone. On
    GPUs, and of a whole step, so with `accumulate: 1` only."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic of forward and backward; weights stay fp32. `tf32` multiplies float32 with 10 bits
    of mantissa on NVIDIA's GPUs since Ampere, elsewhere as fp32 does, which never uses it."""
    prefetch: Annotated[int, Field(ge=0)] = 0
    """Batches prepared ahead (with tensorflow those of so many optimizer steps) by as many threads,
    of data that are augmented or read on demand; data in memory need none. Samples on demand are
    read by one thread at a time. More threads than `cpus_per_worker` bring nothing."""
    eval_every_samples: PositiveInt | None = None
    """Training samples between two evaluations; none is one epoch."""
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
        """Take `exchange_every: 4` for `accumulate: 4`."""
        return one_name_each(content) if isinstance(content, dict) else content
