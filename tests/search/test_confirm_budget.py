"""Candidates and cost of the confirmation, and its share of the time budget."""

from dataclasses import replace
from typing import Any

import pytest

from raybench.search.confirm_budget import RACE_SLACK, SOLO_SLACK, ConfirmBudget, Cost, Plan
from raybench.spec.objective import Objective, StopReason
from raybench.spec.run import RunSpec
from raybench.spec.study import build_study
from raybench.stats.record import RunRecord
from tests.search.made_up import evaluation, record

STUDY: dict[str, Any] = {
    "objective": {"target": 0.9, "max_train_seconds": 100},
    "search": {"time_budget_s": 400},
    "confirm": {"race": 6, "fresh": 3},
    "space": {"num_workers": [1, 2]},
}


def reached(trial: str, seconds: float | None, *, workers: int = 1, **changes: Any) -> RunRecord:
    """Return a run that took `seconds` to the target and a second for evaluation; each trial has
    another learning rate."""
    rate = 1e-3 * 2 ** int(trial[-1])
    spec = RunSpec(num_workers=workers, learning_rate=rate, objective=Objective(target=0.9))
    if seconds is None:
        ended = record(trial, spec, 50.0, stop="epochs", value=0.5, **changes)
    else:
        ended = record(trial, spec, seconds, **changes)
    return replace(ended, ledger=ended.ledger | {"eval": 1.0})


def budget_of(*records: RunRecord, **changes: Any) -> ConfirmBudget:
    budget = ConfirmBudget(build_study(STUDY | changes, "test")[0])
    budget.learn(records)
    return budget


def names_of(costs: list[Cost]) -> list[str]:
    return [cost.trial for cost in costs]


def test_nothing_is_reserved_while_nothing_can_be_confirmed():
    budget = budget_of(reached("0000", None), reached("0001", 3.0, failure="nan"))
    assert budget.reserve_s() == budget.confirming_s() == 0.0
    budget.add(reached("0002", 3.0))
    assert budget.reserve_s() > 0


def with_four() -> ConfirmBudget:
    """Four trials; 0001 is the fastest and 0003 the cheapest. Narrow ones run two at once."""
    times = [(9.0, 2), (4.0, 4), (5.0, 2), (7.0, 1)]
    budget = budget_of(
        *(reached(f"{n:04d}", seconds, workers=k) for n, (seconds, k) in enumerate(times))
    )
    budget.at_once = lambda spec: 2 if spec.num_workers == 1 else 1
    return budget


def test_the_best_and_the_cheapest_race_and_winners_run_alone():
    budget = with_four()
    racing = budget.candidates()
    assert names_of(racing.fastest) == ["0001", "0002", "0003"]
    assert names_of(racing.cheapest) == ["0003", "0002", "0001"]
    assert names_of(budget.winners()) == ["0001", "0003"]
    # Both races have the same three; seconds of a run and one beside.
    race = RACE_SLACK * 2 * (5 + 6 + 8 / 2)
    assert budget.race_s(6) == pytest.approx(race)
    alone = 3 * SOLO_SLACK * (5 + 8)
    assert budget.confirming_s() == pytest.approx(race + alone)
    assert budget.reserve_s() == pytest.approx(race + alone + 3 * SOLO_SLACK * 5)


@pytest.mark.parametrize(
    ("changes", "racing"),
    [
        ({"learning_rate": 1.2e-3}, ["0001"]),
        ({"seed": 7}, ["0001"]),
        ({"learning_rate": 1.4e-3}, ["0001", "0000"]),
        ({"learning_rate": 1.2e-3, "num_workers": 2}, ["0001", "0000"]),
        ({"learning_rate": 1.2e-3, "weight_decay": 0.1}, ["0001", "0000"]),
    ],
)
def test_only_the_best_of_similar_configurations_races(changes, racing):
    first = reached("0000", 4.0)
    spec = first.spec.model_copy(update=changes)
    budget = budget_of(first, replace(first, trial="0001", spec=spec, time_to_target_s=3.0))
    assert names_of(budget.candidates().fastest) == racing


