"""How a time budget is shared between searching and confirming."""

from dataclasses import replace
from typing import Any

import pytest

from raybench.core.objective import Objective
from raybench.core.record import RunRecord
from raybench.core.spec import RunSpec
from raybench.core.study import build_study
from raybench.search.confirm_budget import SLACK, ConfirmBudget, affordable
from tests.search.made_up import record

STUDY: dict[str, Any] = {
    "objective": {"target": 0.9, "max_train_seconds": 100},
    "search": {"time_budget_s": 400},
    "confirm": {"top": 2, "repeats": 3},
    "space": {"num_workers": [1, 2]},
}


def reached(trial: str, seconds: float | None, *, workers: int = 1, **changes: Any) -> RunRecord:
    """A run that took `seconds` to the target, and a second for evaluation beside."""
    spec = RunSpec(num_workers=workers, objective=Objective(target=0.9))
    if seconds is None:
        ended = record(trial, spec, 50.0, stop="epochs", value=0.5, **changes)
    else:
        ended = record(trial, spec, seconds, **changes)
    return replace(ended, ledger=ended.ledger | {"eval": 1.0})


def test_nothing_is_set_aside_while_nothing_can_be_confirmed() -> None:
    budget = ConfirmBudget(build_study(STUDY, "test")[0])
    budget.add(reached("0000", None))
    budget.add(reached("0001", 3.0, failure="nan"))
    assert budget.reserve_s() == budget.confirming_s() == 0.0


def test_the_best_and_the_cheapest_are_confirmed_with_room_for_bad_luck() -> None:
    budget = ConfirmBudget(build_study(STUDY, "test")[0])
    for number, (seconds, workers) in enumerate([(9.0, 2), (4.0, 4), (5.0, 2), (7.0, 1)]):
        budget.add(reached(f"{number:04d}", seconds, workers=workers))
    assert [cost.trial for cost in budget.chosen()] == ["0001", "0002", "0003"]
    expected = 3 * SLACK * sum(seconds + 1 for seconds in (4, 5, 7))
    assert budget.confirming_s() == pytest.approx(expected)
    assert budget.reserve_s() == pytest.approx(expected + 3 * SLACK * 5)


def test_long_runs_are_set_aside_a_part_of_the_budget_but_one_run_at_least() -> None:
    budget = ConfirmBudget(build_study(STUDY, "test")[0])
    budget.add(reached("0000", 60.0))
    assert budget.reserve_s() == pytest.approx(0.4 * 400)
    budget = ConfirmBudget(build_study(STUDY | {"search": {"time_budget_s": 200}}, "test")[0])
    budget.add(reached("0000", 60.0))
    assert budget.reserve_s() == pytest.approx(SLACK * 61)


def test_without_a_budget_or_a_confirm_phase_nothing_is_set_aside() -> None:
    every: list[dict[str, Any]] = [{"search": {}}, {"confirm": {"top": 0}}]
    for changes in every:
        budget = ConfirmBudget(build_study(STUDY | changes, "test")[0])
        budget.add(reached("0000", 3.0))
        assert budget.reserve_s() == 0.0


@pytest.mark.parametrize(
    ("left_s", "found"),
    [
        (1000, (3, 3)),
        (90, (3, 3)),
        (89, (2, 3)),  # six runs: of fewer configurations, more often
        (50, (2, 2)),
        (30, (1, 3)),
        (25, (1, 2)),
        (10, (1, 1)),
        (9, (0, 0)),
    ],
)
def test_what_is_left_buys_as_many_runs_as_fit(left_s: float, found: tuple[int, int]) -> None:
    assert affordable([10.0, 10.0, 10.0], 3, left_s) == found


def test_what_was_confirmed_already_costs_nothing() -> None:
    budget = ConfirmBudget(build_study(STUDY, "test")[0])
    for number, seconds in enumerate([4.0, 5.0]):
        budget.add(reached(f"{number:04d}", seconds))
    one = SLACK * (5.0 + 6.0)  # both of them once
    assert budget.confirmable([], 3 * one) == (2, 3)
    assert budget.confirmable([], one) == (1, 2)
    answered = [
        reached(f"{trial}-confirm{n}", 4.0, role="confirm", source=trial)
        for trial in ("0000", "0001")
        for n in range(2)
    ]
    assert budget.confirmable(answered, one) == (2, 3)
    assert budget.confirmable([], 6.0) == (1, 1), "one run is tried without room for bad luck"
    assert budget.confirmable([], 1.0) == (0, 0)


def test_of_a_metric_that_falls_the_lowest_are_confirmed() -> None:
    objective = {"kind": "best_at_budget", "metric": "rmse", "direction": "min"}
    budget = ConfirmBudget(build_study(STUDY | {"objective": objective}, "test")[0])
    spec = RunSpec(objective=Objective(**objective))
    for number, value in enumerate((3.0, 1.0, 2.0)):
        budget.add(record(f"{number:04d}", spec, 5.0, stop="max_train_seconds", value=value))
    assert [cost.trial for cost in budget.chosen()] == ["0001", "0002"]
