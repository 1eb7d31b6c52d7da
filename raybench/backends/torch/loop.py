"""The torch training loop: forward, backward, step on arrays held in device memory."""

import contextlib
import copy
import time
from contextlib import AbstractContextManager

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raybench.backends.base import Step, Totals
from raybench.backends.optimizers import settings_of
from raybench.backends.torch.model import (
    batch_statistics,
    build_model,
    load_weights,
    loss_and_correct,
    num_parameters,
    prepare_inputs,
    sample_losses,
    save_weights,
)
from raybench.backends.torch.optim import build_optimizer
from raybench.backends.torch.state import (
    pack_state,
    random_state,
    set_random_state,
    unpack_state,
)
from raybench.core.spec import RunSpec
from raybench.data.dataset import Dataset, Split
from raybench.workloads.base import LayerWorkload, Workload

EVALUATION_BATCH = {"cpu": 128, "cuda": 1024}
"""Samples per forward pass of an evaluation; a CPU keeps the activations of so many in its cache
(measured: 1024 take up to twice as long there)."""
WARM_UP_STEPS = 2
"""The first allocates and picks kernels, the second runs as all later ones do."""


class World:
    """This process's place among the workers; a process group exists where there are several."""

    def __init__(self, *, rank: int = 0, num_workers: int = 1, device: str = "cpu") -> None:
        self.rank, self.num_workers = rank, num_workers
        self.torch_device = torch.device(device)
        is_cuda = self.torch_device.type == "cuda"
        self.device = torch.cuda.get_device_name(self.torch_device) if is_cuda else "cpu"

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return every rank's values (float64), in rank order; a barrier for all ranks."""
        if self.num_workers == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64, device=self.torch_device)
        rows = [torch.empty_like(mine) for _ in range(self.num_workers)]
        dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]


