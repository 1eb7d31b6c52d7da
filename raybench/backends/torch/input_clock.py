"""The seconds that training waits for data, on a CPU and on a GPU that works on meanwhile."""

import contextlib
import time
from collections.abc import Iterator

import torch


class InputClock:
    """Adds up how long the device has had nothing to do because a batch was not there.

    On a GPU, the host is ahead of the device: it may wait for data while the device still
    computes earlier steps, which costs nothing. So there the time between two events is taken:
    the end of all work queued before the batch was asked for, and its arrival on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._device = device
        self._seconds = 0.0
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside, which ends with a batch on the device."""
        if self._is_cuda:
            began = self._event()
            yield
            self._pairs.append((began, self._event()))
        else:
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started

    def seconds(self) -> float:
        """Return all seconds so far; waits for the device."""
        for began, arrived in self._pairs:
            arrived.synchronize()
            self._seconds += began.elapsed_time(arrived) / 1000
        self._pairs.clear()
        return self._seconds

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
