"""`target: auto`: which configuration is the reference, and what follows from its runs."""

from dataclasses import replace
from typing import Any

import pytest

from raybench.core.errors import UserError
from raybench.core.metric import METRICS
from raybench.core.score import Baseline
from raybench.core.study import build_study
from raybench.search.pipeline.reference import earlier_settings, reference_spec
from raybench.search.pipeline.reference_settings import (
    Measured,
    cadence_from,
    held,
    set_cadence,
    set_target,
    target_from,
)
from raybench.search.sampling.default_rates import usual_rate
from tests.search.made_up import evaluation, record

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
    objective = {"kind": "best_at_budget", "target": "auto"}
    with pytest.raises(UserError, match="auto is for time_to_target"):
        build_study(STUDY | {"objective": objective}, "test")


def test_the_reference_is_the_first_optimizer_at_its_usual_rate_without_a_target() -> None:
    study, space = build_study(STUDY, "test")
    spec = reference_spec(study, space)
    assert (spec.framework, spec.optimizer, spec.num_workers) == ("torch", "lars", 2)
    assert spec.learning_rate == pytest.approx(usual_rate("lars", spec.global_batch_size))
    assert (spec.objective.kind, spec.objective.max_train_seconds) == ("best_at_budget", 5)


def test_a_space_without_a_rate_has_a_reference_too() -> None:
    study, space = build_study(STUDY | {"space": {"optimizer": ["lamb"]}}, "test")
    assert reference_spec(study, space).optimizer == "lamb"


def test_the_target_is_the_median_less_half_a_point() -> None:
    assert target_from([0.99, 0.9512, 0.2], 0.1) == 0.946
    with pytest.raises(UserError, match="hardly above chance"):
        target_from([0.1, 0.108, 0.3], 0.1)


def test_the_target_is_of_what_the_reference_held() -> None:
    """One lucky evaluation of many is not what a search has to hold."""
    assert held([0.5, 0.98, 0.9, 0.95, 0.94], 1) == 0.98
    assert held([0.5, 0.98, 0.9, 0.95, 0.94], 2) == 0.94
    assert held([0.9], 2) is None


def test_of_a_metric_that_falls_the_target_is_a_hundredth_of_the_gap_above_the_median() -> None:
    rmse = METRICS["rmse"]
    assert held([9.0, 0.3, 0.8, 0.5], 2, rmse) == 0.8
    assert held([float("nan"), 0.5], 2, rmse) is None
    assert target_from([0.8, 0.2, 0.9], 2.0, rmse) == 0.812
    assert target_from([41234.0], 90000.0, rmse) == 41720
    assert target_from([0.8], None, rmse) == 0.808
    assert target_from([0.8], 0.0, METRICS["r2"]) == 0.792
    with pytest.raises(UserError, match=r"reached RMSE 1\.99, hardly below chance"):
        target_from([1.99, 1.99], 2.0, rmse)


def test_how_the_target_of_a_loss_was_set_is_told_with_the_chance() -> None:
    study, space = build_study(STUDY, "test")
    given = {"metric": "loss", "direction": "min", "chance": 2.3}
    study = study.model_copy(update={"objective": study.objective.model_copy(update=given)})
    spec = reference_spec(study, space)
    assert (spec.objective.judged_by, spec.objective.target) == (METRICS["loss"], None)
    runs = [
        Measured(record(spec=spec, stop="epochs"), [evaluation(value=value)])
        for value in (0.3, 0.31, 0.4)
    ]
    found, how = set_target(study, runs, 2.3)
    assert found.objective.target == 0.33
    assert "target 0.33 (auto: median of 0.3, 0.31, 0.4, best validation loss of torch" in how
    assert "and 1 % of its gap to chance (2.3) towards it)" in how
    assert runs[0].samples_to(0.33) == 1000
    assert runs[2].samples_to(0.33) == 2000


