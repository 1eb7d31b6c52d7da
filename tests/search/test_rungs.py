"""Halving and capping, on made-up trials."""

import pytest

from raybench.search.rungs import Cap, Rungs, next_evaluation_s


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


@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_a_trial_beyond_the_best_time_is_capped(beta: float) -> None:
    cap = Cap(beta)
    assert cap.allows(1e9, 1e9)
    cap.reached(10, 20)
    cap.reached(20, 40)
    assert cap.allows(9.9 * beta, 2 * 9.9 * beta)
    assert not cap.allows(10 * beta, 20 * beta)


def test_a_trial_that_may_still_be_the_cheapest_is_not_capped() -> None:
    cap = Cap(1.0)
    cap.reached(10, 40)
    assert cap.allows(39, 39)  # 39 worker-seconds against 40
    assert not cap.allows(41, 41)
    assert not cap.allows(11, 44)


@pytest.mark.parametrize(
    ("index", "epoch", "epochs", "seconds"),
    [(0, 0.5, 3.0, 2.0), (3, 2.0, 3.0, 5.0), (3, 2.0, 2.25, 4.5)],
)
def test_the_next_evaluation_is_foreseen(
    index: int, epoch: float, epochs: float, seconds: float
) -> None:
    """One second of training between evaluations; the last of the run comes sooner."""
    evaluation = {"index": index, "epoch": epoch, "train_s": index + 1.0}
    assert next_evaluation_s(evaluation, epochs) == pytest.approx(seconds)
