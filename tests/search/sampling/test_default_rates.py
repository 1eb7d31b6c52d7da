"""The usual rates: which are tried among the first trials, and when no more."""

import math
from pathlib import Path
from typing import Any

import pytest

from raybench.search.asha import DEFAULT
from raybench.search.sampling.default_rates import default_rate, priors
from raybench.search.sampling.optuna_space import encode
from raybench.search.sampling.optuna_study import PRIOR
from raybench.spec.run import OPTIMIZERS, RunSpec
from raybench.spec.study import build_study
from raybench.stats.record import RunRecord
from tests.search.made_up import STUDY, journal_of, make_search, record, run_all


@pytest.mark.parametrize(
    ("objective", "factor"),
    [
        ({"target": 0.95, "max_train_seconds": 10}, DEFAULT.haste),
        ({"kind": "best_at_budget", "max_train_seconds": 10}, 1.0),
    ],
)
def test_every_other_start_up_trial_has_its_optimizer_s_default_rate(
    tmp_path: Path, objective: dict[str, Any], factor: float
) -> None:
    """Or one in proportion to it, where seconds to a target count."""
    content = STUDY | {"search": {"trials": 10}, "objective": objective}

    def judge(name: str, spec: RunSpec) -> RunRecord:
        return record(name, spec, stop="epochs", score=1.0)

    specs = [one.spec for one in run_all(make_search(tmp_path, content), judge)]
    for spec in specs[0:8:2]:
        usual = factor * default_rate(spec.optimizer, spec.global_batch_size)
        assert spec.learning_rate == pytest.approx(usual)
    assert {spec.optimizer for spec in specs[0:8:2]} == {"adam", "lars"}


def test_priors_that_do_badly_are_dropped(tmp_path: Path) -> None:
    def judge(name: str, spec: RunSpec) -> RunRecord:
        usual = DEFAULT.haste * default_rate(spec.optimizer, spec.global_batch_size)
        is_prior = math.isclose(spec.learning_rate, usual)
        return record(name, spec, score=9.0 if is_prior else 1.0)

    one = make_search(tmp_path, STUDY | {"search": {"trials": 20}})
    run_all(one, judge)
    used = [trial for trial in journal_of(one).get_trials() if PRIOR in trial.user_attrs]
    assert 1 <= len(used) <= 3


def test_priors_can_be_switched_off(tmp_path: Path) -> None:
    one = make_search(tmp_path, STUDY | {"search": {"trials": 10, "priors": False}})
    run_all(one)
    assert not [trial for trial in journal_of(one).get_trials() if PRIOR in trial.user_attrs]


def test_priors_stay_inside_the_space() -> None:
    narrow = {"optimizer": ["adam"], "learning_rate": {"low": 0.01, "high": 0.02, "log": True}}
    _, space = build_study(STUDY | {"space": narrow}, "test")
    assert [values["learning_rate"] for values in priors(space, {})] == [0.01]


def test_encode_names_parameters_as_the_sampler_does(tmp_path: Path) -> None:
    one = make_search(tmp_path)
    one.ask()
    asked = journal_of(one).get_trials()[-1].params
    _, space = build_study(STUDY, "test")
    assert set(encode(space, {}, priors(space, {})[0])) == set(asked)


def test_every_optimizer_has_a_default_rate() -> None:
    assert set(DEFAULT.base_rates) == set(OPTIMIZERS)
