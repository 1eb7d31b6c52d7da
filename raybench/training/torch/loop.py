"""The training steps in torch: forward pass, backward pass, exchange of gradients, optimizer step.

Mirrors tensorflow/loop.py.
"""

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from raybench.data.dataset import Dataset
from raybench.data.split_metrics import predictions_of
from raybench.models.base import LayerWorkload, Workload
from raybench.models.named import NamedWorkload
from raybench.spec.run import RunSpec
from raybench.training.base import BaseTrainer, Step, StepLog, Totals
from raybench.training.machine import Memory
from raybench.training.optimizers import settings_of
from raybench.training.samples import evaluation_batch
from raybench.training.torch import model as torch_model
from raybench.training.torch.batches import (
    Moment,
    batches_of,
    moment,
    seconds_between,
)
from raybench.training.torch.model import (
    Losses,
    average_statistics,
    has_channels,
    prepare_inputs,
    synchronize,
)
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
from raybench.training.torch.world import GpuMemory, set_arithmetic
from raybench.training.torch.world import World as World
from raybench.training.torch.world import join as join

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Data type of the forward pass under autocast, keyed by precision of the run."""
EVALUATION_BATCH = {"cpu": 128, "cuda": 1024}
"""Largest batch size of an evaluation, by type of device. The activations of 128 samples fit into
the cache of a CPU; with 1024 samples, each sample takes up to twice as long (measured)."""


WIRE = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Data type to which gradients are converted for the exchange, keyed by `gradient_compression`.
None leaves them unchanged."""


class GradientNorms:
    """Squared norms of the gradients that a worker sends and receives in a step.

    DDP exchanges gradients in several buckets; there is one squared norm per bucket.
    """

    def __init__(self) -> None:
        self.sent: list[Tensor] = []
        self.received: list[Tensor] = []
        """Squared norms of the received buckets; the thread that runs the exchange appends them."""

    def pop(self) -> tuple[Tensor, Tensor]:
        """Return the squared norms of the gradients sent and received in the finished step, and
        start the next step."""
        sums = torch.stack(self.sent).sum(), torch.stack(self.received).sum()
        self.sent, self.received = [], []
        return sums


Precision = Callable[[], AbstractContextManager[object]]
"""Function that returns the autocast context of the forward pass."""


