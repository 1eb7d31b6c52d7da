"""`target: auto`: which configuration is the reference, and what follows from its runs."""

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.report.export import export
from raybench.report.study import load
from raybench.results.place import refuse_other_study
from raybench.results.records import read_records
from raybench.results.store import STUDY_FILE, Store
from raybench.runs.deadline import Deadline
from raybench.search.reference import earlier_settings, reference_spec, set_by_reference
from raybench.search.reference_settings import (
    ReferenceRun,
    eval_interval_from,
    held,
    set_eval_interval,
    set_seconds,
    set_target,
    switch_to_best_at_budget,
    target_from,
)
from raybench.search.sampling.default_rates import default_rate
from raybench.search.search import Search
from raybench.spec.errors import ErrorCode
from raybench.spec.metric import METRICS
from raybench.spec.objective import Baseline
from raybench.spec.run import RunSpec
from raybench.spec.space import Space
from raybench.spec.study import StudySpec, build_study
from raybench.stats.record import Evaluation, RunOutcome, RunRecord
from tests.refusals import refused
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


def test_the_reference_is_the_first_optimizer_at_its_default_rate_without_a_target() -> None:
    study, space = build_study(STUDY, "test")
    spec = reference_spec(study, space)
    assert (spec.framework, spec.optimizer, spec.num_workers) == ("torch", "lars", 2)
    assert spec.learning_rate == pytest.approx(default_rate("lars", spec.global_batch_size))
    assert (spec.objective.kind, spec.objective.max_train_seconds) == ("best_at_budget", 5)


def test_the_target_is_the_median_less_half_a_point() -> None:
    assert target_from([0.99, 0.9512, 0.2], 0.1) == 0.946
    with refused(ErrorCode.NO_RESULT, "target"):
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
    with refused(ErrorCode.NO_RESULT, "target", "RMSE 1.99"):
        target_from([1.99, 1.99], 2.0, rmse)


def test_a_study_that_goes_on_keeps_what_it_set() -> None:
    study, _ = build_study(STUDY, "test")
    assert (study.auto, study.needs_target) == (["target", "eval_every_samples"], True)
    before = study.document() | {"is_set": True, "fixed": {"eval_every_samples": 345}}
    before["objective"]["target"] = 0.912
    found = earlier_settings(study, {"study": before})
    assert (found.objective.target, found.fixed) == (0.912, {"eval_every_samples": 345})
    assert not found.needs_reference
    assert earlier_settings(study, {"study": before | {"is_set": False}}).needs_target
    assert earlier_settings(study, {}).needs_target
    other = before | {"auto": ["target"]}
    assert earlier_settings(study, {"study": other}).needs_target


def test_one_that_came_to_be_judged_by_budget_goes_on_whatever_hold_its_file_names() -> None:
    study, _ = build_study(STUDY | {"objective": {"target": "auto", "hold": 2}}, "test")
    run = ReferenceRun(record(spec=RunSpec(), stop="max_train_seconds"), [evaluation()])
    before, _ = switch_to_best_at_budget(study, [run], 60.0, 2, has_learnt=False)
    done = before.model_copy(update={"is_set": True})
    assert earlier_settings(study, {"study": done.document()}).objective == done.objective


def test_seconds_come_from_the_run_that_set_the_target() -> None:
    """It was trained without one, so its record has no time to it."""
    points = [evaluation(s, index=s - 1, value=v) for s, v in ((1, 0.5), (2, 0.9), (9, 0.95))]
    study, _ = build_study(STUDY | {"objective": {"target": 0.9}}, "test")
    run = ReferenceRun(record("reference0", RunSpec(), 9.0, stop="max_train_seconds"), points)
    found, _ = set_seconds(study, run)
    assert found.objective.max_train_seconds == 8.0


@pytest.mark.parametrize(
    ("samples", "evaluation_samples", "most", "eval_interval"),
    [
        (20_000, 10, 10**9, 1_000),  # twenty evaluations to the target
        (20_000, 1_000, 10**9, 5_000),  # a fifth of the training's time, at most
        (20_000, 10, 600, 600),  # as many as a run must have to hold the target
        (3, 0.0, 10**9, 1),
    ],
)
def test_how_often_runs_are_evaluated(
    samples: float, evaluation_samples: float, most: int, eval_interval: int
) -> None:
    assert eval_interval_from(samples, evaluation_samples, most) == eval_interval


