"""What this worker records of its steps: their ends and squared norms. Mirrors tensorflow's."""

import time
from itertools import pairwise

import torch
from torch import Tensor

from raybench.training.base import StepLog
from raybench.training.memory import forget_peak, peak_bytes
from raybench.training.torch.world import Squares


class StepRecorder:
    """Marks the ends of steps: on a GPU by events in its stream, which no step waits for."""

    def __init__(self, devices: list[torch.device], squares: Squares | None) -> None:
        self._devices, self._squares = devices, squares
        self._device = devices[0]
        self._is_cuda = self._device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []
        self._norms: list[tuple[Tensor, Tensor]] = []
        if self._is_cuda:
            for device in devices:
                torch.cuda.reset_peak_memory_stats(device)
        else:
            forget_peak()

    def begin(self) -> None:
        """Forget the steps before; the next one begins here."""
        self._events, self._times, self._norms = [], [], []
        self._mark()

    def step_done(self) -> None:
        """Mark the end of a step."""
        self._mark()
        if self._squares:
            self._norms.append(self._squares.take())

    def log(self) -> StepLog:
        """Return what was recorded since `begin`; after the device is synchronised."""
        return StepLog(
            seconds=self._seconds(),
            part_squares=[float(part) for part, _ in self._norms],
            whole_squares=[float(whole) for _, whole in self._norms],
        )

    def memory_peak_bytes(self) -> int | None:
        """The most memory since this was made; of several GPUs that of the fullest."""
        if self._is_cuda:
            return max(torch.cuda.max_memory_allocated(device) for device in self._devices)
        return peak_bytes()

    def _mark(self) -> None:
        if not self._is_cuda:
            self._times.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def _seconds(self) -> list[float]:
        if not self._is_cuda:
            return [end - start for start, end in pairwise(self._times)]
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(self._events)]
