"""Halving and capping, on made-up trials."""

from typing import Any

import pytest

from raybench.search.asha import Cap, EarlyStopping, Rungs, next_evaluation_s
from raybench.search.factorisation import Factors, factorise
from raybench.search.placement import Placer
from raybench.search.policy import SearchPolicy
from raybench.spec.run import RunSpec
from raybench.spec.study import build_study
from raybench.stats.record import Evaluation, StopReason
from tests.search.made_up import STUDY, evaluation, record


def test_the_first_at_a_rung_goes_on_and_worse_ones_stop() -> None:
    rungs = Rungs(first_s=1, last_s=16, factor=4)
    assert rungs.allows("a", 1.0, 0.5)
    assert rungs.allows("b", 1.2, 0.6)
    assert not rungs.allows("c", 1.1, 0.1)
    assert rungs.allows("d", 1.1, 0.6)


def test_between_rungs_nothing_is_judged_and_of_several_passed_the_highest_counts() -> None:
    rungs = Rungs(first_s=1, last_s=64, factor=4)
    rungs.allows("slow", 1.0, 0.9)
    assert rungs.allows("early", 0.9, 0.0)
    assert rungs.allows("slow", 3.9, 0.0)
    assert rungs.allows("jumps", 17.0, 0.1)  # first at the rung of 16 s
    assert not rungs.allows("next", 16.5, 0.05)


def costs(spec: RunSpec, seconds: float) -> tuple[float, float]:
    return seconds, seconds * spec.num_workers


ONE, TWO, FOUR = (RunSpec(num_workers=count) for count in (1, 2, 4))


@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_a_trial_beyond_the_best_times_is_capped(beta: float) -> None:
    cap = Cap(beta, costs)
    assert cap.allows(ONE, 1e9)
    for seconds in (40, 10, 5, 20):
        cap.reached(TWO, seconds)
    assert cap.allows(TWO, 19.9 * beta), "the third best one is compared with"
    assert not cap.allows(TWO, 20 * beta)


def test_an_early_underestimate_caps_only_as_long_as_it_is_believed() -> None:
    """What was measured is kept, and what it stands for is asked for anew."""
    belief = {"factor": 0.1}

    def believed(spec: RunSpec, seconds: float) -> tuple[float, float]:
        return seconds * belief["factor"], seconds * belief["factor"] * spec.num_workers

    cap = Cap(1.0, believed)
    cap.reached(ONE, 10)  # believed to stand for 1 s
    belief["factor"] = 1.0
    assert cap.allows(ONE, 5.0), "nothing that was measured is faster"
    assert not cap.allows(ONE, 11.0)


def test_of_many_finished_trials_the_best_decide() -> None:
    """They are the fastest and the cheapest; the others are not kept."""
    cap = Cap(1.0, costs)
    for seconds in range(100, 10, -1):
        cap.reached(FOUR, seconds)  # 11, 12 and 13 s, 52 worker-seconds the third of them
    for seconds in (30, 31, 32):
        cap.reached(ONE, seconds)
    assert cap.allows(ONE, 31.9)
    assert cap.allows(FOUR, 12.9)
    assert not cap.allows(FOUR, 13)
    assert not cap.allows(ONE, 32)


@pytest.mark.parametrize(
    ("point", "epochs", "seconds"),
    [
        (evaluation(1.0, epoch=0.5), 3.0, 1.5),  # half of its second may have been the machine's
        (evaluation(4.0, index=3, epoch=2.0), 3.0, 5.0),
        (evaluation(4.0, index=3, epoch=2.0), 2.25, 4.5),  # the last of the run comes sooner
        (evaluation(6.0, index=3, epoch=3.0), 3.0, 7.0),  # a loop that goes on after its epochs
        (evaluation(8.0, index=3, epoch=4.0), 3.0, 9.0),
        (evaluation(7.0, index=3), 9.0, 8.0),  # 4 s for the first epoch, one for each since
        (evaluation(7.0, index=3, samples_per_s=250.0), 9.0, 8.75),  # 1 s each, then 4 s
    ],
)
def test_the_next_evaluation_is_foreseen(point: Evaluation, epochs: float, seconds: float) -> None:
    assert next_evaluation_s(point, epochs) == pytest.approx(seconds)


