"""Halving and capping, on made-up trials."""

import pytest

from raybench.search.asha import Cap, Rungs, SearchPolicy, next_evaluation_s
from raybench.spec.run import RunSpec
from tests.search.made_up import evaluation


def test_the_first_at_a_rung_goes_on_and_worse_ones_stop() -> None:
    rungs = Rungs(first_s=1, last_s=16, factor=4)
    assert rungs.allows("a", 1.0, 0.5)
    assert rungs.allows("b", 1.2, 0.6)
    assert not rungs.allows("c", 1.1, 0.1)
    assert rungs.allows("d", 1.1, 0.6)


def test_between_rungs_nothing_is_judged() -> None:
    rungs = Rungs(first_s=1, last_s=16, factor=4)
    rungs.allows("a", 1.0, 0.9)
    assert rungs.allows("b", 0.9, 0.0)
    assert rungs.allows("a", 3.9, 0.0)


def test_a_trial_that_jumps_over_rungs_is_judged_at_the_highest() -> None:
    rungs = Rungs(first_s=1, last_s=64, factor=4)
    rungs.allows("slow", 1.0, 0.9)
    assert rungs.allows("jumps", 17.0, 0.1)  # first at the rung of 16 s
    assert not rungs.allows("next", 16.5, 0.05)


def test_of_many_trials_about_one_in_four_comes_to_the_end() -> None:
    rungs = Rungs(first_s=1, last_s=16, factor=4)
    # Every quarter of the stream has all qualities alike.
    qualities = [(7 * number % 100) / 100 for number in range(400)]
    survivors = [q for i, q in enumerate(qualities) if rungs.allows(str(i), 1.0, q)]
    assert 90 <= len(survivors) <= 130
    assert sum(q >= 0.75 for q in survivors) >= 85


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


def test_a_trial_that_may_still_be_the_cheapest_is_not_capped() -> None:
    cap = Cap(1.0, costs)
    for seconds in (9.0, 9.5, 10.0):
        cap.reached(FOUR, seconds)
    assert cap.allows(ONE, 39)  # 39 worker-seconds against 40
    assert not cap.allows(ONE, 41)
    assert not cap.allows(FOUR, 11)


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


def test_a_policy_says_what_is_compared_with() -> None:
    cap = Cap(1.5, costs, SearchPolicy(compared_with=1))
    for seconds in (4, 10, 10):
        cap.reached(ONE, seconds)
    assert cap.allows(ONE, 5.9)
    assert not cap.allows(ONE, 6)


@pytest.mark.parametrize(
    ("index", "epoch", "epochs", "seconds"),
    [(0, 0.5, 3.0, 1.5), (3, 2.0, 3.0, 5.0), (3, 2.0, 2.25, 4.5)],
)
def test_the_next_evaluation_is_foreseen(
    index: int, epoch: float, epochs: float, seconds: float
) -> None:
    """One second of training between evaluations; the last of the run comes sooner. Of a first
    one, half of its second may have been the machine's."""
    point = evaluation(index + 1.0, index=index, epoch=epoch)
    assert next_evaluation_s(point, epochs) == pytest.approx(seconds)


def test_a_slow_first_evaluation_does_not_stop_what_is_fast_since() -> None:
    """4 s for the first thousand samples, one for each since: the target may be reached at 8 s."""
    cap = Cap(1.0, costs)
    cap.reached(ONE, 8.5)
    slow_start = evaluation(7.0, index=3, samples_per_s=1000.0)
    assert next_evaluation_s(slow_start, 9.0) == pytest.approx(8.0)
    assert cap.allows(ONE, next_evaluation_s(slow_start, 9.0))
    slow_since = evaluation(7.0, index=3, samples_per_s=250.0)  # 1 s each, then 4 s
    assert next_evaluation_s(slow_since, 9.0) == pytest.approx(8.75)
    assert not cap.allows(ONE, next_evaluation_s(slow_since, 9.0))


def test_a_cold_first_evaluation_alone_stops_nothing_that_may_be_in_time() -> None:
    cap = Cap(1.5, costs)
    cap.reached(ONE, 2.0)
    assert cap.allows(ONE, next_evaluation_s(evaluation(1.9, samples_per_s=1000 / 1.9), 9.0))
    assert not cap.allows(ONE, next_evaluation_s(evaluation(2.1, samples_per_s=1000 / 2.1), 9.0))
