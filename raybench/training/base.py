"""Interface of the two framework backends, and the code that they share: steps, the group of
workers, the trainer, losses and metrics.

`find_backend` imports a backend by the name of its framework. Importing this module imports neither
torch nor TensorFlow.
"""

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from raybench.data.dataset import Dataset
from raybench.models.base import Workload, missing_hook, refuse_label_smoothing
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import Metric, find_metric
from raybench.spec.run import RunSpec

WARM_UP_STEPS = 2
"""Number of warm-up steps for each batch shape. In the first step, the framework traces functions,
allocates memory and picks kernels; the second runs like all later steps."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One worker's samples and learning rate for one optimizer step.

    The samples are cut into passes. In each pass, the model runs forward and backward once; the
    gradients of all passes of a step are added up.
    """

    indices: NDArray[np.int64]
    """Positions of the samples in the training split, shape (passes, samples). If the process holds
    several replicas of the model, the first replica takes the first columns, and so on; all take
    equally many."""
    weights: NDArray[np.float32]
    """Weight of each sample's loss, shape (passes, samples). Samples that only pad a pass have
    weight 0. All others have the weight 1 / (samples of all workers in the step), so that the *sum*
    of the workers' gradients is the gradient of the global batch. If the dataset has weights
    (`Split.weights`), they are a further factor, except with mixup (see `Samples.mixed`)."""
    shares: NDArray[np.float32]
    """Fraction of the global batch that each pass holds, shape (passes, replicas of this process).
    This is the number of samples in the pass, without padding, divided by the number of samples of
    all workers in the step. Losses that a model adds once per pass, such as weight penalties, are
    multiplied by this fraction."""
    rounds: NDArray[np.int64] | None = None
    """Number of times that each sample was used before, shape (passes, samples). Together with the
    run's seed and the sample's index, it seeds the sample's augmentation. None without
    augmentation."""
    learning_rate: float
    num_samples: int
    """Number of samples of this worker, without padding but including samples that have weight 0 in
    the dataset."""
    is_frozen: bool = False
    """Whether the backbone is frozen (`frozen_epochs`), so that only the head is trained."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the samples that one worker has evaluated."""

    loss: float
    """Sum of the losses of the samples."""
    value: float
    """Sum of the values that the run's metric averages, such as squared errors, or 1 for each
    correct answer."""
    squares: float
    """Sum of the squares of the values that the metric averages."""
    samples: int
    """Number of samples."""
    answers: NDArray[Any] | None = None
    """Prediction for each sample (see `data.split_metrics.predictions_of`), in the order of the
    rows. None if the metric is a mean over samples, which the sums determine, or if there are no
    samples."""


@dataclass(frozen=True, kw_only=True)
class StepLog:
    """Measurements of one `BaseTrainer.train` call on one worker, with one number per step."""

    seconds: list[float]
    """Duration of each step in seconds, including work on the device; NaN if unknown. A step begins
    when the previous step ends; the first step begins at the start of the call."""
    part_squares: list[float]
    """Squared norm of the gradient that this worker sends to the other workers. This gradient is
    the sum over the worker's samples, divided by the number of samples of all workers. Empty if no
    gradients are exchanged."""
    whole_squares: list[float]
    """Squared norm of the gradient that this worker receives, which is the sum of the gradients
    that all workers send. Empty if no gradients are exchanged."""


