"""Regions that failed: configurations that would fail in the same way are not tried again."""

from raybench.core.spec import RunSpec
from raybench.search.sampling.default_rates import batch_power

Key = tuple[str | float, ...]


class Infeasible:
    """Remembers runs out of memory and runs into NaN; says which proposals repeat them.

    Memory grows with the samples of one pass, so after a run out of memory, per-worker
    batches as large or larger are left out for the same framework and optimizer (an
    optimizer's state takes memory too). A rate that diverges is left out, and all above it,
    for the same optimizer; a larger global batch, whose gradients have less noise, is given
    the rate that its scaling rule makes equal.
    """

    def __init__(self) -> None:
        self.num_failed = 0
        """Runs that were added; while it stays the same, so do the answers."""
        self._out_of_memory: dict[Key, int] = {}
        self._diverged: dict[Key, list[tuple[float, int]]] = {}

    def add(self, failure: str, spec: RunSpec) -> None:
        """Take a failed run's spec; failures that are not the configuration's are ignored."""
        self.num_failed += 1
        if failure == "oom":
            key, size = _memory_key(spec), spec.batch_size_per_worker
            self._out_of_memory[key] = min(size, self._out_of_memory.get(key, size))
        elif failure == "nan":
            seen = self._diverged.setdefault(_rate_key(spec), [])
            seen.append((spec.learning_rate, spec.global_batch_size))

    def is_feasible(self, spec: RunSpec) -> bool:
        """Whether a run of `spec` would not fail as an earlier one has."""
        limit = self._out_of_memory.get(_memory_key(spec))
        if limit is not None and spec.batch_size_per_worker >= limit:
            return False
        for rate, batch in self._diverged.get(_rate_key(spec), []):
            growth = max(1.0, spec.global_batch_size / batch)
            if spec.learning_rate >= rate * growth ** batch_power(spec.optimizer):
                return False
        return True


def _memory_key(spec: RunSpec) -> Key:
    kind = spec.accelerator_type or ""
    framework = spec.framework, spec.strategy
    return *framework, spec.optimizer, spec.precision, spec.gpus_per_worker, kind


def _rate_key(spec: RunSpec) -> Key:
    warmup = spec.warmup_epochs, spec.warmup_samples
    clip = spec.clip_norm or 0.0
    return spec.optimizer, spec.nesterov, spec.schedule, *warmup, spec.precision, clip