class Machine:
    """Trains references: `rate` samples a second, 1 - exp(-seconds / tau) above chance."""

    def __init__(self, folder: Path, study: StudySpec, space: Space, left_s: float) -> None:
        self.study, self.space = study, space
        self.store: Any = SimpleNamespace(folder=folder)
        self.rate, self.tau, self.failing = 100.0, 10.0, set[str]()
        self.deadline = Deadline(study.search.time_budget_s)
        self.left_s = left_s
        self.seconds: dict[str, float] = {}
        self.wall_s = 0.0
        """Of each run, by which less of the budget is left."""
        self.start_s: float | None = None
        """Seconds to start the workers of each lane; None: time stands still while they train."""
        self.begun = threading.Barrier(1)
        self.lanes: dict[int, float] = {}
        """Seconds that went by on each thread, a lane of runs one after the other."""
        self.progress: Any = SimpleNamespace(begin=lambda *given: None)
        self.saved: Any = SimpleNamespace(over=lambda record: None)

    def train(self, spec: RunSpec, name: str, role: Any, *, judge: Any) -> RunRecord:
        self.left_s -= self.wall_s
        lane = threading.get_ident()
        if self.start_s is not None and lane not in self.lanes:
            self.lanes[lane] = self.start_s
            self.begun.wait()  # each thread has a run of the first round
        reason, points, end_s = None, list[Evaluation](), spec.objective.max_train_seconds
        while reason is None and name not in self.failing:
            samples = (len(points) + 1) * (spec.eval_every_samples or 1000)
            seconds = samples / self.rate
            point = evaluation(
                seconds,
                index=len(points),
                samples=samples,
                value=1 - 0.9 * math.exp(-seconds / self.tau),
                ledger={"train": seconds, "eval": 0.02 * seconds},
            )
            if self.start_s is not None:
                self.lanes[lane] += 1.02 * samples / self.rate / (len(points) + 1)
            points.append(point)
            self.store.append(point.line(name))
            reason = "max_train_seconds" if seconds >= end_s else judge(point)
        self.seconds[name] = points[-1].train_s if points else 0.0
        last = RunOutcome(
            evaluation=points[-1] if points else None,
            failure="error" if name in self.failing else None,
            ledger={"train": self.seconds[name]},
        )
        done = last.record(name, spec, role=role, source=None, stopped_by=reason or "time_budget")
        self.store.append(done.line())
        return done

    def set(self, slots: int = 2) -> tuple[StudySpec, list[str]]:
        with Store(self.store.folder) as self.store:
            found = set_by_reference(
                self.study,
                self.space,
                self,  # type: ignore[arg-type]
                at_once=lambda spec: slots,
                baseline_value=0.1,
                baselines={"validation": None, "test": None},
                num_train_samples=4_000,
            )
        assert found is not None, "the time budget ended it"
        return found

    @property
    def trial(self) -> RunRecord:
        """The one reference run that counts as a trial."""
        runs = read_records(self.store.folder).runs.values()
        (found,) = [run for run in runs if run.role == "trial"]
        return found


Make = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(budget: float | None, left_s: float = 10_000.0, **objective: Any) -> Machine:
        content = STUDY | {
            "objective": {"target": "auto", "max_train_seconds": 120} | objective,
            "search": {"trials": 60} | ({"time_budget_s": budget} if budget else {}),
        }
        found = Machine(tmp_path, *build_study(content, "test"), left_s)
        if budget:
            left = property(lambda _: found.left_s - found.lanes.get(threading.get_ident(), 0))
            monkeypatch.setattr(Deadline, "left_s", left)
        return found

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
def test_reference_runs_take_a_fifth_of_the_budget_in_all(
    machine: Make, budget: float | None, left_s: float, slots: int, seconds: list[float]
) -> None:
    one = machine(budget, left_s)
    one.set(slots)
    assert len(one.seconds) == len(seconds)
    for taken, most in zip(one.seconds.values(), seconds, strict=True):
        assert taken == pytest.approx(most, abs=5.2), "to an evaluation, these are 5 s apart"


