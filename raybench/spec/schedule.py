"""Learning-rate schedules: the rate as a function of the number of training samples."""

import math
from collections.abc import Callable

from raybench.spec.run import RunSpec

RAMP_START = 1e-5
"""Initial learning rate of `ramp_decay`."""
RAMP_EPOCHS = 5
"""Number of epochs in which the rate of `ramp_decay` rises."""
RAMP_DECAY = 0.8
"""Factor by which the rate of `ramp_decay` decays toward RAMP_START per epoch after the rise."""

CYCLE_RISE = 0.3
"""Fraction of `one_cycle` in which the rate rises (Smith, Topin 2017, arXiv 1708.07120; as in
torch.optim.lr_scheduler.OneCycleLR)."""
CYCLE_START = 1 / 25
"""Initial rate of `one_cycle` as a fraction of the peak rate."""


def scaled_rate(spec: RunSpec) -> float:
    """Return the peak learning rate of a run: `learning_rate` times the factor of
    `learning_rate_scaling`."""
    return spec.learning_rate * scaling_factor(spec.num_workers, spec.learning_rate_scaling)


def scaling_factor(num_workers: int, rule: str) -> float:
    """Return the factor by which `learning_rate_scaling` multiplies the learning rate.

    `linear` is from Goyal et al. 2017 (arXiv 1706.02677), section 2.1; `sqrt` is from Krizhevsky
    2014 (arXiv 1404.5997) and typical for Adam-like optimizers.
    """
    return float(num_workers ** {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[rule])


def ramp_decay(epoch: float, *, peak: float) -> float:
    """Return the learning rate of `ramp_decay`: a ramp from RAMP_START to `peak`, then a decay back
    toward RAMP_START.

    The published study (`raybench scale finetune_lr_schedule`) has a peak of 5e-5 x workers, which
    is `learning_rate: 5.0e-5` with `learning_rate_scaling: linear`.

    Args:
        epoch: Epochs trained so far; the rate changes only after a full epoch.
        peak: Learning rate at the end of the ramp.
    """
    full_epochs = math.floor(epoch)
    if full_epochs < RAMP_EPOCHS:
        return RAMP_START + (peak - RAMP_START) * full_epochs / RAMP_EPOCHS
    return RAMP_START + (peak - RAMP_START) * float(RAMP_DECAY ** (full_epochs - RAMP_EPOCHS))


def one_cycle(progress: float, *, final: float) -> float:
    """Return the learning rate of `one_cycle` as a fraction of the peak rate.

    The rate rises from CYCLE_START to 1 and then falls to `final`; both the rise and the fall are
    half a cosine.

    Args:
        progress: Trained fraction of the samples of the schedule, from 0 to 1.
        final: Final rate as a fraction of the peak rate.
    """
    if progress < CYCLE_RISE:
        return _cosine(progress / CYCLE_RISE, begin=CYCLE_START, end=1.0)
    return _cosine((progress - CYCLE_RISE) / (1 - CYCLE_RISE), begin=1.0, end=final)


def shape(spec: RunSpec, progress: float) -> float:
    """Return the learning rate of a run as a fraction of the peak rate, for all schedules except
    `step` and `ramp_decay`.

    Args:
        spec: Run spec.
        progress: Trained fraction of the samples after the warm-up, from 0 to 1.
    """
    final = spec.final_rate
    match spec.schedule:
        case "cosine":
            return _cosine(progress, begin=1.0, end=final)
        case "linear":
            return 1.0 + (final - 1.0) * progress
        case "polynomial":
            return final + (1.0 - final) * float((1.0 - progress) ** spec.decay_power)
        case "one_cycle":
            return one_cycle(progress, final=final)
    return 1.0


def build_schedule(spec: RunSpec, samples_per_epoch: int) -> Callable[[float], float]:
    """Return the learning-rate schedule of a run.

    Args:
        spec: Run spec.
        samples_per_epoch: Training samples per epoch.

    Returns:
        Function that takes the number of samples trained before a step and returns the learning
        rate of this step.
    """
    peak = scaled_rate(spec)
    # A warm-up begins at the unscaled rate (Goyal et al.), or at 0 if scaling does not raise it.
    start = spec.learning_rate if peak > spec.learning_rate else 0.0
    warmup = spec.warmup_samples or spec.warmup_epochs * samples_per_epoch
    horizon = spec.epochs * samples_per_epoch
    # A step of the warm-up uses the rate at the end of the step, so that the first is not 0.
    step = spec.global_batch_size

    def rate(samples: float) -> float:
        if spec.schedule == "ramp_decay":
            return ramp_decay(samples / samples_per_epoch, peak=peak)
        if samples < warmup:
            return start + (peak - start) * min(1.0, (samples + step) / warmup)
        if spec.schedule == "step":
            drops = sum(samples >= share * horizon for share in spec.step_at)
            return peak * float(spec.step_factor**drops)
        progress = min(1.0, (samples - warmup) / max(horizon - warmup, 1.0))
        return peak * shape(spec, progress)

    return rate


def _cosine(progress: float, *, begin: float, end: float) -> float:
    """Return the value at `progress` on a half cosine from `begin` to `end`."""
    return end + (begin - end) * 0.5 * (1.0 + math.cos(math.pi * progress))
