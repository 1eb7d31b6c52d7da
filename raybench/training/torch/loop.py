"""The training steps in torch: forward pass, backward pass, optimizer step."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from raybench.data.dataset import Dataset
from raybench.data.split_metrics import predictions_of
from raybench.models.base import LayerWorkload, Workload
from raybench.models.named import NamedWorkload
from raybench.spec.run import RunSpec
from raybench.training.base import BaseTrainer, Step, StepLog, Totals
from raybench.training.memory import Memory, evaluation_batch
from raybench.training.model_check import builds_user_models
from raybench.training.optimizers import settings_of
from raybench.training.torch import model as torch_model
from raybench.training.torch.batches import (
    Moment,
    batches_of,
    moment,
    seconds_between,
)
from raybench.training.torch.layers import average_statistics, synchronize
from raybench.training.torch.model import Losses, has_channels, prepare_inputs
from raybench.training.torch.named import start_from
from raybench.training.torch.optim import (
    build_optimizer,
    clip_gradients,
    refuse_complex,
)
from raybench.training.torch.state import (
    Averaging,
    Freezing,
    LossScale,
    pack_state,
    random_state,
    seed_replicas,
    set_random_state,
    unpack_state,
)
from raybench.training.torch.world import Exchange, GradientNorms, set_arithmetic
from raybench.training.torch.world import World as World
from raybench.training.torch.world import join as join

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Type of the forward pass under autocast, by precision of the run."""
EVALUATION_BATCH = {"cpu": 128, "cuda": 1024}
"""Largest batch size of an evaluation, by type of device. The activations of 128 samples fit into
the cache of a CPU; with 1024 samples, each sample takes up to twice as long (measured)."""