class Trainer:
    """One torch model in training on one worker."""

    def __init__(self, spec: RunSpec, workload: Workload, dataset: Dataset, world: World) -> None:
        self._spec, self._workload, self._world = spec, workload, world
        self._device = world.torch_device
        self._model: nn.Module = build_model(workload, spec.seed).to(self._device)
        self._evaluation_batch = EVALUATION_BATCH[self._device.type]
        # Images in this order train half as fast again on a CPU, and evaluate three times as fast.
        # Of one channel not for a user's model: it may `view` what its convolutions return.
        self._channels_last = self._device.type == "cpu" and isinstance(workload, LayerWorkload)
        if dataset.input_shape[-1] > 1 or self._channels_last:
            # Images of several channels arrive in this order (prepare_inputs).
            self._model = self._model.to(memory_format=torch.channels_last)
        self.num_parameters = num_parameters(self._model)
        self.batch_statistics = batch_statistics(self._model)
        # Dropout differs between ranks and between seeds, and repeats with both.
        torch.manual_seed(spec.seed * 1_000_003 + world.rank)
        self._parallel: nn.Module = self._model
        if world.num_workers > 1:
            self._parallel = DistributedDataParallel(self._model, gradient_as_bucket_view=True)
        self._optimizer = self._build_optimizer()
        self._parts = {
            "train": self._on_device(dataset.train),
            "validation": self._on_device(dataset.validation),
            "test": self._on_device(dataset.test),
        }
        self._input_s = 0.0

    def warm_up(self, step: Step) -> None:
        """Run training and evaluation code on noise, then restore every state."""
        weights = {name: value.clone() for name, value in self._model.state_dict().items()}
        optimizer, input_s = copy.deepcopy(self._optimizer.state_dict()), self._input_s
        num_rows = max(int(step.indices.max()) + 1, self._evaluation_batch)
        real = self._parts
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            self._parts = {name: _noise_like(real[name], num_rows) for name in real}
            for _ in range(WARM_UP_STEPS):
                self.train([step])
            self.evaluate("validation", slice(0, self._evaluation_batch))
        self._parts = real
        self._model.load_state_dict(weights)
        self._optimizer = self._build_optimizer()
        self._optimizer.load_state_dict(optimizer)
        self._input_s = input_s

    def train(self, steps: list[Step]) -> float:
        """Take optimizer steps; return this worker's weighted loss, summed over steps."""
        self._parallel.train()
        total = torch.zeros((), device=self._device)
        for step in steps:
            for group in self._optimizer.param_groups:
                group["lr"] = step.learning_rate
            self._optimizer.zero_grad(set_to_none=True)
            last = len(step.indices) - 1
            for index, (rows, weights) in enumerate(zip(step.indices, step.weights, strict=True)):
                inputs, labels, weight = self._batch(rows, weights)
                with self._exchange(index == last), self._precision():
                    images = prepare_inputs(inputs, channels_last=self._channels_last)
                    outputs = self._parallel(images)
                    losses = sample_losses(self._workload, outputs, labels)
                    # DDP averages over workers; the weights are made for a sum.
                    torch.autograd.backward(losses, weight * self._world.num_workers)
                total += torch.dot(losses.detach(), weight)
            self._optimizer.step()
        return float(total)  # synchronises the device

    @torch.no_grad()
    def evaluate(self, part: str, rows: slice) -> Totals:
        """Loss and correct answers on rows of the `validation` or `test` split."""
        self._parallel.eval()
        inputs, labels = (tensor[rows] for tensor in self._parts[part])
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        correct = torch.zeros((), dtype=torch.float64, device=self._device)
        for start in range(0, len(labels), self._evaluation_batch):
            batch = slice(start, start + self._evaluation_batch)
            images = prepare_inputs(inputs[batch], channels_last=self._channels_last)
            with self._precision():
                outputs = self._model(images)
                losses, hits = loss_and_correct(self._workload, outputs, labels[batch])
            loss += losses.double().sum()
            correct += hits.double().sum()
        return Totals(loss=float(loss), correct=float(correct), samples=len(labels))

    def input_seconds(self) -> float:
        """Seconds that training has waited for data so far."""
        return self._input_s

    def save(self) -> bytes:
        """Return the state dict as `torch.save` writes it."""
        return save_weights(self._model)

    def load(self, weights: bytes) -> None:
        """Take weights that `save` returned."""
        load_weights(self._model, weights)

    def state(self) -> bytes:
        """Return all that training goes on from, as `torch.save` writes it; see Trainer."""
        rows = self._world.gather([self._input_s, *random_state(self._device)])
        return b"" if self._world.rank else pack_state(self._model, self._optimizer, rows)

    def restore(self, state: bytes) -> None:
        """Take what `state` returned on rank 0."""
        row = unpack_state(state, self._model, self._optimizer)[self._world.rank]
        self._input_s = row[0]
        set_random_state(row[1:], self._device)

    def close(self) -> None:
        """Release model, optimizer and data."""
        self._parts.clear()
        del self._model, self._parallel, self._optimizer
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _batch(
        self, rows: np.ndarray, weights: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        started = time.perf_counter()
        inputs, labels = self._parts["train"]
        index = torch.from_numpy(rows).to(self._device, non_blocking=True)
        weight = torch.from_numpy(weights).to(self._device, non_blocking=True)
        batch = inputs.index_select(0, index), labels.index_select(0, index), weight
        self._input_s += time.perf_counter() - started
        return batch

    def _exchange(self, wanted: bool) -> AbstractContextManager[object]:
        """Exchange gradients in this backward pass, or only accumulate them."""
        if wanted or not isinstance(self._parallel, DistributedDataParallel):
            return contextlib.nullcontext()
        return self._parallel.no_sync()

    def _precision(self) -> AbstractContextManager[object]:
        if self._spec.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    def _on_device(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = torch.from_numpy(split.inputs), torch.from_numpy(split.labels)
        return inputs.to(self._device), labels.to(self._device)

    def _build_optimizer(self) -> torch.optim.Optimizer:
        return build_optimizer(self._spec.optimizer, self._model, **settings_of(self._spec))


def _noise_like(
    part: tuple[torch.Tensor, torch.Tensor], num_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs with the first labels: throw-away data of the same shape and type."""
    inputs, labels = part[0][:num_rows], part[1][:num_rows]
    if inputs.dtype == torch.uint8:
        return torch.randint_like(inputs, 0, 256), labels
    return torch.randn_like(inputs), labels


def join(*, rank: int, num_workers: int, device: str, num_threads: int) -> World:
    """Return this process's World; Ray Train has made the process group already."""
    torch.set_num_threads(num_threads)
    return World(rank=rank, num_workers=num_workers, device=device)
