"""What one run says of speed: the first epoch, and the steady state after it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raybench.core.record import Evaluation, StepTimes

SHARES = (0.25, 0.5, 0.75, 0.95)
GRID = np.arange(1, 401) / 400
"""Shares of an interval's steps, SHARES among them."""
WHOLE_EPOCH = 1 - 1e-9
"""An epoch that is done, however its share was rounded."""


@dataclass(frozen=True)
class Steady:
    """Steps after the warm-up; the median bears a stall, `mean_s` and `longest_s` show it."""

    num_steps: int
    """Steps that were timed one by one; 0 where only intervals between evaluations were."""
    median_s: float
    """Seconds of an optimizer step."""
    p25_s: float
    p75_s: float
    p95_s: float
    longest_s: float
    """The longest step of the run, the first epoch's too."""
    mean_s: float
    """All seconds over all steps, stalls included."""
    input_share: float
    """Part of these seconds that waited for data; NaN where that was not recorded."""
    is_warm: bool
    """False where a run was so short that its first epoch is in here."""


def first_epoch_seconds(curve: Sequence[Evaluation]) -> tuple[float, int]:
    """Return seconds on the training clock and samples up to the end of the first epoch.

    Up to the first evaluation at its end or behind it; of a run that ended before, of all of it.
    """
    ends = [point for point in curve if point.epoch >= WHOLE_EPOCH] or list(curve[-1:])
    return (ends[0].train_s, ends[0].samples) if ends else (math.nan, 0)


def epoch_samples(curve: Sequence[Evaluation]) -> int:
    """Return the samples of an epoch, which no step has more of."""
    return round(curve[-1].samples / curve[-1].epoch)


def steady(curve: Sequence[Evaluation], step_samples: int) -> Steady | None:
    """Return the steady state of a run: what follows its first epoch.

    `step_samples` are those of a step that is not cut short by the end of an epoch. Where no such
    step was timed, it takes as long as that many samples did between two evaluations.
    Of a run of one epoch, what follows its first evaluation; of a run with one evaluation, all of
    it. None without an evaluation.
    """
    if not curve:
        return None
    before, points, is_warm = _after_warm_up(curve)
    samples = points[-1].samples - (before.samples if before else 0)
    seconds = points[-1].train_s - (before.train_s if before else 0.0)
    mean = seconds / samples * step_samples
    waited = _input_seconds(points[-1]) - (_input_seconds(before) if before else 0.0)
    share = waited / seconds if seconds > 0 else math.nan
    timed = [point.steps for point in points if point.steps is not None]
    if timed:
        p25, median, p75, p95 = pooled(timed)
        return Steady(
            num_steps=sum(one.num for one in timed),
            median_s=median,
            p25_s=p25,
            p75_s=p75,
            p95_s=p95,
            longest_s=max(point.steps.max_s for point in curve if point.steps is not None),
            mean_s=mean,
            input_share=share,
            is_warm=is_warm,
        )
    each = [step_samples / point.samples_per_s for point in points if point.samples_per_s > 0]
    if not each:
        return None
    longest = max(step_samples / one.samples_per_s for one in curve if one.samples_per_s > 0)
    p25, median, p75, p95 = (float(value) for value in np.percentile(each, (25, 50, 75, 95)))
    return Steady(0, median, p25, p75, p95, longest, mean, share, is_warm)


def _input_seconds(point: Evaluation) -> float:
    return math.nan if point.input_s is None else point.input_s


def _after_warm_up(
    curve: Sequence[Evaluation],
) -> tuple[Evaluation | None, Sequence[Evaluation], bool]:
    """Return the last evaluation of the warm-up, those behind it, whether it was an epoch."""
    for index, point in enumerate(curve[:-1]):
        if point.epoch >= WHOLE_EPOCH:
            return point, curve[index + 1 :], True
    return (curve[0], curve[1:], False) if len(curve) > 1 else (None, curve, False)


def pooled(intervals: Sequence[StepTimes]) -> list[float]:
    """Return the quantiles SHARES of the steps of several intervals together.

    Between the quantiles that an interval tells its steps are taken to lie evenly. Beyond the
    outer ones they are taken for these: how far apart such steps lie is not known.
    """
    told = [(one.p25_s, one.median_s, one.p75_s, one.p95_s) for one in intervals]
    seconds = np.concatenate([np.interp(GRID, SHARES, quantiles) for quantiles in told])
    order = np.argsort(seconds, kind="stable")
    steps = np.repeat([one.num / len(GRID) for one in intervals], len(GRID))[order]
    reached = np.cumsum(steps) / steps.sum() + 1e-9  # what rounding could keep from a share
    return [float(seconds[order[int(np.searchsorted(reached, share))]]) for share in SHARES]
