"""Learning-rate schedules: pure functions of training samples seen, never of seconds."""

import math
from collections.abc import Callable

from raybench.core.spec import RunSpec

Schedule = Callable[[float], float]
"""Samples seen before the step -> learning rate of the step."""

RAMP_START = 1e-5
RAMP_EPOCHS = 5
RAMP_DECAY = 0.8


def scaled_rate(spec: RunSpec) -> float:
    """Peak learning rate after the scaling rule over workers.

    linear: Goyal et al. 2017 (arXiv 1706.02677), section 2.1; sqrt: Krizhevsky 2014
    (arXiv 1404.5997), usual for Adam-like optimizers.
    """
    factors = {"none": 1.0, "linear": float(spec.num_workers), "sqrt": spec.num_workers**0.5}
    return float(spec.learning_rate * factors[spec.learning_rate_scaling])


def warmup_start(spec: RunSpec) -> float:
    """Rate at sample 0 of a warm-up: the unscaled rate (Goyal et al.), 0 if nothing is scaled."""
    return spec.learning_rate if scaled_rate(spec) > spec.learning_rate else 0.0


def ramp_decay(epoch: float, *, peak: float) -> float:
    """Return the rate of study 2 at a whole epoch: 5 epochs of ramp, then decay by 0.8.

    The study's peak is 5e-5 x workers: `learning_rate: 5.0e-5, learning_rate_scaling: linear`.
    """
    whole = math.floor(epoch)
    if whole < RAMP_EPOCHS:
        return RAMP_START + (peak - RAMP_START) * whole / RAMP_EPOCHS
    return RAMP_START + (peak - RAMP_START) * float(RAMP_DECAY ** (whole - RAMP_EPOCHS))


def build_schedule(spec: RunSpec, samples_per_epoch: int) -> Schedule:
    """Return the schedule of a run over a training set of `samples_per_epoch` samples."""
    peak = scaled_rate(spec)
    start = warmup_start(spec)
    warmup = spec.warmup_epochs * samples_per_epoch
    horizon = spec.epochs * samples_per_epoch
    # A warm-up step uses the rate at its end, so that the first step is never at rate 0.
    step = spec.global_batch_size

    def rate(samples: float) -> float:
        if spec.schedule == "ramp_decay":
            return ramp_decay(samples / samples_per_epoch, peak=peak)
        if samples < warmup:
            return start + (peak - start) * min(1.0, (samples + step) / warmup)
        if spec.schedule == "cosine":
            progress = min(1.0, (samples - warmup) / max(horizon - warmup, 1.0))
            return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
        return peak

    return rate