NARROW, WIDE = (RunSpec(num_workers=k, batch_size_per_worker=64 // k) for k in (1, 2))


def early(policy: SearchPolicy | None = None, **changes: Any) -> EarlyStopping:
    return EarlyStopping(build_study(STUDY | changes, "test")[0], None, policy or SearchPolicy())


LOSS = {"metric": "loss", "direction": "min", "max_train_seconds": 10, "baseline_value": 2.3}


@pytest.mark.parametrize(
    ("objective", "before", "there"),
    [(STUDY["objective"], 0.9, 0.95), (LOSS | {"target": 0.5}, 0.51, 0.49)],
)
def test_the_first_at_the_target_may_still_be_the_soonest(
    objective: dict[str, Any], before: float, there: float
) -> None:
    """Of evaluations in a row the first one counts, however late the last comes."""
    one = early(objective=objective)
    one.learn(record("0000", NARROW, 0.3))
    assert one.judge("0001", NARROW, evaluation(1.0, value=before)) == "cap"
    assert one.judge("0002", NARROW, evaluation(1.0, value=there)) is None


@pytest.mark.parametrize(("seconds", "reason"), [(1.9, None), (2.1, "cap")])
def test_a_cold_first_evaluation_alone_stops_nothing_that_may_be_in_time(
    seconds: float, reason: StopReason | None
) -> None:
    """The next may come after half as long again, and 3 s are allowed."""
    one = early()
    one.learn(record("0000", NARROW, 2.0))
    cold = evaluation(seconds, samples_per_s=1000 / seconds)
    assert one.judge("0001", NARROW, cold) == reason


def test_no_rung_stops_a_trial_that_stands_at_the_target() -> None:
    one = early(objective=STUDY["objective"] | {"hold": 2})
    for number in range(3):
        assert one.judge(f"{number:04d}", NARROW, evaluation(5.0, value=0.955)) is None
    assert one.judge("0003", NARROW, evaluation(5.0, value=0.952)) is None
    assert one.judge("0004", NARROW, evaluation(5.0, value=0.94)) == "scheduler"


PLATEAU = {"target": 0.95, "max_train_seconds": 40, "baseline_value": 0.6}


def ends(one: EarlyStopping, name: str, leaves_s: float) -> StopReason | None:
    """A run at the baseline, give or take, until `leaves_s`, and at the target 1 s later."""
    for index in range(100):
        seconds = 0.25 * (index + 1)
        if seconds >= leaves_s + 1:
            one.learn(record(name, NARROW, seconds))
            return None
        noise = 0.001 * (int(name) % 7)
        value = 0.6 - noise if seconds < leaves_s else 0.8
        reason = one.judge(name, NARROW, evaluation(seconds, index=index, value=value))
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
        one.learn_reference(record("reference0", NARROW, 3.0, role="reference"), points)
    leave = [1.0 if number % 3 == 2 else 1.5 + number / 30 for number in range(30)]
    stopped = [at for number, at in enumerate(leave) if ends(one, f"{number:04d}", at)]
    assert stopped == []
    assert one.judge("0041", NARROW, evaluation(5.0, value=0.9)) is None
    late = [evaluation(s, index=s - 1, value=0.6) for s in (1, 2, 5)]
    assert [one.judge("0040", NARROW, point) for point in late] == [None, None, "scheduler"]


def test_narrow_trials_are_not_compared_with_wide_ones() -> None:
    one = early()
    assert one.judge("0000", WIDE, evaluation(5.0, value=0.9)) is None
    assert one.judge("0001", NARROW, evaluation(5.0, value=0.1)) is None
    assert one.judge("0002", WIDE, evaluation(5.0, value=0.1)) == "scheduler"


def test_taken_apart_they_are_compared_at_the_seconds_of_the_fastest_placement() -> None:
    """On two workers a step takes half as long: 8 s on one are 4 s there."""
    study, space = build_study(STUDY, "test")
    factors = factorise(study, space, equal_frameworks=True)
    assert isinstance(factors, Factors)
    placer = Placer(factors)
    placer.observe("narrow", NARROW, samples=6400, train_s=2.0)
    placer.observe("wide", WIDE, samples=6400, train_s=1.0)
    one = EarlyStopping(study, placer)
    assert one.judge("0000", WIDE, evaluation(4.9, value=0.5)) is None  # past the rung at 1.25 s
    assert one.judge("0001", NARROW, evaluation(9.8, value=0.9)) is None
    assert one.judge("0002", WIDE, evaluation(4.9, value=0.6)) == "scheduler"


def test_a_trial_that_fails_is_compared_with_nothing() -> None:
    one = early()
    one.learn(record("0000", NARROW, 5.0, failure="nan", best_value=None))
    assert one.judge("0001", NARROW, evaluation(5.0, value=0.1)) is None


def test_of_a_metric_that_falls_the_lowest_go_on() -> None:
    one = early(objective=LOSS | {"kind": "best_at_budget"})
    for number, value in enumerate((0.5, 0.4, 0.6, 0.7)):
        one.judge(f"{number:04d}", NARROW, evaluation(5.0, value=value))
    assert one.judge("0004", NARROW, evaluation(5.0, value=0.3)) is None
    assert one.judge("0005", NARROW, evaluation(5.0, value=2.0)) == "scheduler"
    burst = evaluation(5.0, value=float("nan"), best_value=None)
    assert one.judge("0006", NARROW, burst) == "scheduler"


@pytest.mark.parametrize(("sampler", "allowed"), [("grid", 0.59), ("tpe", 2.9)])
def test_a_grid_stops_what_cannot_be_the_best_others_what_cannot_be_the_third(
    sampler: str, allowed: float
) -> None:
    """1.5 times 0.4 s is 0.6 s, 1.5 times the third-best 3 s."""
    one = early(search={"sampler": sampler})
    for number, seconds in enumerate((0.4, 1.0, 2.0)):
        one.learn(record(f"{number:04}", NARROW, seconds))
    for seconds, reason in ((allowed, None), (1.04 * allowed, "cap")):
        there = evaluation(seconds, index=999, samples=10**6, samples_per_s=1e9, epoch=1000.0)
        assert one.judge(f"at {seconds}", NARROW, there) == reason
