"""Proposals that are not nearly those of before, and those that lie next to the best."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import FrozenTrial

from raybench.search.asha import DEFAULT, SearchPolicy
from raybench.search.sampling.optuna_study import real_trials
from raybench.search.sampling.proposer import is_near
from raybench.spec.run import RunSpec
from raybench.stats.record import RunRecord
from tests.search.made_up import RATES, SHARE, journal_of, make_search, record, run_all


def search(
    folder: Path, trials: int, score: Callable[[RunSpec], float], policy: SearchPolicy = DEFAULT
) -> list[FrozenTrial]:
    """Search optimizers and rates; return the trials."""

    def judge(name: str, spec: RunSpec) -> RunRecord:
        return record(name, spec, score=score(spec))

    content = RATES | {"search": {"trials": trials, "priors": False}}
    one = make_search(folder, content, policy=policy)
    run_all(one, judge)
    return real_trials(journal_of(one))


def near_3e_3(spec: RunSpec) -> float:
    distance = abs(math.log(spec.learning_rate / 3e-3))
    return distance if spec.optimizer == "adam" else 100.0


def test_a_search_does_not_crowd_on_one_spot(tmp_path: Path) -> None:
    """The score has one narrow best; TPE alone proposes it again and again."""

    def narrow(spec: RunSpec) -> float:
        return abs(spec.learning_rate - 3e-3) if spec.optimizer == "adam" else 5.0

    trials = search(tmp_path, 18, narrow)
    assert len(trials) == 18
    pairs = [
        (a, b)
        for a, b in itertools.combinations(trials, 2)
        if is_near(a.params, a.distributions, b)
    ]
    assert not pairs


def test_the_best_trials_neighbours_are_run(tmp_path: Path) -> None:
    assert DEFAULT.draws.index("neighbour") < DEFAULT.draws.index("random")
    trials = search(tmp_path, 4, near_3e_3, SearchPolicy(draws=("neighbour",)))
    for number, trial in enumerate(trials[1:], 1):
        steps = [
            abs(trial.params[SHARE] - earlier.params[SHARE]) / DEFAULT.step
            for earlier in trials[:number]
            if earlier.params["optimizer"] == trial.params["optimizer"]
        ]
        assert any(step == pytest.approx(1.0) for step in steps)


def test_only_tpe_is_led_to_neighbours(tmp_path: Path) -> None:
    """The other samplers are left as they are."""
    content = RATES | {"search": {"trials": 4, "priors": False, "sampler": "random"}}
    policies = [SearchPolicy(draws=("neighbour",)), SearchPolicy(draws=("random",))]
    found = [
        run_all(make_search(tmp_path / str(number), content, policy=policy))
        for number, policy in enumerate(policies)
    ]
    assert [one.spec for one in found[0]] == [one.spec for one in found[1]]
