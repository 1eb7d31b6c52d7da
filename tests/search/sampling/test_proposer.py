"""Proposals that are nearly those of before, and the parameters the sampler sees."""

import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, create_trial
from raybench.search.ray_tune.opaque import wrap

from raybench.core.study import build_study
from raybench.search.deadline import Deadline
from raybench.search.ray_tune.searcher import StudySearcher
from raybench.search.sampling import proposer as proposals
from raybench.search.sampling.neighbourhood import STEP, is_near, neighbours, new_neighbour
from raybench.search.sampling.optuna_space import distributions, encode
from raybench.search.sampling.optuna_study import real_trials

RATES = FloatDistribution(1e-4, 1e-1, log=True)
SHARE = "learning_rate [share of its range]"
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
    one = StudySearcher(study, space, tmp_path, Deadline(None, began=time.perf_counter()))
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


def run_search(folder: Path, trials: int, score: Callable[[dict[str, Any]], float]) -> list[Any]:
    """Search optimizers and rates; return the trials."""
    folder.mkdir(exist_ok=True)
    content = STUDY | {"search": {"trials": trials, "priors": False}}
    study, space = build_study(content, "test")
    one = StudySearcher(study, space, folder, Deadline(None, began=time.perf_counter()))
    while isinstance(config := one.suggest("now"), dict):
        result = {"score": score(config["spec"]), "train_s": 1.0, "stop": "target"}
        one.on_trial_complete("now", wrap(result))
        one.settle("now")
    return real_trials(one.optuna_study)


def near_3e_3(spec: dict[str, Any]) -> float:
    distance = abs(math.log(spec["learning_rate"] / 3e-3))
    return distance if spec["optimizer"] == "adam" else 100.0


def test_the_best_trials_neighbours_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proposals.DRAWS.index("neighbour") < proposals.DRAWS.index("random")
    monkeypatch.setattr(proposals, "DRAWS", ("neighbour",))
    trials = run_search(tmp_path, 4, near_3e_3)
    for number, trial in enumerate(trials[1:], 1):
        steps = [
            abs(trial.params[SHARE] - earlier.params[SHARE]) / STEP
            for earlier in trials[:number]
            if earlier.params["optimizer"] == trial.params["optimizer"]
        ]
        assert any(step == pytest.approx(1.0) for step in steps)


def test_a_neighbour_that_is_refused_makes_room_for_the_next(tmp_path: Path) -> None:
    """Rates above the best's fail, and so would its higher neighbour."""
    known = distributions(build_study(STUDY, "test")[1])
    trials = [trial_at(0, 0.5, known), trial_at(1, 0.58, known)]
    found = new_neighbour(trials, {0: 1.0})
    assert found is not None
    assert found[SHARE] == pytest.approx(0.42)
    assert new_neighbour([*trials, trial_at(2, 0.43, known)], {0: 1.0}) is None


def trial_at(number: int, share: float, known: dict[str, Any]) -> FrozenTrial:
    params = {"optimizer": "adam", SHARE: share}
    trial = create_trial(params=params, distributions=known, value=0.0)
    trial.number = number
    return trial


@pytest.mark.parametrize(
    ("distribution", "value", "expected"),
    [
        (RATES, 1e-3, [1e-3 * 1000**0.08, 1e-3 / 1000**0.08]),
        (RATES, 9e-2, [9e-2 / 1000**0.08]),
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
