"""Regions that failed: configurations that would fail in the same way are not tried again."""

from typing import Any


class Failures:
    """Remembers runs out of memory and runs into NaN; says which proposals repeat them.

    Memory grows with the samples of one pass, so after a run out of memory, per-worker
    batches as large or larger are left out for the same framework and optimizer (an
    optimizer's state takes memory too). A rate that diverges is left out, and all above it,
    for the same optimizer and global batches as small or smaller (noisier gradients diverge
    sooner).
    """

    def __init__(self) -> None:
        self._out_of_memory: dict[tuple[Any, ...], int] = {}
        self._diverged: dict[Any, list[tuple[float, int]]] = {}

    def add(self, failure: str, spec: dict[str, Any]) -> None:
        """Take a failed run's spec; failures that are not the configuration's are ignored."""
        if failure == "oom":
            key, size = _memory_key(spec), spec["batch_size_per_worker"]
            self._out_of_memory[key] = min(size, self._out_of_memory.get(key, size))
        elif failure == "nan":
            seen = self._diverged.setdefault(_rate_key(spec), [])
            seen.append((spec["learning_rate"], _global_batch(spec)))

    def forbid(self, spec: dict[str, Any]) -> bool:
        """Whether a run of `spec` would fail as an earlier one has."""
        limit = self._out_of_memory.get(_memory_key(spec))
        if limit is not None and spec["batch_size_per_worker"] >= limit:
            return True
        return any(
            spec["learning_rate"] >= rate and _global_batch(spec) <= batch
            for rate, batch in self._diverged.get(_rate_key(spec), [])
        )


def _memory_key(spec: dict[str, Any]) -> tuple[Any, ...]:
    return spec["framework"], spec["optimizer"], spec["precision"], spec["gpus_per_worker"]


def _rate_key(spec: dict[str, Any]) -> tuple[Any, ...]:
    return spec["optimizer"], spec["schedule"], spec["warmup_epochs"], spec["precision"]


def _global_batch(spec: dict[str, Any]) -> int:
    return int(spec["batch_size_per_worker"] * spec["num_workers"] * spec["accumulate"])
