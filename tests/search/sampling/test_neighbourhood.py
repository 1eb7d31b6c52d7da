"""Which proposals are told apart, and the neighbours of the best."""

from typing import Any

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, create_trial

from raybench.search.asha import SearchPolicy
from raybench.search.sampling.optuna_space import distributions
from raybench.search.sampling.proposer import NearIndex, is_near, neighbours, new_neighbour
from raybench.spec.study import build_study
from tests.search.made_up import RATES, SHARE

LOGARITHMIC = FloatDistribution(1e-4, 1e-1, log=True)
CHOICES = CategoricalDistribution(("adam", "lars"))


@pytest.mark.parametrize(
    ("rate", "optimizer", "near"),
    [
        (1.0e-3, "adam", True),
        (1.2e-3, "adam", True),
        (1.4e-3, "adam", False),  # three decades: 4 % of them are a factor of 1.32
        (1.0e-3, "lars", False),
    ],
)
def test_near_is_a_small_share_of_the_range(rate: float, optimizer: str, near: bool) -> None:
    known = {"rate": LOGARITHMIC, "optimizer": CHOICES}
    other = create_trial(params={"rate": 1e-3, "optimizer": "adam"}, distributions=known, value=0.0)
    assert is_near({"rate": rate, "optimizer": optimizer}, known, other) == near
    assert not is_near({"rate": rate}, known, other)


def test_a_neighbour_that_is_refused_makes_room_for_the_next() -> None:
    """Rates above the best's fail, and so would its higher neighbour."""
    known = distributions(build_study(RATES, "test")[1])
    trials = [trial_at(0, 0.5, known), trial_at(1, 0.58, known)]
    index = NearIndex(SearchPolicy())
    for one in trials:
        index.add(one)
    found = new_neighbour(trials[:1], index.holds)
    assert found is not None
    assert found[SHARE] == pytest.approx(0.42)
    index.add(trial_at(2, 0.43, known))
    assert new_neighbour(trials[:1], index.holds) is None


def trial_at(number: int, share: float, known: dict[str, Any]) -> FrozenTrial:
    params = {"optimizer": "adam", SHARE: share}
    trial = create_trial(params=params, distributions=known, value=0.0)
    trial.number = number
    return trial


@pytest.mark.parametrize(
    ("distribution", "value", "expected"),
    [
        (LOGARITHMIC, 1e-3, [1e-3 * 1000**0.08, 1e-3 / 1000**0.08]),
        (LOGARITHMIC, 9e-2, [9e-2 / 1000**0.08]),
        (IntDistribution(4, 9), 5, [6, 4]),
        (IntDistribution(4, 9), 9, [8]),
        (IntDistribution(1, 101), 50, [58, 42]),
        (CHOICES, "adam", []),
    ],
)
def test_neighbours_are_a_step_away_and_in_the_range(
    distribution: BaseDistribution, value: Any, expected: list[Any]
) -> None:
    trial = create_trial(params={"x": value}, distributions={"x": distribution}, value=0.0)
    assert [params["x"] for params in neighbours(trial)] == pytest.approx(expected)


def test_resolution_and_step_are_the_policy_s() -> None:
    policy = SearchPolicy(resolution=0.2, step=0.3)
    known = {"x": FloatDistribution(0.0, 1.0)}
    middle = create_trial(params={"x": 0.5}, distributions=known, value=0.0)
    assert is_near({"x": 0.65}, known, middle, policy)
    assert not is_near({"x": 0.65}, known, middle)
    assert [one["x"] for one in neighbours(middle, policy)] == pytest.approx([0.8, 0.2])
