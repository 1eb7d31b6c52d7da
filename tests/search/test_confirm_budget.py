"""How a time budget is shared between searching and confirming."""

import time
from typing import Any

import pytest

from raybench.cluster.signals import Interrupt
from raybench.core.clock import PHASES
from raybench.core.objective import Objective
from raybench.core.outcome import run_record
from raybench.core.record import RunRecord
from raybench.core.spec import RunSpec
from raybench.core.study import build_study
from raybench.search.confirm_budget import SLACK, ConfirmBudget, affordable
from raybench.search.deadline import Deadline

STUDY: dict[str, Any] = {
    "objective": {"target": 0.9, "max_train_seconds": 100},
    "search": {"time_budget_s": 400},
    "confirm": {"top": 2, "repeats": 3},
    "space": {"num_workers": [1, 2]},
}


def record(trial: str, seconds: float | None, *, workers: int = 1, **changes: Any) -> RunRecord:
    """A run that took `seconds` to the target, and a second for evaluation beside."""
    ledger = dict.fromkeys((*PHASES, "input"), 0.0) | {"train": seconds or 50.0, "eval": 1.0}
    result = {
        "evaluation": {"time_to_target_s": seconds, "best_accuracy": 0.9 if seconds else 0.5},
        "stop": "target",
        "ledger": ledger,
    } | changes
    spec = RunSpec(num_workers=workers).document()
    return run_record(trial, spec, result, Objective(target=0.9), "scheduler")


def test_nothing_is_set_aside_while_nothing_can_be_confirmed() -> None:
    allowance = ConfirmBudget(build_study(STUDY, "test")[0])
    allowance.add(record("0000", None))
    allowance.add(record("0001", 3.0, failure="nan"))
    assert allowance.reserve_s() == allowance.confirming_s() == 0.0


def test_the_best_and_the_cheapest_are_confirmed_with_room_for_bad_luck() -> None:
    allowance = ConfirmBudget(build_study(STUDY, "test")[0])
    for number, (seconds, workers) in enumerate([(9.0, 2), (4.0, 4), (5.0, 2), (7.0, 1)]):
        allowance.add(record(f"{number:04d}", seconds, workers=workers))
    assert [cost.trial for cost in allowance.chosen()] == ["0001", "0002", "0003"]
    expected = 3 * SLACK * sum(seconds + 1 for seconds in (4, 5, 7))
    assert allowance.confirming_s() == pytest.approx(expected)
    assert allowance.reserve_s() == pytest.approx(expected + 3 * SLACK * 5)


def test_long_runs_are_set_aside_a_part_of_the_budget_but_one_run_at_least() -> None:
    allowance = ConfirmBudget(build_study(STUDY, "test")[0])
    allowance.add(record("0000", 60.0))
    assert allowance.reserve_s() == pytest.approx(0.4 * 400)
    allowance = ConfirmBudget(build_study(STUDY | {"search": {"time_budget_s": 200}}, "test")[0])
    allowance.add(record("0000", 60.0))
    assert allowance.reserve_s() == pytest.approx(SLACK * 61)


def test_without_a_budget_or_a_confirm_phase_nothing_is_set_aside() -> None:
    for changes in ({"search": {}}, {"confirm": {"top": 0}}):
        allowance = ConfirmBudget(build_study(STUDY | changes, "test")[0])
        allowance.add(record("0000", 3.0))
        assert allowance.reserve_s() == 0.0


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


def test_the_search_is_over_when_what_is_left_is_set_aside() -> None:
    control = Deadline(100.0, began=time.perf_counter())
    assert 90 < control.left_s < 95, "closing takes its part"
    assert control.reason() is None
    control.reserve_s = 96.0
    assert control.reason() == "time_budget"
    assert control("0000", {})
    assert not control.stop_all(), "trials end by themselves and give their workers back"
    control.reserve_s = 0.0
    assert control.reason() is None
    late = Deadline(100.0, began=time.perf_counter() - 100)
    assert late.reason() == "time_budget"


def test_an_interrupt_comes_before_the_budget() -> None:
    interrupt = Interrupt()
    control = Deadline(None, interrupt=interrupt)
    assert control.left_s == float("inf")
    assert control.reason() is None
    interrupt.is_set = True
    assert control.reason() == "interrupted"


def test_a_fault_ends_the_study_and_is_raised_after_it() -> None:
    control = Deadline(None)
    control.fault = OSError("gone")
    assert control.over
    with pytest.raises(OSError, match="gone"):
        control.raise_fault()
