"""`target: auto`: the reference configuration, and the settings derived from its runs."""

import itertools
import math
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raybench.report.export import export
from raybench.report.study import load
from raybench.results.records import read_records
from raybench.results.store import STUDY_FILE, Store
from raybench.runs.wait_watch import Deadline
from raybench.search.reference import (
    ReferenceRun,
    held,
    reference_spec,
    set_by_reference,
    set_eval_interval,
    set_seconds,
    set_target,
    target_from,
)
from raybench.search.resolve import earlier_settings
from raybench.search.sampling.default_rates import default_rate
from raybench.spec.errors import ErrorCode
from raybench.spec.metric import METRICS
from raybench.spec.objective import Baseline
from raybench.spec.run import RunSpec
from raybench.spec.space import Space
from raybench.spec.study import StudySpec, build_study
from raybench.stats.record import RunOutcome
from tests.fake_client import use_clients
from tests.refusals import refused
from tests.search import made_up
from tests.search.made_up import evaluation, outcome, record
from tests.search.stage import single_run_in

STUDY: dict[str, Any] = {
    "objective": {"target": "auto", "max_train_seconds": 5},
    "space": made_up.STUDY["space"]
    | {"framework": ["torch", "tensorflow"], "num_workers": [2, 1], "optimizer": ["lars", "adam"]},
}


def test_the_reference_is_the_first_optimizer_at_its_default_rate_without_a_target():
    study, space = build_study(STUDY, "test")
    spec = reference_spec(study, space)
    assert (spec.framework, spec.optimizer, spec.num_workers) == ("torch", "lars", 2)
    assert spec.learning_rate == pytest.approx(default_rate("lars", spec.global_batch_size))
    assert (spec.objective.kind, spec.objective.max_train_seconds) == ("best_at_budget", 5)


def test_the_target_is_half_a_point_below_the_median_of_held_values():
    assert target_from([0.99, 0.9512, 0.2], 0.1) == 0.946
    with refused(ErrorCode.NO_RESULT, "target"):
        target_from([0.1, 0.108, 0.3], 0.1)
    assert held([0.5, 0.98, 0.9, 0.95, 0.94], 1) == 0.98
    assert held([0.5, 0.98, 0.9, 0.95, 0.94], 2) == 0.94
    assert held([0.9], 2) is None


def test_targets_of_metrics_that_are_not_proportions():
    rmse = METRICS["rmse"]
    assert held([9.0, 0.3, 0.8, 0.5], 2, rmse) == 0.8
    assert held([float("nan"), 0.5], 2, rmse) is None
    assert target_from([0.8, 0.2, 0.9], 2.0, rmse) == 0.812
    assert target_from([41234.0], 90000.0, rmse) == 41720
    assert target_from([0.8], None, rmse) == 0.808
    assert target_from([0.8], 0.0, METRICS["r2"]) == 0.792
    with refused(ErrorCode.NO_RESULT, "target", "RMSE 1.99"):
        target_from([1.99, 1.99], 2.0, rmse)


def test_a_resumed_study_keeps_its_reference_settings():
    study, _ = build_study(STUDY, "test")
    assert (study.auto, study.needs_target) == (["target", "eval_every_samples"], True)
    before = study.document() | {"is_set": True, "fixed": {"eval_every_samples": 345}}
    before["objective"]["target"] = 0.912
    resumed = earlier_settings(study, {"study": before})
    assert (resumed.objective.target, resumed.fixed) == (0.912, {"eval_every_samples": 345})
    assert not resumed.needs_reference
    for other in (None, before | {"is_set": False}, before | {"auto": ["target"]}):
        assert earlier_settings(study, {"study": other}).needs_target


def test_seconds_come_from_the_run_that_set_the_target():
    """The reference run is trained without a target, so its record has no time to target."""
    points = [evaluation(s, index=s - 1, value=v) for s, v in ((1, 0.5), (2, 0.9), (9, 0.95))]
    study, _ = build_study(STUDY | {"objective": {"target": 0.9}}, "test")
    run = ReferenceRun(record("reference0", RunSpec(), 9.0, stop="max_train_seconds"), points)
    updated, _ = set_seconds(study, run)
    assert updated.objective.max_train_seconds == 8.0


class Machine:
    """Trains reference runs whose accuracy saturates with the time constant `tau`."""

    def __init__(self, folder: Path, study: StudySpec, space: Space) -> None:
        self.folder, self.study, self.space = folder, study, space
        self.tau, self.failing = 10.0, set[str]()
        self.deadline = Deadline(study.search.time_budget_s)
        self.seconds: dict[str, float] = {}

    def train(self, name: str, spec: RunSpec) -> Generator[RunOutcome, None, None]:
        if name in self.failing:
            yield RunOutcome(is_over=True, failure="error", message="made up")
        limit_s = spec.objective.max_train_seconds
        for index in itertools.count():
            samples = (index + 1) * (spec.eval_every_samples or 1000)
            seconds = self.seconds[name] = samples / 100.0
            stop = "max_train_seconds" if seconds >= limit_s else None
            value = 1 - 0.9 * math.exp(-seconds / self.tau)
            yield outcome(seconds, index=index, samples=samples, value=value, stop=stop)

    def set(self, slots: int = 2) -> tuple[StudySpec, list[str]]:
        with Store(self.folder) as store:
            result = set_by_reference(
                self.study,
                self.space,
                single_run_in(store, self.deadline),
                at_once=lambda spec: slots,
                baseline_value=0.1,
                baselines={"validation": None, "test": None},
                num_train_samples=4_000,
            )
        assert result is not None, "the time budget ended it"
        return result


