"""Proposals that are nearly those of before are drawn again."""

import itertools
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import create_trial

from raybench.search.asha import SearchPolicy
from raybench.search.sampling.optuna_study import real_trials
from raybench.search.sampling.proposer import is_near
from raybench.spec.run import RunSpec
from raybench.stats.record import RunRecord
from tests.search.made_up import RATES, journal_of, make_search, record, run_all

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


def test_the_resolution_is_the_policy_s() -> None:
    known = {"x": FloatDistribution(0.0, 1.0)}
    middle = create_trial(params={"x": 0.5}, distributions=known, value=0.0)
    assert is_near({"x": 0.65}, known, middle, SearchPolicy(resolution=0.2))
    assert not is_near({"x": 0.65}, known, middle)


def test_a_search_does_not_crowd_on_one_spot(tmp_path: Path) -> None:
    """The score has one narrow best; TPE alone proposes it again and again."""

    def narrow(name: str, spec: RunSpec) -> RunRecord:
        is_adam = spec.optimizer == "adam"
        return record(name, spec, score=abs(spec.learning_rate - 3e-3) if is_adam else 5.0)

    search = make_search(tmp_path, RATES)
    assert len(run_all(search, narrow)) == 18
    trials = real_trials(journal_of(search))
    near = [is_near(a.params, a.distributions, b) for a, b in itertools.combinations(trials, 2)]
    assert not any(near)
