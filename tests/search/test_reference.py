"""`target: auto`: which configuration is the reference, and what follows from its runs."""

from typing import Any

import pytest

from raybench.core.errors import UserError
from raybench.core.study import build_study
from raybench.search.priors import usual_rate
from raybench.search.reference import earlier_target, reference_spec, target_from

STUDY: dict[str, Any] = {
    "objective": {"target": "auto", "max_train_seconds": 5},
    "space": {
        "framework": ["torch", "tensorflow"],
        "num_workers": [2, 1],
        "batch_size_per_worker": {"low": 16, "high": 256, "log2": True},
        "optimizer": ["lars", "adam"],
        "learning_rate": [
            {"when": {"optimizer": "lars"}, "low": 1e-2, "high": 10.0, "log": True},
            {"when": {"optimizer": "adam"}, "low": 1e-4, "high": 1e-1, "log": True},
        ],
    },
}


def test_auto_is_a_flag_until_reference_runs_have_set_the_target() -> None:
    study, _ = build_study(STUDY, "test")
    assert study.needs_target
    named, _ = build_study(STUDY | {"objective": {"target": 0.9}}, "test")
    assert not named.needs_target


def test_auto_is_for_time_to_accuracy() -> None:
    objective = {"kind": "accuracy_at_budget", "target": "auto"}
    with pytest.raises(UserError, match=r"objective\.target: auto is for time_to_accuracy"):
        build_study(STUDY | {"objective": objective}, "test")


def test_the_reference_is_the_first_optimizer_at_its_usual_rate_without_a_target() -> None:
    study, space = build_study(STUDY, "test")
    spec = reference_spec(study, space)
    assert (spec.framework, spec.optimizer, spec.num_workers) == ("torch", "lars", 2)
    assert spec.learning_rate == pytest.approx(usual_rate("lars", spec.global_batch_size))
    assert (spec.objective.kind, spec.objective.max_train_seconds) == ("accuracy_at_budget", 5)


def test_a_space_without_a_rate_has_a_reference_too() -> None:
    study, space = build_study(STUDY | {"space": {"optimizer": ["lamb"]}}, "test")
    assert reference_spec(study, space).optimizer == "lamb"


def test_the_target_is_the_median_less_half_a_point() -> None:
    assert target_from([0.99, 0.9512, 0.2], 0.1) == 0.946
    with pytest.raises(UserError, match="hardly above chance"):
        target_from([0.1, 0.108, 0.3], 0.1)


def test_a_study_that_goes_on_keeps_the_target_it_set() -> None:
    study, _ = build_study(STUDY, "test")
    before = {"auto_target": True, "objective": {"target": 0.912}}
    assert earlier_target(study, {"study": before}).objective.target == 0.912
    assert earlier_target(study, {"study": before | {"auto_target": False}}).needs_target
    assert earlier_target(study, {}).needs_target