Make = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(budget: float | None, left_s: float = 10_000.0, **objective: Any) -> Machine:
        content = STUDY | {
            "objective": {"target": "auto", "max_train_seconds": 120} | objective,
            "search": {"trials": 60} | ({"time_budget_s": budget} if budget else {}),
        }
        built = Machine(tmp_path, *build_study(content, "test"))
        use_clients(monkeypatch, built.train)
        if budget:
            monkeypatch.setattr(Deadline, "left_s", left_s)
        return built

    return make


@pytest.mark.parametrize(
    ("budget", "left_s", "slots", "seconds"),
    [
        (3600.0, 3500.0, 2, [120.0] * 3),  # as long as a trial may
        (240.0, 200.0, 2, [24.0] * 3),  # two rounds of a tenth of the budget each
        (240.0, 200.0, 3, [48.0] * 3),
        (60.0, 30.0, 2, [10.0] * 2),  # start-up took half of it: a third of the rest, one round
        (None, math.inf, 2, [120.0] * 3),
    ],
)
def test_reference_runs_take_a_fifth_of_the_budget_in_all(machine, budget, left_s, slots, seconds):
    trainer = machine(budget, left_s)
    trainer.set(slots)
    assert len(trainer.seconds) == len(seconds)
    for taken, limit_s in zip(trainer.seconds.values(), seconds, strict=True):
        assert taken == pytest.approx(limit_s, abs=5.2), "to an evaluation, these are 5 s apart"


@pytest.mark.parametrize(("left_s", "tau"), [(200.0, 6.0), (3000.0, 15.0)])
def test_the_target_leaves_time_for_a_search_and_a_reference_run_counts_as_a_trial(
    machine, left_s, tau
):
    """If a time limit ended the reference, its target comes from the first half."""
    trainer = machine(240.0, left_s)
    trainer.tau = tau
    study, words = trainer.set()
    assert study.is_set
    assert words[0].startswith("target ")
    records = read_records(trainer.folder)
    (trial,) = [run for run in records.runs.values() if run.role == "trial"]
    assert trial.spec.objective == study.objective
    assert trial.time_to_target_s is not None
    early = 0.5 if left_s == 3000.0 else 0.25
    assert trial.time_to_target_s <= early * trainer.seconds[trial.trial] + 5
    assert 2 * trial.time_to_target_s <= study.objective.max_train_seconds
    assert len(records.curves[trial.trial]) > 2


@pytest.mark.parametrize("budget", [240.0, None])
def test_a_reference_run_counts_as_a_trial_under_a_time_budget(machine, budget):
    """If the budget ends all trials, the reference run is the result."""
    trainer = machine(budget, 200.0, target=0.5)
    trainer.set()
    (run,) = read_records(trainer.folder).runs.values()
    assert run.role == ("reference" if budget is None else "trial")
    with Store(trainer.folder) as store:
        store.write_yaml(STUDY_FILE, {"study": trainer.study.document()})
        export(load(trainer.folder), store)
    assert (trainer.folder / "best.yaml").is_file(), "the reference's, where nothing else ran"


def test_one_reference_run_that_fails_leaves_the_others(machine):
    trainer = machine(None)
    trainer.failing = {"reference1"}
    trainer.set()
    trainer.failing = {"reference0", "reference1", "reference2"}
    with refused(ErrorCode.NO_RESULT, "target"):
        trainer.set()


def test_a_failed_reference_keeps_its_evaluation_interval(machine):
    trainer = machine(None, target=0.9)
    trainer.failing = {"reference0"}
    study, (message,) = trainer.set()
    assert study.fixed["eval_every_samples"] == 512, "not once an epoch, which may take an hour"
    assert "512 samples" in message
    assert "(error" in message


def test_a_reference_that_missed_the_target_still_sets_the_interval():
    study, _ = build_study(STUDY | {"objective": {"target": 0.9, "max_train_seconds": 40}}, "test")
    ledger = {"train": 50.0, "eval": 30.0}
    run = replace(record(stop="max_train_seconds"), samples=5000, ledger=ledger, best_value=0.5)
    reference = ReferenceRun(run, [evaluation(value=0.5)])
    updated, message = set_eval_interval(study, reference, 1_000_000)
    assert updated.fixed["eval_every_samples"] == 1000  # a quarter of what 40 s hold
    assert "50.0 %" in message


@pytest.mark.parametrize(("best", "target"), [(0.58, 0.62), (0.9, 0.895)])
def test_a_target_is_better_than_chance(best, target):
    study, space = build_study(STUDY, "test")
    run = record(spec=reference_spec(study, space), stop="epochs")
    runs = [ReferenceRun(run, [evaluation(value=best)])] * 3
    baseline = Baseline(0.53, 300, 0.03)
    updated, message = set_target(study, runs, 0.53, baseline=baseline, errors=3.0)
    assert updated.objective.target == target
    assert ("300" in message) == (best < 0.6)


@pytest.mark.parametrize(("end", "is_said"), [(0.9, True), (0.45, False)])
def test_a_target_that_rewards_fast_starts_is_reported(end, is_said):
    study, space = build_study(STUDY, "test")
    run = record(spec=reference_spec(study, space), stop="max_train_seconds")
    points = [evaluation(value=0.4, train_s=1.0), evaluation(value=end, train_s=10.0)]
    updated, message = set_target(study, [ReferenceRun(run, points)] * 3, 0.1, room_s=1.0)
    assert updated.objective.target == 0.395
    assert ("best_at_budget" in message) == is_said