class Replica(nn.Module):
    """Wraps a model so that it computes in the run's precision in any thread.

    DataParallel calls each replica in a different thread. The thread inherits whether autocast is
    enabled, but not its dtype; without this wrapper, the model would compute in fp16.
    """

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.model = model
        self._precision = precision

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs."""
        with self._precision():
            outputs: Tensor = self.model(inputs)
            return outputs


class Exchange:
    """A model wrapped for training, and the exchange of its gradients between workers.

    Replicas in one process need no exchange, since DataParallel sums their gradients in the
    backward pass.
    """

    def __init__(
        self, spec: RunSpec, model: nn.Module, precision: Precision, *, may_skip_parameters: bool
    ) -> None:
        """Wrap a model.

        Args:
            spec: The run spec.
            model: The model, on its device.
            precision: Function that returns the autocast context of the forward pass.
            may_skip_parameters: Whether a forward pass may use only some of the parameters.
        """
        self.model = model
        """Module to use for the forward pass (DDP-wrapped if distributed)."""
        self.squares: GradientNorms | None = None
        """Norms of the exchanged gradients; None unless the run records steps (`record_steps`)."""
        self._spec, self._unwrapped, self._is_on = spec, model, spec.exchange_gradients
        self._parallel: DistributedDataParallel | None = None
        self._may_leave_out = may_skip_parameters
        if spec.replicas_per_process > 1:
            devices = list(range(spec.replicas_per_process))
            self.model = nn.DataParallel(Replica(model, precision), device_ids=devices)
        elif spec.num_workers > 1:
            if spec.record_steps and self._is_on:
                self.squares = GradientNorms()
            self._wrap()

    def rewrap(self) -> nn.Module:
        """Wrap the model in a new DDP module, after parameters were frozen or unfrozen; return it.

        DDP exchanges the gradients of those parameters that required gradients when the DDP module
        was created. The caller must not keep a reference to the previous module, or its hooks stay
        active. Collective: all ranks must call it.
        """
        if self._parallel is not None:
            # Without references to the previous module, its hooks on the parameters are removed.
            self.model, self._parallel = self._unwrapped, None
            self._wrap()
        return self.model

    def _wrap(self) -> None:
        """Wrap the model in a DDP module."""
        size, usual = self._spec.bucket_mb, RunSpec.model_fields["bucket_mb"].default
        with warnings.catch_warnings():
            # torch 2.15 renames `broadcast_buffers`; earlier versions do not know the new name.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            self.model = self._parallel = DistributedDataParallel(
                self._unwrapped,
                broadcast_buffers=False,  # `average_statistics` makes them equal
                gradient_as_bucket_view=True,
                # By default, DDP uses a smaller first bucket; keep that for the default size.
                bucket_cap_mb=None if size == usual else size,
                find_unused_parameters=self._may_leave_out,
            )
        wire = WIRE[self._spec.gradient_compression]
        if wire or self.squares:
            self._register_hook(wire)

    def sync_if(self, is_wanted: bool) -> AbstractContextManager[object]:
        """Return a context for the backward pass. In it, gradients are exchanged if `is_wanted` and
        the run exchanges gradients at all; otherwise they are only accumulated."""
        if self._parallel is None or (is_wanted and self._is_on):
            return contextlib.nullcontext()
        return self._parallel.no_sync()

    def _register_hook(self, wire: torch.dtype | None) -> None:
        """Register a communication hook that averages gradients, as DDP does by default, and can
        also measure their norms and convert them to the data type `wire` for the exchange."""
        assert self._parallel is not None
        squares = self.squares

        def exchange(
            state: None,
            bucket: dist.GradBucket,  # type: ignore[name-defined]
        ) -> Future[Tensor]:
            # Multiplied before the exchange, so that both frameworks compress the same numbers.
            buffer: Tensor = bucket.buffer().mul_(1 / self._spec.num_workers)
            real = torch.view_as_real(buffer) if buffer.is_complex() else buffer
            part = real.flatten()
            if squares:
                squares.sent.append(part.dot(part))
            sent = part if wire is None else part.to(wire)
            work = dist.all_reduce(sent, async_op=True)
            assert work is not None

            def receive(done: Future[list[Tensor]]) -> Tensor:
                (received,) = done.value()
                if wire:
                    part.copy_(received)
                if squares:
                    squares.received.append(part.dot(part))
                return buffer

            return work.get_future().then(receive)

        self._parallel.register_comm_hook(None, exchange)


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
        is_known = isinstance(workload, LayerWorkload | NamedWorkload)
        self._channels_last = self._device.type == "cpu" and is_known
        if has_channels(dataset.input_shape) or self._channels_last:
            # Images with several channels are in this format, too (see prepare_inputs).
            self._model = self._model.to(memory_format=torch.channels_last)
        self.num_parameters = torch_model.num_parameters(self._model)
        self._freezing = Freezing(self._model, workload) if spec.frozen_epochs else None
        # Dropout then differs between ranks and between seeds, and is reproducible.
        seed_replicas(self._devices, spec.seed * 1_000_003 + world.rank)
        self._exchange = Exchange(
            spec, self._model, self._precision, may_skip_parameters=not is_known
        )
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
        """Context manager that restores model, optimizer and random states on exit."""
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
        """Freeze (True) or unfreeze (False) the backbone; return whether this changed anything."""
        if self._freezing is None or self._freezing.is_on == is_on:
            return False
        self._freezing.set(is_on)
        self._parallel = self._model
        self._parallel = self._exchange.rewrap()
        self._set_training_mode()
        return True

    def _precision(self) -> AbstractContextManager[object]:
        """Return the context of the forward pass: autocast, or a null context in 32 bits."""
        dtype = HALF.get(self._spec.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=dtype)

    def _build_optimizer(self) -> torch.optim.Optimizer:
        """Return a new optimizer over all parameters. The optimizer leaves frozen parameters
        unchanged, because they have no gradient."""
        with self._freezing.unfrozen() if self._freezing else contextlib.nullcontext():
            settings = settings_of(self._spec)
            return build_optimizer(self._spec.optimizer, self._model, **settings)