@pytest.mark.parametrize(
    ("budget", "slots", "start_s", "runs"),
    [
        (240.0, 2, 12.0, 3),
        (240.0, 1, 12.0, 3),
        (240.0, 3, 12.0, 3),
        (240.0, 2, 30.0, 2),  # fewer and longer ones, where starting has taken most
        (600.0, 2, 20.0, 3),
        (120.0, 2, 12.0, 2),
        (120.0, 1, 0.0, 1),
    ],
)
def test_their_share_has_the_start_of_workers_and_the_last_evaluation_in_it(
    machine: Make, budget: float, slots: int, start_s: float, runs: int
) -> None:
    one = machine(budget, 0.9 * budget)
    one.start_s, one.tau, one.rate = start_s, 5.0, 500.0
    one.begun = threading.Barrier(slots)
    one.set(slots)
    assert len(one.seconds) == runs
    assert max(one.lanes.values()) <= budget / 5
    assert all(seconds >= 9.0 for seconds in one.seconds.values())


def test_a_run_whose_evaluations_are_far_apart_has_more_than_one(machine: Make) -> None:
    """6 s each, as on a machine whose cores others have; a start of 45 s of 48."""
    one = machine(240.0, 200.0)
    one.start_s, one.rate, one.begun = 45.0, 512 / 6, threading.Barrier(2)
    one.set(slots=2)
    curves = read_records(one.store.folder).curves
    assert [len(points) for points in curves.values()] == [2, 2]


def test_a_short_budget_leaves_a_reference_run_seconds_to_learn_in(machine: Make) -> None:
    one = machine(60.0, 50.0)
    one.start_s, one.rate, one.begun = 12.0, 1000.0, threading.Barrier(2)
    one.set(slots=2)
    assert [round(seconds) for seconds in one.seconds.values()] == [10, 10]


def test_no_further_reference_run_begins_once_they_have_taken_their_share(machine: Make) -> None:
    one = machine(240.0, 200.0)
    one.wall_s = 25.0  # of which 9 start workers: the second begins within the 48 s
    one.set(slots=1)
    assert list(one.seconds) == ["reference0", "reference1"]


@pytest.mark.parametrize(("left_s", "tau"), [(200.0, 6.0), (3000.0, 15.0)])
def test_the_target_leaves_a_search_room_and_a_reference_run_counts_as_a_trial(
    machine: Make, left_s: float, tau: float
) -> None:
    """Still improving when cut off: nothing that it reached in its last half is the target."""
    one = machine(240.0, left_s)
    one.tau = tau
    study, words = one.set()
    assert study.is_set
    assert words[0].startswith("target ")
    records = read_records(one.store.folder)
    trial = one.trial
    assert trial.state == "complete"
    assert trial.spec.objective == study.objective
    assert trial.time_to_target_s is not None
    early = 0.5 if left_s == 3000.0 else 0.25
    assert trial.time_to_target_s <= early * one.seconds[trial.trial] + 5
    assert 2 * trial.time_to_target_s <= study.objective.max_train_seconds
    assert len(records.curves[trial.trial]) > 2
    search = Search(study, one.space, one.store.folder, runs=records.runs, curves=records.curves)
    assert search.num_finished == 1, "the sampler has learnt it"


@pytest.mark.parametrize("budget", [240.0, None])
def test_with_a_named_target_a_reference_run_counts_as_a_trial_in_a_time_budget(
    machine: Make, budget: float | None
) -> None:
    """The budget may end all trials: then it is the answer."""
    one = machine(budget, 200.0, target=0.5)
    one.set()
    (run,) = read_records(one.store.folder).runs.values()
    assert run.role == ("reference" if budget is None else "trial")
    with Store(one.store.folder) as store:
        store.write_yaml(STUDY_FILE, {"study": one.study.document()})
        export(load(one.store.folder), store)
    assert (one.store.folder / "best.yaml").is_file(), "the reference's, where nothing else ran"


