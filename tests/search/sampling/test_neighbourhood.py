"""Proposals that are nearly those of before are drawn again."""

from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from raybench.search.asha import SearchPolicy
from raybench.search.sampling.optuna_study import real_trials
from raybench.search.sampling.proposer import NearIndex
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
    index = NearIndex(SearchPolicy())
    index.add({"rate": 1e-3, "optimizer": "adam"}, known)
    assert index.holds({"rate": rate, "optimizer": optimizer}, known) == near
    assert not index.holds({"rate": rate}, known)


def test_what_has_no_range_is_near_where_it_is_equal() -> None:
    index = NearIndex(SearchPolicy())
    index.add({"optimizer": "adam"}, {"optimizer": CHOICES})
    held = [index.holds({"optimizer": one}, {"optimizer": CHOICES}) for one in ("adam", "lars")]
    assert held == [True, False]


def test_the_resolution_is_the_policy_s() -> None:
    known = {"x": FloatDistribution(0.0, 1.0)}
    for resolution, near in ((0.2, True), (0.04, False)):
        index = NearIndex(SearchPolicy(resolution=resolution))
        index.add({"x": 0.5}, known)
        assert index.holds({"x": 0.65}, known) == near


def test_a_search_does_not_crowd_on_one_spot(tmp_path: Path) -> None:
    """The score has one narrow best; TPE alone proposes it again and again."""

    def narrow(name: str, spec: RunSpec) -> RunRecord:
        is_adam = spec.optimizer == "adam"
        return record(name, spec, score=abs(spec.learning_rate - 3e-3) if is_adam else 5.0)

    search = make_search(tmp_path, RATES)
    assert len(run_all(search, narrow)) == 18
    trials = real_trials(journal_of(search))
    index = NearIndex(SearchPolicy())
    for trial in trials:
        assert not index.holds(trial.params, trial.distributions)
        index.add(trial.params, trial.distributions)