def test_with_a_price_the_cheapest_have_the_lowest_bill():
    """The bill includes the time that workers do not train."""
    slow = reached("0001", 7.0)
    slow = replace(slow, ledger=slow.ledger | {"eval": 9.0})
    budget = budget_of(reached("0000", 4.0, workers=2), slow, price=1.0)
    assert names_of(budget.candidates().cheapest) == ["0000", "0001"]


def test_the_reserve_is_a_part_of_the_budget_but_at_least_one_run():
    budget = budget_of(reached("0000", 60.0))
    assert budget.reserve_s() == pytest.approx(0.4 * 400)
    budget.left_s = 250.0  # what came before the search took time too
    assert budget.reserve_s() == pytest.approx(0.4 * 250)
    budget.left_s = 200.0
    assert budget.reserve_s() == pytest.approx(SOLO_SLACK * 61)


@pytest.mark.parametrize(
    ("left_s", "plan"),
    [
        (1000.0, Plan(6, 3)),
        (80.0, Plan(6, 2)),  # runs alone take half of it at most
        (50.0, Plan(3, 1)),
        (6.0, Plan(0, 1)),  # tried without room for bad luck
        (1.0, Plan(0, 0)),
    ],
)
def test_little_time_is_shared_by_the_race_and_the_runs_alone(left_s, plan):
    assert with_four().plan([], left_s) == plan


def test_confirmation_runs_of_earlier_sessions_cost_nothing():
    budget = with_four()
    total_s = budget.confirming_s()
    race = [reached(f"{trial}-race0", 4.0, role="race", source=trial) for trial in ("0001", "0002")]
    alone = [reached("0001-confirm0", 4.0, role="confirm", source="0001")]
    allowed_s = RACE_SLACK * (5 + 6) + SOLO_SLACK * 5
    assert budget.plan([*race, *alone], total_s - allowed_s + 0.01) == Plan(6, 3)
    assert budget.plan([*race, *alone], total_s - allowed_s - 0.01) != Plan(6, 3)
    besides = [*race, *alone, *20 * race]  # as `--more` leaves them
    assert budget.plan(besides, budget.fresh_s(3) - SOLO_SLACK * 5 + 0.01) == Plan(6, 3)
    assert budget.plan(besides, budget.fresh_s(3) - SOLO_SLACK * 5 - 0.01) != Plan(6, 3)
    two_of_each_s = 2 * SOLO_SLACK * 13
    assert budget.num_solo_runs(["0001", "0003"], alone, two_of_each_s - SOLO_SLACK * 5) == (2, 2)
    assert budget.num_solo_runs(["0001", "0003"], [], 6.0) == (1, 1), "without room for bad luck"
    assert budget.num_solo_runs(["0001"], [], 1.0) == (0, 0)


def test_the_lowest_values_of_a_loss_are_confirmed():
    """A repeat of a run that was stopped early costs as much as a whole run."""
    objective: dict[str, Any] = {"kind": "best_at_budget", "metric": "rmse", "direction": "min"}
    objective |= {"max_train_seconds": 5}
    runs = []
    for number, (value, seconds) in enumerate([(3.0, 5.0), (1.0, 5.0), (2.0, 1.0)]):
        spec = RunSpec(objective=Objective(**objective), learning_rate=1e-3 * 2**number)
        stop: StopReason | None = "max_train_seconds" if seconds == 5 else None
        runs.append(record(f"{number:04d}", spec, seconds, stop=stop, value=value))
    budget = budget_of(*runs, objective=objective)
    racing = [(cost.trial, cost.train_s) for cost in budget.candidates().fastest]
    assert racing == [("0001", 5.0), ("0002", 5.0), ("0000", 5.0)]
    assert budget.candidates().cheapest == [], "seconds are the same for all"
    assert names_of(budget.winners()) == ["0001"]


def test_the_cost_of_a_run_includes_the_time_to_its_next_evaluation():
    budget = budget_of()
    budget.baseline_value = 0.1
    spec = RunSpec(num_workers=2, objective=Objective(target=0.8))
    curve = [evaluation(4.0, value=0.7), evaluation(8.0, index=1, value=0.9)]
    budget.learn([record("0000", spec, 8.0)], {"0000": curve})
    (cost,) = budget.candidates().fastest
    assert (cost.rank, cost.worker_seconds) == (pytest.approx(6.0), pytest.approx(12.0))
    assert cost.train_s == 8.0
