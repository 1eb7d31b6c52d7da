"""Proposals that are nearly those of before, and the parameters the sampler sees."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import create_trial

from raybench.core.study import build_study
from raybench.search.control import Control
from raybench.search.journal import real_trials
from raybench.search.opaque import wrap
from raybench.search.proposals import is_near
from raybench.search.propose import distributions, encode
from raybench.search.searcher import StudySearcher

RATES = FloatDistribution(1e-4, 1e-1, log=True)
CHOICES = CategoricalDistribution(("adam", "lars"))
STUDY: dict[str, Any] = {
    "objective": {"target": 0.95, "max_train_seconds": 10},
    "search": {"trials": 18, "priors": False},
    "space": {
        "optimizer": ["adam", "lars"],
        "learning_rate": [
            {"when": {"optimizer": "adam"}, "low": 1e-4, "high": 1e-1, "log": True},
            {"when": {"optimizer": "lars"}, "low": 1e-2, "high": 10.0, "log": True},
        ],
    },
}


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
    known = {"rate": RATES, "optimizer": CHOICES}
    other = create_trial(params={"rate": 1e-3, "optimizer": "adam"}, distributions=known, value=0.0)
    assert is_near({"rate": rate, "optimizer": optimizer}, known, other) == near
    assert not is_near({"rate": rate}, known, other)


def test_a_search_does_not_crowd_on_one_spot(tmp_path: Path) -> None:
    """The score has one narrow best; TPE alone proposes it again and again."""
    study, space = build_study(STUDY, "test")
    one = StudySearcher(study, space, tmp_path, Control(None, began=time.perf_counter()))
    while isinstance(config := one.suggest("now"), dict):
        spec = config["spec"]
        score = abs(spec["learning_rate"] - 3e-3) if spec["optimizer"] == "adam" else 5.0
        one.on_trial_complete("now", wrap({"score": score, "train_s": 1.0, "stop": "target"}))
        one.settle("now")
    trials = real_trials(one.optuna_study)
    pairs = [
        (a, b)
        for a, b in itertools.combinations(trials, 2)
        if is_near(a.params, a.distributions, b)
    ]
    assert not pairs


def test_trials_go_to_another_optimizer_too(tmp_path: Path) -> None:
    """Adam is better everywhere; LARS still gets most of every second trial after the start."""
    # With batches there is room: few draws repeat one another and go back to Adam.
    wide = STUDY["space"] | {"batch_size_per_worker": {"low": 16, "high": 512, "log2": True}}
    content = STUDY | {"search": {"trials": 30, "priors": False}, "space": wide}
    study, space = build_study(content, "test")
    one = StudySearcher(study, space, tmp_path, Control(None, began=time.perf_counter()))
    names = []
    while isinstance(config := one.suggest("now"), dict):
        names.append(config["spec"]["optimizer"])
        score = 1.0 if names[-1] == "adam" else 5.0
        one.on_trial_complete("now", wrap({"score": score, "train_s": 1.0, "stop": "target"}))
        one.settle("now")
    assert names[10::2].count("lars") >= 7
    assert names[11::2].count("adam") >= 5


def test_ranges_by_optimizer_are_one_parameter_that_comes_back_exactly() -> None:
    _, space = build_study(STUDY, "test")
    name = "learning_rate [share of its range]"
    assert set(distributions(space)) == {"optimizer", name}
    for optimizer, rate, share in (
        ("adam", 1e-4, 0.0),
        ("adam", 1e-1, 1.0),
        ("adam", 1e-2, 2 / 3),
        ("lars", 10.0, 1.0),
        ("lars", 0.1, 1 / 3),
    ):
        params = encode(space, {}, {"optimizer": optimizer, "learning_rate": rate})
        assert params[name] == pytest.approx(share)
        assert 0.0 <= params[name] <= 1.0
    outside = encode(space, {}, {"optimizer": "adam", "learning_rate": 1.0})
    assert outside[name] > 1.0


def test_cases_that_are_lists_keep_names_of_their_own() -> None:
    rates = [
        {"when": {"optimizer": "adam"}, "values": [1e-3, 1e-2]},
        {"when": {"optimizer": "lars"}, "low": 1e-2, "high": 10.0, "log": True},
    ]
    _, space = build_study(STUDY | {"space": STUDY["space"] | {"learning_rate": rates}}, "test")
    assert set(distributions(space)) == {
        "optimizer",
        "learning_rate [optimizer=adam]",
        "learning_rate [optimizer=lars]",
    }