class GpuMemory(Memory):
    """Measures the memory of a worker's GPUs; the peak is that of the fullest GPU."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._devices = devices
        super().__init__()

    def peak(self) -> int:
        """Return the peak memory in bytes since this object was created."""
        return max(torch.cuda.max_memory_allocated(device) for device in self._devices)

    def _reset(self) -> None:
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)


class StepRecorder:
    """Records the times of steps and the norms of their gradients.

    On a GPU, times are measured by CUDA events, so that no step has to wait for the device.
    """

    def __init__(self, device: torch.device, squares: GradientNorms | None) -> None:
        self._device, self._squares = device, squares
        self._moments: list[Moment] = []
        """Start of the first step, and end of each step."""
        self._norms: list[tuple[Tensor, Tensor]] = []
        """Squared norms of the gradients sent and received in each step."""

    def begin(self) -> None:
        """Start a new recording; the first step begins now."""
        self._moments, self._norms = [moment(self._device)], []

    def step_done(self, scale: Tensor) -> None:
        """Record the end of a step whose loss was multiplied by `scale`."""
        self._moments.append(moment(self._device))
        if self._squares:
            sent, received = self._squares.pop()
            self._norms.append((sent / scale**2, received / scale**2))

    def log(self) -> StepLog:
        """Return the measurements since `begin`; call after the device was synchronized."""
        return StepLog(
            seconds=[seconds_between(*pair) for pair in pairwise(self._moments)],
            part_squares=[float(part) for part, _ in self._norms],
            whole_squares=[float(whole) for _, whole in self._norms],
        )


class Trainer(BaseTrainer):
    """A torch model that is trained on one worker, or on the replicas of one process."""

    module = torch_model

    def __init__(self, spec: RunSpec, workload: Workload, dataset: Dataset, world: World) -> None:
        self._spec, self._workload, self._world = spec, workload, world
        self._device, self._devices = world.torch_device, world.replica_devices
        self._model: nn.Module = torch_model.build_model(workload, spec.seed)
        refuse_complex(self._model, spec)
        set_arithmetic(spec.precision)  # the user's code may have changed it
        self.notes = start_from(self._model, workload, spec.weights)
        self.batch_statistics = (
            torch_model.batch_statistics(self._model) and not spec.sync_batch_norm
        )
        if spec.sync_batch_norm and spec.num_workers > 1:
            self._model = synchronize(self._model)
        self._model = self._model.to(self._device)
        largest = EVALUATION_BATCH[self._device.type]
        self._evaluation_batch = evaluation_batch(spec, dataset, largest)
        # On a CPU, training is 1.5 times and evaluation 3 times as fast in the channels-last memory
        # format. It is not used for images with one channel in a user's model, which may call
        # `view` on the outputs of convolutions.
        self._channels_last = self._device.type == "cpu" and isinstance(
            workload, LayerWorkload | NamedWorkload
        )
        if has_channels(dataset.input_shape) or self._channels_last:
            # Images with several channels are in this format, too (see prepare_inputs).
            self._model = self._model.to(memory_format=torch.channels_last)
        self.num_parameters = torch_model.num_parameters(self._model)
        self._freezing = Freezing(self._model, workload) if spec.frozen_epochs else None
        # Dropout then differs between ranks and between seeds, and is reproducible.
        seed_replicas(self._devices, spec.seed * 1_000_003 + world.rank)
        is_own = builds_user_models(spec, workload)
        self._exchange = Exchange(spec, self._model, self._precision, may_skip_parameters=is_own)
        self._parallel = self._exchange.model
        self._compiled: Callable[..., Tensor] = self._losses_of
        if spec.compile != "none":  # compiled at the first call, if possible from inductor's cache
            self._compiled = torch.compile(self._losses_of, dynamic=False, mode=spec.compile)
        self._recorder = None
        if spec.record_steps:
            self._recorder = StepRecorder(self._device, self._exchange.squares)
        self._memory = GpuMemory(self._devices) if self._device.type == "cuda" else Memory()
        self._optimizer = self._build_optimizer()
        self._averaging = Averaging(spec, self._model)
        self._loss_scale = LossScale(self._device, spec.precision)
        on_device = partial(torch.as_tensor, dtype=torch.float32, device=self._device)
        self._losses = Losses.for_run(spec, workload, dataset, on_device)
        self.metric = self._losses.metric
        self._splits = batches_of(spec, dataset, self._device)

    def train(self, steps: list[Step]) -> float:
        """Take optimizer steps; return their total loss. See `BaseTrainer.train`."""
        self._set_training_mode()
        total = torch.zeros((), device=self._device)
        batches = self._splits["train"].batches(steps)
        if self._recorder:
            self._recorder.begin()
        for step in steps:
            self._freeze(step.is_frozen)
            for group in self._optimizer.param_groups:
                group["lr"] = step.learning_rate
            self._optimizer.zero_grad(set_to_none=True)
            last = len(step.indices) - 1
            for index in range(len(step.indices)):
                batch = next(batches)
                # A batch of another size would be compiled during training time.
                is_full = len(batch.labels) == self._spec.batch_size_per_worker
                take = self._compiled if is_full else self._losses_of
                with self._exchange.sync_if(index == last):
                    with self._precision():
                        losses = take(batch.inputs, batch.labels, batch.mixed)
                    weights = batch.weights
                    if self._world.num_workers > 1:  # weights are made for a sum, but DDP averages
                        weights = weights * self._world.num_workers
                    torch.autograd.backward(losses, self._loss_scale.scaled(weights))
                total += torch.dot(losses.detach(), batch.weights)
            scale = self._loss_scale.now() if self._recorder else None
            self._averaging.update(self._loss_scale.step(self._optimizer, self._clip))
            if self._recorder and scale is not None:
                self._recorder.step_done(scale)
        return float(total)  # synchronizes the device

    def _count_flops(self, step: Step) -> float | None:
        """Return the number of floating-point operations in the forward and backward pass of one
        sample; None if torch counts none, as for replicas that run in other threads."""
        batch = next(self._splits["train"].batches([step]))
        with FlopCounterMode(display=False) as counter, self._exchange.sync_if(False):
            with self._precision():
                losses = self._losses_of(batch.inputs, batch.labels, batch.mixed)
            torch.autograd.backward(losses, self._loss_scale.scaled(batch.weights))
        self._optimizer.zero_grad(set_to_none=True)
        return counter.get_total_flops() / len(batch.labels) or None

    def _clip(self) -> None:
        """Clip the gradients if the run spec sets `clip_norm`."""
        if self._spec.clip_norm is not None:
            clip_gradients(self._model.parameters(), self._spec.clip_norm)

    def _losses_of(self, inputs: Any, labels: Tensor, mixed: Any) -> Tensor:
        """Return the loss of each sample of a pass."""
        prepared = prepare_inputs(inputs, channels_last=self._channels_last)
        losses: Tensor = self._losses.training_losses(self._parallel(prepared), labels, mixed)
        return losses

    @torch.no_grad()
    def evaluate(self, part: str, rows: slice) -> Totals:
        """Return sums of loss and metric over rows of a split. See `BaseTrainer.evaluate`."""
        self._parallel.eval()
        if self._world.num_workers > 1:
            average_statistics(self._model)
        samples = 0
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        value, squares = torch.zeros((2,), dtype=torch.float64, device=self._device)
        all_values: list[Tensor] = []
        with self._averaging.in_place():
            for inputs, labels in self._splits[part].slices(rows, self._evaluation_batch):
                prepared = prepare_inputs(inputs, channels_last=self._channels_last)
                with self._precision():
                    outputs = self._model(prepared)
                    losses, values = self._losses.losses_and_values(outputs, labels)
                samples += len(labels)
                loss += losses.double().sum()
                value += values.double().sum()
                squares += values.double().square().sum()
                all_values += [values] * (not self.metric.is_mean)
        return Totals(
            loss=float(loss),
            value=float(value),
            squares=float(squares),
            samples=samples,
            answers=predictions_of(self.metric, torch.cat(all_values).cpu().numpy())
            if all_values
            else None,
        )

    def state(self) -> bytes:
        """Return the state of training as a file of `torch.save`. See `BaseTrainer.state`."""
        rank_state = {"input_s": self.input_seconds()} | random_state(self._devices)
        ranks = self._world.gather_objects(rank_state)
        if self._world.rank:
            return b""
        is_frozen = self._freezing is not None and self._freezing.is_on
        return pack_state(self._parts(), ranks, is_frozen=is_frozen)

    def restore(self, state: bytes) -> None:
        """Continue from a state. See `BaseTrainer.restore`."""
        ranks, is_frozen = unpack_state(state, self._parts())
        self._set_frozen(is_frozen)
        rank_state = ranks[self._world.rank]
        self._earlier_input_s = rank_state["input_s"]
        set_random_state(rank_state, self._devices)

    def close(self) -> None:
        """Release model, optimizer and data."""
        super().close()
        del self._model, self._parallel, self._exchange, self._recorder, self._optimizer
        del self._averaging, self._compiled
        if self._spec.compile != "none":
            torch.compiler.reset()  # torch limits how often a process compiles a function
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        """Context manager: restore model, optimizer and random states on exit."""
        saved = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts().items()}
        saved_random_state = random_state(self._devices)
        yield
        set_random_state(saved_random_state, self._devices)
        self._optimizer = self._build_optimizer()
        for name, part in self._parts().items():
            part.load_state_dict(saved[name])

    def _parts(self) -> dict[str, Any]:
        """Return the objects whose `state_dict`s are the state of training, by name."""
        return {
            "model": self._model,
            "optimizer": self._optimizer,
            "averaging": self._averaging,
            "loss_scale": self._loss_scale,
        }

    def _set_training_mode(self) -> None:
        """Put the model into training mode, except frozen modules."""
        self._parallel.train()
        if self._freezing:
            self._freezing.train()

    def _freeze(self, is_on: bool) -> None:
        """Freeze (True) or unfreeze (False) the backbone.

        Unfreezing resets the optimizer, including its state for the head.
        """
        if self._set_frozen(is_on) and not is_on:
            self._optimizer = self._build_optimizer()

    def _set_frozen(self, is_on: bool) -> bool:
        """Freeze (True) or unfreeze (False) the backbone; return whether it was not so before."""
        if self._freezing is None or self._freezing.is_on == is_on:
            return False
        self._freezing.set(is_on)
        self._parallel = self._model
        self._parallel = self._exchange.rewrap()
        self._set_training_mode()
        return True

    def _precision(self) -> AbstractContextManager[object]:
        """Return the context of the forward pass: autocast, or nothing in 32-bit precision."""
        dtype = HALF.get(self._spec.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=dtype)

    def _build_optimizer(self) -> torch.optim.Optimizer:
        """Return a new optimizer over all parameters. It leaves frozen parameters unchanged,
        because they have no gradient."""
        with self._freezing.unfrozen() if self._freezing else contextlib.nullcontext():
            settings = settings_of(self._spec)
            return build_optimizer(self._spec.optimizer, self._model, **settings)
