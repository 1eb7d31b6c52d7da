"""What is recorded of a run's steps beside its curve, where the run spec asks for it."""

import math
from typing import TypedDict

import numpy as np

from raybench.spec.run import RunSpec
from raybench.stats.step_times import NoiseSums, StepTimes, bytes_exchanged, terms_of_parts
from raybench.training.base import Step, Trainer, World
from raybench.training.machine import GpuLoad


class Recorded(TypedDict, total=False):
    """What it adds to an Evaluation, under the same names."""

    steps: StepTimes | None
    evenness: float | None
    memory_peak_bytes: int | None
    gpu_utilization: float | None
    bytes_exchanged_per_step: int | None
    noise_scale: NoiseSums | None


class Recording:
    """Asks each worker what it has recorded, and makes one answer of it that all ranks share."""

    def __init__(self, spec: RunSpec, trainer: Trainer, world: World) -> None:
        self._trainer, self._world = trainer, world
        self._global_batch = spec.global_batch_size
        self._gpus = [GpuLoad(index) for index in world.gpus]
        self._bytes = bytes_exchanged(spec, trainer.num_parameters)

    def begin(self) -> None:
        """To be called before `Trainer.train`, off the training clock."""
        for gpu in self._gpus:
            gpu.begin()

    def end(self, steps: list[Step]) -> Recorded:
        """Return what the last `train` has recorded of its steps; a barrier for all ranks."""
        share, memory = self._gpu_share(), self._trainer.memory_peak_bytes()
        log, num = self._trainer.step_log(), len(steps)
        samples = [float(step.num_samples) for step in steps]
        row = [_or_nan(share), _or_nan(memory), *log.seconds, *samples, *log.part_squares]
        rows = np.array(self._world.gather(row))
        shares, memories = (column[~np.isnan(column)] for column in rows[:, :2].T)
        seconds, counts, parts = np.split(rows[:, 2:], [num, 2 * num], axis=1)
        slowest = seconds.max(axis=0)  # NaN where it is one on any rank
        is_whole = counts.sum(axis=0) == self._global_batch
        return Recorded(
            steps=StepTimes.of(slowest[is_whole].tolist(), slowest[~is_whole].tolist()),
            evenness=evenness(seconds),
            memory_peak_bytes=int(memories.max()) if len(memories) else None,
            gpu_utilization=float(shares.mean()) if len(shares) else None,
            bytes_exchanged_per_step=self._bytes,
            noise_scale=_noise(parts, log.whole_squares, counts),
        )

    def _gpu_share(self) -> float | None:
        """Return the mean of this process's GPUs; None where none is known."""
        shares = [share for gpu in self._gpus if (share := gpu.share()) is not None]
        return sum(shares) / len(shares) if shares else None


def evenness(seconds: np.ndarray) -> float | None:
    """Return the fastest worker's seconds over the slowest's; a row of steps for each of them.

    Steps whose time is not known everywhere are left out; None of one worker, or no step.
    """
    known = seconds[:, ~np.isnan(seconds).any(axis=0)].sum(axis=1)
    return float(known.min() / known.max()) if len(known) > 1 and known.max() > 0 else None


def _noise(parts: np.ndarray, wholes: list[float], counts: np.ndarray) -> NoiseSums | None:
    """Return the sums over steps (the columns) of what ranks (the rows) gave; None without."""
    terms = [
        terms_of_parts(part.tolist(), whole, [int(one) for one in count])
        for part, whole, count in zip(parts.T, wholes, counts.T, strict=bool(wholes))
    ]
    return NoiseSums.of([one for one in terms if one is not None])


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
