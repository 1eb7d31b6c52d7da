"""When a run reached its target between two evaluations."""

import math
from typing import Any

import pytest

from raybench.spec.objective import Objective, time_to_target
from raybench.stats.record import Evaluation, RunRecord
from raybench.stats.standing import TimeToTarget, interpolated_time
from tests.search.made_up import evaluation, record

SHARE = Objective(target=0.9, max_train_seconds=60.0, baseline_value=0.1)
RMSE = Objective(
    target=0.5, max_train_seconds=60.0, metric="rmse", direction="min", baseline_value=2.0
)


def run(
    values: list[float], *, period: float = 1.0, objective: Objective = SHARE, **spec: Any
) -> tuple[RunRecord, list[Evaluation]]:
    """A run with these values, `period` seconds apart, and its record."""
    points = [
        evaluation(period * (index + 1), index=index, value=value)
        for index, value in enumerate(values)
    ]
    reached = time_to_target(
        values,
        [one.train_s for one in points],
        target=objective.target or 0.0,
        hold=objective.hold,
        metric=objective.judged_by,
    )
    own = record().spec.model_copy(update={"objective": objective, **spec})
    return record("0000", own, time_to_target_s=reached), points


def seconds(
    values: list[float], *, baseline_value: float | None = None, **given: Any
) -> tuple[float, bool] | None:
    found = interpolated_time(*run(values, **given), baseline_value=baseline_value)
    return None if found is None else (round(found.seconds, 3), found.is_interpolated)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, 0.8, 1.0], (2.5, True)),  # a period of a third of it
        ([0.5, 0.6, 0.7, 1.0], (4.0, False)),  # of a quarter: as recorded
        ([0.5, 0.9], (2.0, True)),  # exactly at the target
        ([1.0], (0.889, True)),  # from the baseline at 0 s
        ([0.5, math.nan, 1.0], (3.0, False)),
        ([0.5, 0.8], None),
    ],
)
def test_the_time_of_a_metric_that_rises(
    values: list[float], expected: tuple[float, bool] | None
) -> None:
    assert seconds(values) == expected


def test_of_a_metric_that_falls() -> None:
    assert seconds([0.7, 0.4], objective=RMSE) == (1.667, True)
    assert seconds([0.4], objective=RMSE) == (0.938, True)
    assert seconds([math.inf, 0.4], objective=RMSE) == (2.0, False)


def test_with_hold_before_the_first_that_held() -> None:
    held = SHARE.model_copy(update={"hold": 2})
    assert seconds([0.95, 0.8, 1.0, 0.95], objective=held) == (2.5, True)


def test_a_first_evaluation_without_a_known_baseline_stays_as_recorded() -> None:
    unknown = SHARE.model_copy(update={"baseline_value": None})
    assert seconds([1.0], objective=unknown) == (1.0, False)
    assert seconds([1.0], objective=unknown, baseline_value=0.5) == (0.8, True)


def test_what_a_lost_part_of_a_curve_does_not_tell_stays_as_recorded() -> None:
    made, points = run([0.5, 0.8, 1.0])
    raw = TimeToTarget(3.0, is_interpolated=False)
    assert interpolated_time(made, points[2:]) == raw, "continued: what came before is lost"
    assert interpolated_time(made, [points[0], points[2]]) == raw
    assert interpolated_time(made, []) == raw


def test_at_a_budget_nothing_is_interpolated() -> None:
    budget = SHARE.model_copy(update={"kind": "best_at_budget"})
    assert seconds([0.5, 1.0], objective=budget) == (2.0, False)
