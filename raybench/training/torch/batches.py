"""Batches of a dataset's splits, as tensors on the device of the worker.

Mirrors tensorflow/batches.py.
"""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from raybench.data.dataset import Dataset, Split, each, parts
from raybench.data.memory import available_bytes, is_mapped
from raybench.spec.run import RunSpec
from raybench.training.base import Step
from raybench.training.samples import (
    BaseInMemoryBatches,
    BaseOnDemandBatches,
    Reader,
    Room,
    batches_by_split,
)


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a CPU tensor that shares the memory of an array; the tensor must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        return torch.from_numpy(array)


Moment = float | torch.cuda.Event
"""A moment in time: seconds of `time.perf_counter` on a CPU, an event on a GPU."""


def moment(device: torch.device) -> Moment:
    """Return the current moment; for a GPU, the moment when all work queued so far will be done."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two moments (see `Moment`); waits for the device."""
    if isinstance(end, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


class InputClock:
    """Adds up the time for which the device was idle because it waited for a batch.

    The host runs ahead of its GPU. While the GPU still computes earlier steps, it costs nothing if
    the host waits for data. On a GPU, the time is therefore measured between two events: the end of
    all work that was queued before the batch was requested, and the arrival of the batch on the
    device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._seconds = device, 0.0
        self._pairs: list[tuple[Moment, Moment]] = []
        """Start and end of each wait that is not yet added to `_seconds`."""

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context manager that counts the time inside, where the caller waits for a batch and sends
        it to the device."""
        began = moment(self._device)
        yield
        self._pairs.append((began, moment(self._device)))

    def seconds(self) -> float:
        """Return the seconds spent waiting for data so far, after synchronizing with the device."""
        self._seconds += sum(seconds_between(*pair) for pair in self._pairs)
        self._pairs.clear()
        return self._seconds


class Batch(NamedTuple):
    """Samples of one forward and backward pass, as tensors or, before conversion, as arrays."""

    inputs: Any
    labels: Any
    weights: Any
    """Weight of each sample's loss, see `Step.weights`."""
    mixed: Any = None
    """Labels and weights for mixup (`Samples.mixed`); None without mixup."""


class InMemoryBatches(BaseInMemoryBatches):
    """Keeps a whole split on the device and gathers batches from it by index."""

    def batches(self, steps: list[Step]) -> Iterator[Batch]:
        """Yield one `Batch` for each forward and backward pass of the steps.

        Sending the indices to the device counts as waiting for data; gathering the samples is part
        of the step.
        """
        started = time.perf_counter()
        sizes = [step.indices.shape[1] for step in steps for _ in step.indices]
        indices = self._send([step.indices for step in steps], sizes)
        weights = self._send([step.weights for step in steps], sizes)
        self._waited_s += time.perf_counter() - started
        for index, weight in zip(indices, weights, strict=True):
            yield self._batch(index, weight)

    def _send(self, arrays: list[np.ndarray], sizes: list[int]) -> tuple[torch.Tensor, ...]:
        """Send arrays of shape (passes, samples), one per step, and return one tensor per pass.

        They are sent to the device in one copy, which overlaps with computation. `sizes` has the
        number of samples of each pass.
        """
        together = torch.from_numpy(np.concatenate([array.ravel() for array in arrays]))
        device = self._labels.device
        if device.type == "cuda":
            together = together.pin_memory().to(device, non_blocking=True)
        return torch.split_with_sizes(together, sizes)

    def _batch(self, index: torch.Tensor, weights: torch.Tensor) -> Batch:
        """Gather the samples of a pass."""
        inputs = each(self._inputs, lambda tensor: tensor.index_select(0, index))
        labels = self._labels.index_select(0, index)
        if not self._is_mixed:
            return Batch(inputs, labels, weights)
        # Cloned, because torch.compile would specialize on the case that both tensors are the same.
        mixed = labels.clone(), torch.ones_like(weights), torch.zeros_like(weights)
        return Batch(inputs, labels, weights, mixed)


class OnDemandBatches(BaseOnDemandBatches):
    """Reads the inputs of a split in batches, ahead of training."""

    in_memory = InMemoryBatches

    def __init__(
        self, reader: Reader, device: torch.device, prefetch: int, *, mixed: bool = False
    ) -> None:
        super().__init__(reader, prefetch, mixed=mixed)
        self._device, self._clock = device, InputClock(device)

    def batches(self, steps: list[Step]) -> Iterator[Batch]:
        """Yield one `Batch` for each pass of the steps; count the time spent waiting for data."""
        passes = [(step, index) for step in steps for index in range(len(step.indices))]
        read = self._prefetch.each(self._read_pass, passes)
        for _ in passes:
            with self._clock.waiting():
                batch = _map_tensors(next(read), self._on_device)
            yield batch

    def waited_seconds(self) -> float:
        """Return the seconds spent waiting for batches so far, after synchronizing the device."""
        return self._clock.seconds()

    def _to_tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        with torch.cuda.device(self._device):  # otherwise a new thread would use GPU 0
            return tensor.pin_memory()

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    def _read_pass(self, step_and_index: tuple[Step, int]) -> Batch:
        """Read the samples of a pass as CPU tensors, in pinned memory if the device is a GPU; runs
        in a thread."""
        step, index = step_and_index
        rounds = None if step.rounds is None else step.rounds[index]
        samples = self._reader.read(step.indices[index], rounds)
        batch = Batch(samples.inputs, samples.labels, step.weights[index], samples.mixed)
        return _map_tensors(batch, self._to_tensor)


def _map_tensors(batch: Batch, move: Callable[[Any], torch.Tensor]) -> Batch:
    """Apply a function to every tensor or array of a batch."""
    mixed = batch.mixed and tuple(move(tensor) for tensor in batch.mixed)
    return Batch(each(batch.inputs, move), move(batch.labels), move(batch.weights), mixed)


Batches = InMemoryBatches | OnDemandBatches


def room_for_data(device: torch.device, share: float) -> Room:
    """Return the memory that the data of all splits may take.

    Args:
        device: Device of the worker.
        share: Number of GPUs per worker, less than 1 if several workers share a GPU.
    """
    if device.type != "cuda":
        return Room(available_bytes())
    free, total = torch.cuda.mem_get_info(device)
    return Room(min(free, int(total * min(share, 1))), is_gpu=True)


def batches_of(spec: RunSpec, dataset: Dataset, device: torch.device) -> dict[str, Batches]:
    """Return the batches of each split, keyed by split name.

    On a CPU, arrays that are already in memory are not copied.
    """
    room = room_for_data(device, spec.gpus_per_worker)

    def fits(split: Split) -> bool:
        is_file = any(is_mapped(array) for array in (*parts(split.arrays), split.labels))
        return (device.type == "cpu" and not is_file) or room.reserve(split)

    def in_memory(split: Split) -> InMemoryBatches:
        inputs = each(split.arrays, lambda array: to_tensor(array).to(device))
        return InMemoryBatches(inputs, to_tensor(split.labels).to(device))

    on_demand = partial(OnDemandBatches, device=device, prefetch=spec.prefetch)
    return batches_by_split(spec, dataset, fits=fits, in_memory=in_memory, on_demand=on_demand)