def test_a_budget_without_room_for_as_long_trials_shortens_them(machine: Make) -> None:
    short, _ = machine(240.0, 200.0).set()
    assert short.objective.max_train_seconds < 60
    again, _ = build_study(STUDY, "test")
    assert earlier_settings(again, {"study": short.document()}).objective == short.objective


def test_where_no_target_fits_the_budget_the_best_within_it_is_sought(machine: Make) -> None:
    one = machine(60.0, 30.0, hold=9)
    study, words = one.set()
    assert (study.objective.kind, study.objective.target) == ("best_at_budget", None)
    assert study.is_set
    assert f"{study.objective.max_train_seconds:g} s" in words[0]
    assert study.objective.max_train_seconds <= 15, "half of what is left, at most"
    assert one.trial.best_value is not None


def test_where_the_reference_is_far_from_its_end_no_early_value_is_the_target(
    machine: Make,
) -> None:
    """In a quarter of its run it came a third of the way: who begins soonest says little."""
    one = machine(240.0, 200.0)
    one.tau = 40.0
    study, words = one.set()
    assert (study.objective.kind, study.objective.target) == ("best_at_budget", None)
    (length,) = {round(seconds) for seconds in one.seconds.values()}
    assert study.objective.max_train_seconds == pytest.approx(length, rel=0.05)
    assert "52.5 %, 52.5 %, 52.5 %" in words[0]
    assert one.trial.best_value is not None


def test_reference_runs_that_the_budget_ends_are_the_answer_there_is(machine: Make) -> None:
    """And the same command, with a longer one, begins the search."""
    one = machine(60.0, 30.0)
    train = one.train

    def last(*given: Any, **options: Any) -> RunRecord:
        done = train(*given, **options)
        one.left_s = 0.0
        return done

    one.train = last  # type: ignore[method-assign]
    study, words = one.set(slots=1)
    assert (study.is_set, words) == (False, [])
    folder = one.store.folder
    with Store(folder) as store:
        store.write_yaml(STUDY_FILE, {"study": study.document()})
        results = load(folder)
        export(results, store)
    assert results.verdict is not None
    assert "trial reference0" in (folder / "best.yaml").read_text()
    refuse_other_study("here", folder / STUDY_FILE, one.study)


def test_one_reference_run_that_fails_leaves_the_others(machine: Make) -> None:
    one = machine(None)
    one.failing = {"reference1"}
    one.set()
    one.failing = {"reference0", "reference1", "reference2"}
    with refused(ErrorCode.NO_RESULT, "target"):
        one.set()


def test_where_the_reference_fails_trials_are_evaluated_as_often_as_it_was(machine: Make) -> None:
    one = machine(None, target=0.9)
    one.failing = {"reference0"}
    study, (how,) = one.set()
    assert study.fixed["eval_every_samples"] == 512, "not once an epoch, which may take an hour"
    assert "512 samples" in how
    assert "(error" in how


def test_a_reference_that_missed_the_target_says_so_and_leaves_trials_evaluations() -> None:
    study, _ = build_study(STUDY | {"objective": {"target": 0.9, "max_train_seconds": 40}}, "test")
    ledger = {"train": 50.0, "eval": 30.0}
    run = replace(record(stop="max_train_seconds"), samples=5000, ledger=ledger, best_value=0.5)
    found, how = set_eval_interval(study, ReferenceRun(run, [evaluation(value=0.5)]), 1_000_000)
    assert found.fixed["eval_every_samples"] == 1000  # a quarter of what 40 s hold
    assert "50.0 %" in how


@pytest.mark.parametrize(("best", "target"), [(0.58, 0.62), (0.9, 0.895)])
def test_a_target_lies_above_what_luck_adds_to_the_baseline(best: float, target: float) -> None:
    """Noise of 300 rows reaches 58 %; what is learnt is not refused, nor held to less."""
    study, space = build_study(STUDY, "test")
    run = record(spec=reference_spec(study, space), stop="epochs")
    runs = [ReferenceRun(run, [evaluation(value=best)])] * 3
    known = Baseline(0.53, 300, 0.03)
    found, how = set_target(study, runs, 0.53, baseline=known, errors=3.0)
    assert found.objective.target == target
    assert ("300" in how) == (best < 0.6)
