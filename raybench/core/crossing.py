"""When a run crossed its target: between two evaluations, where these are far apart.

A run is seen to be at the target only when it is next evaluated, which is late by half a period on
average: 6, 16, 24 and 34 % of the time where the period is 0.1, 0.3, 0.5 and 0.8 of it. A straight
line between the evaluations before and after keeps that below 4 %; where the period is short, the
line would only add what chance is in the two values.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from raybench.core.objective import TIME
from raybench.core.record import Evaluation, RunRecord

LONG_PERIOD = 0.25
"""Share of the time to target from which on its period of evaluation is too long to be ignored."""
NEAR = 1e-9
"""Share of a time by which it may be another after it was written and read."""


@dataclass(frozen=True)
class Crossing:
    """When a run reached its target, for choosing and for printing."""

    seconds: float
    """On the training clock; the recorded time or, interpolated, a time before it."""
    is_interpolated: bool
    """Whether it lies between two evaluations."""


def crossing(
    record: RunRecord, points: Sequence[Evaluation], *, chance: float | None = None
) -> Crossing | None:
    """Return when a run crossed its target; None if it never reached (and held) it.

    `points` are its evaluations in order. `chance` is what is reached at 0 s, where the objective
    does not say it: a first evaluation at the target is interpolated only if it is known. Where
    the evaluation before is not recorded or not finite, the recorded time stands.
    """
    reached_s = record.time_to_target_s
    if reached_s is None:
        return None
    objective = record.spec.objective
    if objective.kind != TIME or objective.target is None:
        return Crossing(reached_s, is_interpolated=False)
    known = chance if objective.chance is None else objective.chance
    return crossing_of(points, reached_s, target=objective.target, chance=known)


def crossing_of(
    points: Sequence[Evaluation], reached_s: float, *, target: float, chance: float | None
) -> Crossing:
    """Return when a curve crossed any `target`, which it is known to have reached at `reached_s`,
    the seconds of one of `points`."""
    raw = Crossing(reached_s, is_interpolated=False)
    near = reached_s * (1 - NEAR)
    place = bisect_left(points, near, key=attrgetter("train_s"))
    if place == len(points) or not math.isclose(points[place].train_s, reached_s, rel_tol=NEAR):
        return raw
    at, before_s, before = points[place], 0.0, chance
    if at.index > 0:
        if place == 0 or points[place - 1].index != at.index - 1:
            return raw
        before_s, before = points[place - 1].train_s, points[place - 1].value
    period = reached_s - before_s
    if before is None or period <= LONG_PERIOD * reached_s:
        return raw
    way, rest = at.value - before, target - before
    if not math.isfinite(way) or way * rest <= 0:
        return raw
    return Crossing(before_s + period * min(rest / way, 1.0), is_interpolated=True)