class DistributedContext(Protocol):
    """The group of workers that train a run, as seen by one of these workers.

    A collective is a call that waits for all ranks, so all ranks must make it.
    """

    rank: int
    num_workers: int
    device: str
    """Name of this worker's device, as it appears in the records of runs."""
    gpus: tuple[int, ...]
    """GPUs on which the worker trains, as indices among the GPUs visible to the process."""

    @property
    def through(self) -> str:
        """Library that runs the all-reduces: `gloo`, `ring` or `nccl`; undefined for a single
        worker."""
        ...

    def time_all_reduce(self, num_bytes: int, rounds: int) -> list[float]:
        """Measure the time of all-reduces over all workers. Collective: all ranks must call it.

        Args:
            num_bytes: Size of each all-reduce in bytes; the summed numbers are float32.
            rounds: Number of all-reduces.

        Returns:
            Seconds of each all-reduce on this worker.
        """
        add_up, seconds = self._adder(num_bytes // 4), []
        for _ in range(rounds):
            self.gather([0.0])
            began = time.perf_counter()
            add_up()
            seconds.append(time.perf_counter() - began)
        return seconds

    def _adder(self, num_values: int) -> Callable[[], float]:
        """Return a function that sums `num_values` float32 numbers over all workers, waits for the
        result and returns one of the sums."""
        ...

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks as float64: one row per rank, in rank order.

        Collective: all ranks must call it with equally many values, so it is also a barrier.
        """
        ...


class BaseTrainer(Protocol):
    """A model that is trained on one worker; each backend has a subclass `Trainer`."""

    module: Any
    """The backend's module `model`, such as `raybench.training.torch.model`."""
    metric: Metric
    """Metric of the objective."""
    num_parameters: int
    """Number of trainable parameters."""
    batch_statistics: bool
    """Whether any layer normalizes over the batch of one worker, as batch normalization does."""
    notes: list[str]
    """Remarks for the user about the newly built model, one sentence each."""
    flops_per_sample: float | None = None
    """Floating-point operations per sample (`Evaluation.flops_per_sample`); set by `warm_up` if the
    run records steps (`record_steps`)."""

    def warm_up(self, *steps: Step) -> None:
        """Train on discarded data in the shape of each step and evaluate once; then restore model,
        optimizer and random states."""
        self._freeze(steps[0].is_frozen)  # a resumed run may start after the frozen epochs
        num_rows = max(self._evaluation_batch, *(int(step.indices.max()) + 1 for step in steps))
        real = self._splits
        with self._restored():
            self._splits = {name: part.stand_in(num_rows) for name, part in real.items()}
            for step in steps:
                for _ in range(WARM_UP_STEPS):
                    self.train([step])
            if self._recorder:
                self.flops_per_sample = self._count_flops(steps[0])
            self.evaluate("validation", slice(0, self._evaluation_batch))
            self._splits = real
            self._freeze(steps[0].is_frozen)

    def _count_flops(self, step: Step) -> float | None:
        """Return the number of floating-point operations in the forward and backward pass of one
        sample; None if unknown."""
        del step
        return None

    def train(self, steps: list[Step]) -> float:
        """Take optimizer steps, and wait until the device has finished them.

        Returns:
            Weighted loss of this worker, summed over the steps.
        """
        ...

    def evaluate(self, part: str, rows: slice) -> Totals:
        """Evaluate the model on some rows of a split.

        Args:
            part: Name of the split: `validation` or `test`.
            rows: Rows of the split that this worker evaluates.

        Returns:
            Sums of loss and metric over these rows.
        """
        ...

    _splits: dict[str, Any]
    """Batches of each split for this worker, by name of the split."""
    _evaluation_batch: int
    """Largest batch size of an evaluation."""
    _memory: Any
    """A `Memory` that measures the memory of this worker's tensors."""
    _world: Any
    """The group of workers, a `DistributedContext`."""
    _freeze: Any
    """Method that freezes (True) or unfreezes (False) the backbone; all ranks call it at the same
    step."""
    _restored: Any
    """Method that returns a context manager, which restores model, optimizer and random states on
    exit."""
    _recorder: Any
    """Recorder of step times and gradient norms; None unless the run records steps
    (`record_steps`)."""
    _earlier_input_s: float = 0.0
    """Seconds spent waiting for data before the checkpoint from which the run was resumed."""

    def input_seconds(self) -> float:
        """Return the seconds for which training has waited for data so far."""
        waited: float = self._splits["train"].waited_seconds()
        return self._earlier_input_s + waited

    def step_log(self) -> StepLog:
        """Return the measurements of the last `train` call; requires `record_steps`."""
        log: StepLog = self._recorder.log()
        return log

    def memory_peak_bytes(self) -> int | None:
        """Return the peak memory in bytes since this trainer was created; None if unknown.

        If the worker has several GPUs, this is the largest peak of a single GPU.
        """
        peak: int | None = self._memory.peak()
        return peak

    def skipped_steps(self) -> int:
        """Return the number of steps that were skipped because a gradient overflowed in fp16."""
        number: int = self._loss_scale.num_skipped
        return number

    _spec: Any
    """The run spec."""
    _loss_scale: Any
    """The backend's `LossScale`."""
    _model: Any
    _optimizer: Any
    _averaging: Any
    """The backend's `Averaging` of the weights."""

    def save(self) -> bytes:
        """Return the weights, or their average if the run sets `ema_decay`, as the bytes of a file.

        The file is one of `torch.save`, or a Keras `.weights.h5` file.
        """
        with self._averaging.in_place():
            weights: bytes = self.module.save_weights(self._model)
        return weights

    def load(self, weights: bytes) -> None:
        """Load weights that `save` has returned, and restart the average of the weights."""
        self.module.load_weights(self._model, weights)
        self._averaging.forget()

    def state(self) -> bytes:
        """Return the state from which training can continue: model, optimizer, and the random
        states of all ranks.

        Collective: all ranks must call it. Rank 0 returns the state, which contains only tensors,
        numbers and names; other ranks return b"".
        """
        ...

    def restore(self, state: bytes) -> None:
        """Continue from a state that the method `state` has returned on rank 0.

        Call it before or after `warm_up`. No code in the state is executed.

        Raises:
            UserError: The workload now builds a different model, or raybench did not write `state`.
        """
        ...

    def close(self) -> None:
        """Release the memory of this trainer, which cannot be used afterwards."""
        for part in self._splits.values():
            part.close()
        self._splits.clear()


Tensor = Any
"""A tensor of either framework."""
BEST = 5
"""Number of most likely classes among which the label must be for top-5 accuracy."""


class BaseLosses:
    """Base class that computes the loss and the metric of a run for each sample.

    Each backend has a subclass `Losses`, which provides the operations of the framework.
    """

    PREFIX: ClassVar[str]
    """Prefix of the names of a workload's hooks, `torch` or `keras`, as in `torch_loss`."""
    _floats: Any
    """Method that converts a tensor to float32."""
    _mean: Any
    """Method that averages the values of each sample; returns shape (N,)."""
    _mean_of_counted: Any
    """Method that averages values over the tokens of each sample, leaving out tokens whose label is
    IGNORED. It returns shape (N,), with 0 for samples of which all tokens are left out."""
    _errors: Any
    """Method that returns outputs - labels, in the shape of the labels. Outputs of shape (N, 1) fit
    labels of shape (N,)."""
    _cross_entropy: Any
    """Method that returns the cross-entropy for each label."""
    _hits: Any
    """Method that returns, for each label, whether the output of its class is among the largest
    outputs; its last argument is the number of largest outputs."""

    def __init__(
        self, workload: Workload, metric: Metric, *, scale: Tensor = 1.0, smoothing: float = 0.0
    ) -> None:
        """Create losses for a workload.

        Args:
            workload: Workload with the task, the number of classes and the user's hooks.
            metric: Metric of the run.
            scale: Factor that converts errors of scaled labels to the unit of the original labels.
            smoothing: Label smoothing: fraction of each label that is spread over all classes in
                training.
        """
        self.workload, self._scale, self._smoothing = workload, scale, smoothing
        self.metric = metric
        """Metric of the run."""

    @classmethod
    def for_run(
        cls,
        spec: RunSpec,
        workload: Workload,
        dataset: Dataset,
        on_device: Callable[[Any], Tensor] = lambda scale: scale,
    ) -> Self:
        """Create the losses of a run.

        Args:
            spec: The run spec.
            workload: Workload of the run.
            dataset: Dataset of the run.
            on_device: Function that moves the scale of the labels to the device.
        """
        refuse_label_smoothing(spec, workload)
        metric = find_metric(spec.objective.metric, task=workload.task, custom=workload.metric)
        scale = 1.0 if dataset.label_scale is None else dataset.label_scale
        return cls(workload, metric, scale=on_device(scale), smoothing=spec.label_smoothing)

    def training_losses(self, outputs: Tensor, labels: Tensor, mixed: Any) -> Tensor:
        """Return the loss of each training sample, shape (N,), float32.

        The losses are not multiplied by the weights of the samples, except with mixup.

        Args:
            outputs: Outputs of the model.
            labels: Labels of the samples.
            mixed: With mixup: the labels of the sample that was mixed into each sample, the weights
                (N,) of the losses for `labels`, and the weights (N,) of the losses for the other
                labels. Otherwise empty or None.
        """
        losses = self.losses(outputs, labels, self._smoothing)
        if not mixed:
            return losses
        second_labels, weights, second_weights = mixed
        second_losses = self.losses(outputs, second_labels, self._smoothing)
        return weights * losses + second_weights * second_losses

    def losses_and_values(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each sample, and its value for the metric (see `values`); both have
        shape (N,) and are float32."""
        losses = self.losses(outputs, labels)
        return losses, self.values(outputs, labels, losses)

    def hook(self, name: str) -> Any:
        """Return the user's function `name`, such as `loss`, for this framework; None if the
        workload has none."""
        return getattr(self.workload, f"{self.PREFIX}_{name}")

    def losses(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the loss of each sample, shape (N,), float32."""
        hook = self.hook("loss")
        if hook is not None:
            return self._floats(hook(outputs, labels))
        if self.workload.task == "regression":
            return self._floats(self._mean(_square(self._errors(outputs, labels))))
        losses = self._cross_entropy(outputs, labels, smoothing)
        return self._floats(self._mean_over_tokens(losses, labels))

    def values(self, outputs: Tensor, labels: Tensor, losses: Tensor) -> Tensor:
        """Return the per-sample values that the metric averages, shape (N,), float32.

        If the metric is not a mean over samples, return the outputs.
        """
        if not self.metric.is_mean:
            return self._floats(outputs)
        per_sample, hook = self.metric.per_sample, self.hook("metric")
        if per_sample == "own":
            if hook is None:
                raise missing_hook(self.workload, self.metric, f"{self.PREFIX}_metric")
            values = hook(outputs, labels)
        elif per_sample == "loss":
            values = losses
        elif per_sample == "squared_error":
            values = self._mean(_square(self._errors(outputs, labels) * self._scale))
        elif per_sample == "absolute_error":
            values = self._mean(abs(self._errors(outputs, labels) * self._scale))
        else:
            hits = self._hits(outputs, labels, 1 if per_sample == "correct" else BEST)
            values = self._mean_over_tokens(self._floats(hits), labels)
        return self._floats(values)

    def _mean_over_tokens(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return one value per sample, shape (N,); if values are per token, average them."""
        return values if len(labels.shape) == 1 else self._mean_of_counted(values, labels)


def _square(values: Tensor) -> Tensor:
    return values * values


def find_backend(framework: str) -> Any:
    """Import and return a backend: its module `loop`, which has a class `Trainer(spec, workload,
    dataset, world)` and a function `join`.

    Raises:
        UserError: The framework is not installed.
    """
    return find_part(framework, "loop")


def find_part(framework: str, name: str) -> Any:
    """Import and return a module of a backend.

    Args:
        framework: Name of the framework.
        name: Name of the module inside the backend's package, such as `model`.

    Raises:
        UserError: The framework is not installed.
    """
    try:
        return importlib.import_module(f"raybench.training.{framework}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("raybench"):
            raise
        raise UserError(
            f"framework {framework}: the package '{error.name}' is not installed; "
            f"run: pip install 'raybench[{framework}]'.",
            ErrorCode.NOT_INSTALLED,
        ) from None
