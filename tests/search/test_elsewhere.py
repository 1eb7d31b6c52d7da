"""Looking elsewhere: another optimizer than the best, where its own trials did best."""

import random
import statistics
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, create_trial

from raybench.core.study import build_study
from raybench.search.elsewhere import Elsewhere, choose_other
from raybench.search.propose import distributions

STUDY: dict[str, Any] = {
    "objective": {"target": 0.95, "max_train_seconds": 10},
    "space": {
        "optimizer": ["adam", "lars"],
        "learning_rate": [
            {"when": {"optimizer": "adam"}, "low": 1e-4, "high": 1e-1, "log": True},
            {"when": {"optimizer": "lars"}, "low": 1e-2, "high": 10.0, "log": True},
        ],
    },
}
SHARE = "learning_rate [share of its range]"


def trial(space: Any, optimizer: str, share: float, value: float) -> FrozenTrial:
    params = {"optimizer": optimizer, SHARE: share}
    return create_trial(params=params, distributions=distributions(space), value=value)


def scores(trials: list[FrozenTrial]) -> dict[int, float]:
    return {t.number: float(t.values[0]) for t in trials}


def elsewhere(space: Any) -> Elsewhere:
    return Elsewhere(space, {}, seed=0, num_earlier=0)


def numbered(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    for number, one in enumerate(trials):
        one.number = number
    return trials


def test_it_draws_near_the_best_of_the_other_optimizer() -> None:
    _, space = build_study(STUDY, "test")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Adam is better everywhere, and best at low rates; LARS at high ones.
    trials = [trial(space, "adam", n / 20, n / 20) for n in range(20)]
    trials += [trial(space, "lars", n / 12, 5.0 + abs(n / 12 - 0.8)) for n in range(12)]
    one, numbers = elsewhere(space), numbered(trials)
    drawn = [one.draw(numbers, scores(numbers)) for _ in range(20)]
    assert {params["optimizer"] for params in drawn if params} == {"lars"}
    assert statistics.median(params[SHARE] for params in drawn if params) == pytest.approx(
        0.8, abs=0.12
    )


def test_an_optimizer_never_tried_comes_first() -> None:
    _, space = build_study(STUDY, "test")
    trials = numbered([trial(space, "adam", 0.5, 0.1)])
    params = elsewhere(space).draw(trials, scores(trials))
    assert params is not None
    assert params["optimizer"] == "lars"


def test_better_optimizers_are_drawn_more_often_and_the_best_never() -> None:
    optimizers = ["adam", "lars", "lamb", "sgd"]
    content = {"optimizer": optimizers, "learning_rate": {"low": 1e-4, "high": 1.0, "log": True}}
    _, space = build_study(STUDY | {"space": content}, "test")
    known = distributions(space)
    trials = numbered(
        [
            create_trial(
                params={"optimizer": name, "learning_rate": 0.1}, distributions=known, value=value
            )
            for name, value in (("adam", 9.0), ("lars", 2.0), ("lamb", 3.0), ("sgd", 1.0))
            for _ in range(2)
        ]
    )
    rng = random.Random(0)
    drawn = [choose_other(optimizers, trials, scores(trials), rng) for _ in range(1100)]
    counts = [drawn.count(name) for name in ("lars", "lamb", "adam", "sgd")]
    assert counts == pytest.approx([600, 300, 200, 0], abs=60)


@pytest.mark.parametrize("optimizers", [None, ["adam"]])
def test_with_one_optimizer_there_is_no_elsewhere(optimizers: list[str] | None) -> None:
    space: dict[str, Any] = {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
    if optimizers:
        space["optimizer"] = optimizers
    _, parsed = build_study(STUDY | {"space": space}, "test")
    assert elsewhere(parsed).draw([], {}) is None
