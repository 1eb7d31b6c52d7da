"""Regions that failed: configurations that would fail in the same way are not tried again."""

from collections.abc import Callable, Iterable

from raybench.core.spec import RunSpec, short
from raybench.search.sampling.default_rates import batch_power, scaling_of
from raybench.speed.factorisation import RESOURCES

Key = tuple[str, ...]
RATE_AND_BATCH = ("learning_rate", "batch_size_per_worker", "accumulate", "num_workers")
NO_ARITHMETIC: Key = (
    *("objective", "seed", "bucket_mb", "prefetch", "strategy", "eval_every_samples"),
    *("checkpoint_every_s", "record_steps", *RESOURCES),
)
"""Keys that change no number of a training, or (the seed) none by intent."""
MOST_SAID = 3


class Infeasible:
    """Remembers runs out of memory and runs into NaN; says which proposals repeat them.

    Memory grows with the samples of one pass, so after a run out of memory, per-worker
    batches as large or larger are left out for the same framework and optimizer (an
    optimizer's state takes memory too). A rate that diverges is left out, and all above it,
    where nothing but rate and batch differs; a larger global batch, whose gradients have less
    noise, is given the rate that its scaling rule makes equal. `equal_frameworks`: a curve of one
    is that of the other.
    """

    def __init__(
        self,
        *,
        equal_frameworks: bool = False,
        has_room: Callable[[RunSpec], bool] = lambda spec: True,
    ) -> None:
        self.has_room = has_room
        """Whether the cluster holds a run's workers."""
        self.num_failed = 0
        """Runs that were added; while it stays the same, so do the answers."""
        self._out_of_memory: dict[Key, RunSpec] = {}
        """The smallest batch of each kind."""
        self._diverged: dict[Key, list[RunSpec]] = {}
        left_out = {*RATE_AND_BATCH, *NO_ARITHMETIC, *(["framework"] if equal_frameworks else [])}
        self._rate_keys = [key for key in RunSpec.model_fields if key not in left_out]

    def add(self, failure: str, spec: RunSpec) -> None:
        """Take a failed run's spec; failures that are not the configuration's are ignored."""
        self.num_failed += 1
        if failure == "oom":
            before = self._out_of_memory.get(_memory_key(spec), spec)
            least = min(before, spec, key=lambda one: one.batch_size_per_worker)
            self._out_of_memory[_memory_key(spec)] = least
        elif failure == "nan":
            self._diverged.setdefault(self._rate_key(spec), []).append(spec)

    def is_feasible(self, spec: RunSpec) -> bool:
        """Whether a run of `spec` has room, and would not fail as an earlier one has."""
        if not self.has_room(spec):
            return False
        limit = self._out_of_memory.get(_memory_key(spec))
        if limit is not None and spec.batch_size_per_worker >= limit.batch_size_per_worker:
            return False
        diverged = self._diverged.get(self._rate_key(spec), []) if self._diverged else []
        for failed in diverged:
            growth = max(1.0, spec.global_batch_size / failed.global_batch_size)
            if _rate(spec) >= _rate(failed) * growth ** batch_power(spec.optimizer):
                return False
        return True

    def sentence(self, keys: Iterable[str], num_left_out: int) -> str | None:
        """Say what was left out, and why; `keys` are `label_keys`. None where nothing was."""
        if not num_left_out:
            return None
        shown = list(keys)
        found = []
        for specs in self._diverged.values():
            one = min(specs, key=_rate)
            found.append(
                f"{_arm(one, shown)} at learning rate {one.learning_rate:.3g} and above with "
                f"{one.global_batch_size} samples a step (NaN)"
            )
        found += [
            f"{one.framework} {_arm(one, [])} with {one.batch_size_per_worker} samples a worker "
            "and more (out of memory)"
            for one in self._out_of_memory.values()
        ]
        rest = len(found) - MOST_SAID
        more = [f"{rest} such regions more"] if rest > 0 else []
        times = "once" if num_left_out == 1 else f"{num_left_out} times"
        return (
            f"Drawn {times} and not tried, because a run alike had failed: "
            f"{'; '.join([*found[:MOST_SAID], *more])}."
        )

    def _rate_key(self, spec: RunSpec) -> Key:
        return tuple(str(getattr(spec, key)) for key in self._rate_keys)


def _rate(spec: RunSpec) -> float:
    """Return the rate that its first steps have: scaled by the workers."""
    return spec.learning_rate * scaling_of(spec.num_workers, spec.learning_rate_scaling)


def _memory_key(spec: RunSpec) -> Key:
    kind = spec.accelerator_type or ""
    state = str(spec.momentum == 0), str(spec.ema_decay is None), str(spec.frozen_epochs == "all")
    framework = spec.framework, spec.strategy
    return *framework, spec.optimizer, spec.precision, str(spec.gpus_per_worker), kind, *state


def _arm(spec: RunSpec, keys: Iterable[str]) -> str:
    told = [key for key in keys if key not in RATE_AND_BATCH and key not in NO_ARITHMETIC]
    return " ".join([spec.optimizer, *(f"{key} {short(getattr(spec, key))}" for key in told)])