def test_a_study_that_goes_on_keeps_what_it_set() -> None:
    study, _ = build_study(STUDY, "test")
    assert study.auto == ["target", "eval_every_samples"]
    before = study.document() | {"is_set": True, "fixed": {"eval_every_samples": 345}}
    before["objective"]["target"] = 0.912
    found = earlier_settings(study, {"study": before})
    assert (found.objective.target, found.fixed) == (0.912, {"eval_every_samples": 345})
    assert not found.needs_reference
    assert earlier_settings(study, {"study": before | {"is_set": False}}).needs_target
    assert earlier_settings(study, {}).needs_target
    other = before | {"auto": ["target"]}
    assert earlier_settings(study, {"study": other}).needs_target


def test_seconds_are_auto_only_where_a_target_is_named() -> None:
    objective = {"target": 0.9, "max_train_seconds": "auto"}
    study, _ = build_study(STUDY | {"objective": objective}, "test")
    assert study.auto == ["max_train_seconds", "eval_every_samples"]
    for wrong in (objective | {"target": "auto"}, objective | {"kind": "best_at_budget"}):
        with pytest.raises(UserError, match="auto needs a target that is named"):
            build_study(STUDY | {"objective": wrong}, "test")


@pytest.mark.parametrize("part", ["fixed", "space"])
def test_a_cadence_that_is_named_is_not_set(part: str) -> None:
    value = 100 if part == "fixed" else [100]
    content = STUDY | {part: STUDY.get(part, {}) | {"eval_every_samples": value}}
    content["objective"] = {"target": 0.9}
    study, _ = build_study(content, "test")
    assert not study.needs_reference


def test_what_a_study_sets_by_itself_is_not_written_by_hand() -> None:
    for key in ("auto", "is_set"):
        with pytest.raises(UserError, match=f"unknown key '{key}'"):
            build_study(STUDY | {key: []}, "test")


@pytest.mark.parametrize(
    ("samples", "evaluation_samples", "most", "cadence"),
    [
        (20_000, 10, 10**9, 1_000),  # twenty evaluations to the target
        (20_000, 1_000, 10**9, 5_000),  # a fifth of the training's time, at most
        (20_000, 10, 600, 600),  # as many as a run must have to hold the target
        (3, 0.0, 10**9, 1),
    ],
)
def test_how_often_runs_are_evaluated(
    samples: float, evaluation_samples: float, most: int, cadence: int
) -> None:
    assert cadence_from(samples, evaluation_samples, most) == cadence


def test_the_reference_takes_a_part_of_the_time_budget() -> None:
    objective = {"target": 0.9, "max_train_seconds": 100}
    settings = {"objective": objective, "search": {"time_budget_s": 120}}
    study, space = build_study(STUDY | settings, "test")
    spec = reference_spec(study, space)
    assert (spec.objective.target, spec.objective.max_train_seconds) == (0.9, 20)


def test_a_reference_that_missed_the_target_says_so_and_leaves_trials_evaluations() -> None:
    study, _ = build_study(STUDY | {"objective": {"target": 0.9, "max_train_seconds": 40}}, "test")
    ledger = {"train": 50.0, "eval": 30.0}
    run = replace(record(stop="max_train_seconds"), samples=5000, ledger=ledger, best_value=0.5)
    found, how = set_cadence(study, Measured(run, [evaluation(value=0.5)]), 1_000_000)
    assert found.fixed["eval_every_samples"] == 1000  # a quarter of what 40 s hold
    assert "(about 4 times in a run" in how
    assert "did not get to the target: its best accuracy was 50.0 %" in how


@pytest.mark.parametrize(("best", "target"), [(0.58, 0.62), (0.9, 0.895)])
def test_a_target_lies_above_what_luck_adds_to_the_baseline(best: float, target: float) -> None:
    """Noise of 300 rows reaches 58 %; what is learnt is not refused, nor held to less."""
    study, space = build_study(STUDY, "test")
    run = record(spec=reference_spec(study, space), stop="epochs")
    runs = [Measured(run, [evaluation(value=best)])] * 3
    known = Baseline(0.53, 300, 0.03)
    found, how = set_target(study, runs, 0.53, baseline=known, errors=3.0)
    assert found.objective.target == target
    assert ("on 300 validation rows" in how) == (best < 0.6)
