"""Which trials of a study may go on: the cap first, then rungs, by study and space."""

from typing import Any

import pytest

from raybench.search.asha import EarlyStopping, SearchPolicy
from raybench.search.factorisation import Factors, factorise
from raybench.search.placement import Placer
from raybench.spec.run import RunSpec
from raybench.spec.study import build_study
from raybench.stats.record import StopReason
from tests.search.made_up import STUDY, evaluation, record

ONE, TWO = (RunSpec(num_workers=k, batch_size_per_worker=64 // k) for k in (1, 2))


def early(policy: SearchPolicy | None = None, **changes: Any) -> EarlyStopping:
    return EarlyStopping(build_study(STUDY | changes, "test")[0], None, policy or SearchPolicy())


def test_the_first_at_the_target_may_still_be_the_soonest() -> None:
    """Of evaluations in a row the first one counts, however late the last comes."""
    one = early()
    one.learn(record("0000", ONE, 0.3))
    assert one.judge("0001", ONE, evaluation(1.0)) == "cap"
    assert one.judge("0002", ONE, evaluation(1.0, value=0.95)) is None


def test_no_rung_stops_a_trial_that_stands_at_the_target() -> None:
    one = early(objective=STUDY["objective"] | {"hold": 2})
    for number in range(3):
        assert one.judge(f"{number:04d}", ONE, evaluation(5.0, value=0.955)) is None
    assert one.judge("0003", ONE, evaluation(5.0, value=0.952)) is None
    assert one.judge("0004", ONE, evaluation(5.0, value=0.94)) == "scheduler"


PLATEAU = {"target": 0.95, "max_train_seconds": 40, "baseline_value": 0.6}


def ends(one: EarlyStopping, name: str, leaves_s: float) -> StopReason | None:
    """A run at the baseline, give or take, until `leaves_s`, and at the target 1 s later."""
    for index in range(100):
        seconds = 0.25 * (index + 1)
        if seconds >= leaves_s + 1:
            one.learn(record(name, ONE, seconds))
            return None
        noise = 0.001 * (int(name) % 7)
        value = 0.6 - noise if seconds < leaves_s else 0.8
        reason = one.judge(name, ONE, evaluation(seconds, index=index, value=value))
        if reason is not None:
            return reason
    return None


@pytest.mark.parametrize("knows_reference", [False, True])
def test_runs_at_the_baseline_go_on_while_those_that_arrived_stood_there(
    knows_reference: bool,
) -> None:
    """The rung stands at 1.25 s; a third leaves the plateau before, all others after it."""
    one = early(objective=PLATEAU, search={"cap_factor": None})
    if knows_reference:
        points = [evaluation(s, index=s - 1, value=0.6 if s < 3 else 0.96) for s in (1, 2, 3)]
        one.learn_reference(record("reference0", ONE, 3.0, role="reference"), points)
    leave = [1.0 if number % 3 == 2 else 1.5 + number / 30 for number in range(30)]
    stopped = [at for number, at in enumerate(leave) if ends(one, f"{number:04d}", at)]
    assert stopped == []
    assert one.judge("0041", ONE, evaluation(5.0, value=0.9)) is None
    late = [evaluation(s, index=s - 1, value=0.6) for s in (1, 2, 5)]
    assert [one.judge("0040", ONE, point) for point in late] == [None, None, "scheduler"]


@pytest.mark.parametrize(
    "changes",
    [
        {"search": {"cap_factor": None}},
        {"objective": {"kind": "best_at_budget", "max_train_seconds": 10}},
    ],
)
def test_there_may_be_no_cap(changes: dict[str, Any]) -> None:
    one = early(**changes)
    one.learn(record("0000", ONE, 0.3))
    assert one.judge("0001", ONE, evaluation(1.0)) is None


@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_a_grid_is_exact(sampler: str) -> None:
    """It stops only what cannot win any more: no trial because others are ahead of it."""
    one = early(search={"sampler": sampler})
    assert one.judge("0000", ONE, evaluation(5.0, value=0.9)) is None
    reason = one.judge("0001", ONE, evaluation(5.0, value=0.1))
    assert reason == ("scheduler" if sampler == "tpe" else None)


def test_narrow_trials_are_not_compared_with_wide_ones() -> None:
    one = early()
    assert one.judge("0000", TWO, evaluation(5.0, value=0.9)) is None
    assert one.judge("0001", ONE, evaluation(5.0, value=0.1)) is None
    assert one.judge("0002", TWO, evaluation(5.0, value=0.1)) == "scheduler"


def test_taken_apart_they_are_compared_at_the_seconds_of_the_fastest_placement() -> None:
    """On two workers a step takes half as long: 8 s on one are 4 s there."""
    study, space = build_study(STUDY, "test")
    factors = factorise(study, space, equal_frameworks=True)
    assert isinstance(factors, Factors)
    placer = Placer(factors)
    placer.observe("narrow", ONE, samples=6400, train_s=2.0)
    placer.observe("wide", TWO, samples=6400, train_s=1.0)
    one = EarlyStopping(study, placer)
    assert one.judge("0000", TWO, evaluation(4.9, value=0.5)) is None  # past the rung at 1.25 s
    assert one.judge("0001", ONE, evaluation(9.8, value=0.9)) is None
    assert one.judge("0002", TWO, evaluation(4.9, value=0.6)) == "scheduler"


@pytest.mark.parametrize(("first_rung", "reason"), [(1 / 32, None), (1 / 4, "scheduler")])
def test_where_rungs_stand_is_the_policy_s(first_rung: float, reason: str | None) -> None:
    """At 2.5, or at 0.31, 1.25 and 5 s of 10."""
    one = early(SearchPolicy(first_rung=first_rung))
    assert one.judge("0000", ONE, evaluation(1.3, value=0.9)) is None
    assert one.judge("0000", ONE, evaluation(2.6, index=1, value=0.9)) is None
    assert one.judge("0001", ONE, evaluation(1.3, value=0.95)) is None
    assert one.judge("0001", ONE, evaluation(2.6, index=1, value=0.1)) == reason


def test_a_trial_that_fails_is_compared_with_nothing() -> None:
    one = early()
    one.learn(record("0000", ONE, 5.0, failure="nan", best_value=None))
    assert one.judge("0001", ONE, evaluation(5.0, value=0.1)) is None


LOSS = {"metric": "loss", "direction": "min", "max_train_seconds": 10, "baseline_value": 2.3}


def test_of_a_metric_that_falls_the_lowest_go_on() -> None:
    one = early(objective=LOSS | {"kind": "best_at_budget"})
    for number, value in enumerate((0.5, 0.4, 0.6, 0.7)):
        one.judge(f"{number:04d}", ONE, evaluation(5.0, value=value))
    assert one.judge("0004", ONE, evaluation(5.0, value=0.3)) is None
    assert one.judge("0005", ONE, evaluation(5.0, value=2.0)) == "scheduler"
    burst = evaluation(5.0, value=float("nan"), best_value=None)
    assert one.judge("0006", ONE, burst) == "scheduler"


def test_a_curve_of_an_earlier_session_counts_with_its_lowest_so_far() -> None:
    one = early(objective=LOSS | {"target": 0.05})
    points = [evaluation(s, index=i, value=v) for i, (s, v) in enumerate([(0.5, 0.2), (5.0, 0.9)])]
    one.learn(record("0000", ONE, 5.0, stop="epochs", value=0.9, best_value=0.2), points)
    assert one.judge("0001", ONE, evaluation(5.0, value=0.3)) == "scheduler"
    assert one.judge("0002", ONE, evaluation(5.0, value=0.1)) is None


def test_at_a_budget_it_counts_with_its_last() -> None:
    one = early(objective=LOSS | {"kind": "best_at_budget"})
    points = [evaluation(s, index=i, value=v) for i, (s, v) in enumerate([(0.5, 0.2), (5.0, 0.9)])]
    one.learn(record("0000", ONE, 5.0, stop="epochs", value=0.9, best_value=0.9), points)
    assert one.judge("0001", ONE, evaluation(5.0, value=0.3)) is None


def test_at_a_target_below_a_trial_is_not_capped() -> None:
    one = early(objective=LOSS | {"target": 0.5})
    one.learn(record("0000", ONE, 0.3))
    assert one.judge("0001", ONE, evaluation(1.0, value=0.51)) == "cap"
    assert one.judge("0002", ONE, evaluation(1.0, value=0.49)) is None


@pytest.mark.parametrize(("sampler", "allowed"), [("grid", 0.59), ("tpe", 2.9)])
def test_a_grid_stops_what_cannot_be_the_best_others_what_cannot_be_the_third(
    sampler: str, allowed: float
) -> None:
    """1.5 times 0.4 s is 0.6 s, 1.5 times the third-best 3 s."""
    one = early(search={"sampler": sampler})
    for number, seconds in enumerate((0.4, 1.0, 2.0)):
        one.learn(record(f"{number:04}", ONE, seconds))
    for seconds, reason in ((allowed, None), (1.04 * allowed, "cap")):
        there = evaluation(seconds, index=999, samples=10**6, samples_per_s=1e9, epoch=1000.0)
        assert one.judge(f"at {seconds}", ONE, there) == reason
