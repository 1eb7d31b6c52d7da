"""Runs outside Ray Tune, from the request for workers to the record. `test_ray_tune` covers
trials of a search."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.cluster.protocol import STOPPED, Allocation, Finish, RunFailed
from raybench.results.records import read_records
from raybench.results.store import Store
from raybench.runs.lifecycle import RunLifecycle, SingleRun
from raybench.runs.wait_watch import Deadline
from raybench.spec.objective import StopReason
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.record import Evaluation, RunOutcome, RunRecord
from tests.cluster.conftest import no_ray as no_ray
from tests.cluster.fake_pool import BROKEN, LOST, SPEC, FakePool
from tests.factories import evaluation, outcome, read_lines
from tests.search.stage import FIRST, FakeSavedRuns

pytestmark = pytest.mark.usefixtures("no_ray")


class Desk:
    """Trains runs on a fake pool in a folder and records the displayed events."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.deadline = folder, Store(folder), Deadline(None)
        self.saved = FakeSavedRuns()
        self.said = []
        self.shown = []

    def single_run(self, pool: FakePool, **options: Any) -> SingleRun:
        progress = SimpleNamespace(
            started=lambda name, spec: self.shown.append(name),
            evaluated=lambda name, point: self.shown.append(point.index),
            finished=self.shown.append,
            say=self.said.append,
        )
        return SingleRun(
            session=SimpleNamespace(pool=pool),
            store=self.store,
            deadline=self.deadline,
            progress=progress,
            saved=self.saved,
            **options,
        )

    def train(self, pool: FakePool, name: str = "a", **options: Any) -> RunRecord:
        ended = self.single_run(pool).train(SPEC, name, "confirm", source="0001", **options)
        assert self.shown[-1] is ended
        if self.deadline.fault is None:
            assert read_records(self.folder).runs[name] == ended
        return ended

    def indices(self) -> list[int | None]:
        """Return the indices of the recorded evaluations, and None for a run's record."""
        return [line.get("index") for line in read_lines(self.folder / "records.jsonl")]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made_up = Desk(tmp_path)
    with made_up.store:
        yield made_up


def ended_at(index: int, reason: StopReason) -> Callable[[Evaluation], StopReason | None]:
    return lambda point: reason if point.index >= index else None


def test_a_run_is_trained_tested_saved_and_recorded(desk):
    weights = []
    ended = desk.train(FakePool(last=2), test=True, save=weights.append)
    assert desk.shown == ["a", 0, 1, 2, ended]
    assert desk.indices() == [0, 1, 2, None]
    assert (ended.trial, ended.role, ended.phase, ended.source) == (
        "a",
        "confirm",
        "confirm",
        "0001",
    )
    assert (ended.state, ended.stop, ended.failure) == ("complete", "epochs", None)
    assert (ended.test_value, ended.concurrent, ended.hosts) == (0.5, 3, ["here"])
    assert (ended.spec, ended.num_parameters) == (SPEC, 1)
    assert weights == [Path("weights")]
    assert desk.saved.over_with == ["a"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_returns_or_ends_its_workers(desk, keep):
    pool = FakePool(last=0)
    desk.single_run(pool, keep_groups=keep).train(SPEC, "a", "confirm")
    assert pool.heard[-1] == ("a", {"keep": keep})


@pytest.mark.parametrize(("reached", "restored"), [(2, 0), (3, 2)])
def test_the_stop_rule_sees_every_evaluation_and_may_end_the_run(desk, reached, restored):
    desk.saved.curve = [evaluation(index=index) for index in range(restored)]
    pool = FakePool()
    pool.resume = RunState.after(SPEC, desk.saved.curve) if restored else None
    ended = desk.train(pool, judge=ended_at(reached, "cap"))
    assert (ended.state, ended.stop) == ("stopped", "cap")
    assert desk.indices() == [*range(reached + 1), None], "a resumed run has its whole curve"


@pytest.mark.parametrize("at", [0, 2])
def test_a_failure_is_recorded_with_its_error_and_each_evaluation_once(desk, at):
    ended = desk.train(FakePool(faults={at: BROKEN}), save=pytest.fail)
    assert desk.indices() == [*range(at), None]
    assert (ended.state, ended.failure, ended.stop) == ("failed", "error", None)
    assert ended.message == "ValueError: no (traceback: errors/a.txt)"


def test_a_run_stopped_while_waiting_is_not_trained(desk):
    stopped = RunFailed(STOPPED, "the run was stopped")
    ended = desk.train(FakePool(faults={Allocation: stopped}))
    assert (ended.state, ended.stop, ended.message) == ("stopped", "interrupted", None)


def test_workers_are_returned_after_any_error(desk):
    def broken(point: Evaluation) -> StopReason:
        raise ZeroDivisionError

    pool = FakePool()
    with pytest.raises(ZeroDivisionError):
        desk.single_run(pool).train(SPEC, "a", "confirm", judge=broken)
    assert pool.heard[-1] == ("a", {"keep": True, "for_good": True})


def test_a_deleted_folder_ends_the_study_and_the_run_is_repeated(desk):
    (desk.folder / "records.jsonl").unlink()
    ended = desk.single_run(FakePool()).train(SPEC, "a", "confirm")
    assert (ended.stop, ended.samples, desk.deadline.interrupted) == ("interrupted", 1, True)


def test_lost_workers_are_reported_while_the_run_continues(desk):
    assert desk.train(FakePool(last=2, faults={1: [LOST]})).failure is None
    assert len(desk.said) == 1
    assert LOST.message in desk.said[0]
    assert desk.train(FakePool(faults={Allocation: [LOST] * 9}), "b").failure == "worker_lost"
    assert len(desk.said) == 1


def test_workers_lost_at_the_end_are_only_noted(desk):
    for name in ("a", "b"):
        assert desk.train(FakePool(last=1, faults={Finish: LOST}), name).failure is None
    assert len(desk.said) == 2
    assert all(LOST.message in sentence for sentence in desk.said)


def lifecycle(desk: Desk) -> RunLifecycle:
    return RunLifecycle(desk.single_run(FakePool()), "a", SPEC, "trial")


def test_a_run_that_fails_after_restarts_reports_each_evaluation_once(desk):
    run = lifecycle(desk)
    assert run.take(FIRST)
    failed = replace(FIRST, is_over=True, failure="worker_lost", message="gone", restarts=3)
    assert not run.take(failed)
    run.end(stopped_by="interrupted")
    assert desk.indices() == [0, None]


def test_every_checkpoint_is_saved_once(desk):
    run = lifecycle(desk)
    for index, saved in ((0, 1), (0, 1), (1, 1), (2, 3)):
        run.take(replace(outcome(index + 1.0, index=index), saved=saved))
    assert desk.saved.written == ["a", "a"]


@pytest.mark.parametrize("failure", ["error", "worker_lost", "timeout", "oom"])
def test_a_failure_names_the_output_file_of_the_run(desk, failure):
    run = lifecycle(desk)
    desk.saved.log = lambda name: desk.store.write_log(name, b"last words")
    run.take(RunOutcome(is_over=True, failure=failure, message="no"))
    assert run.end(stopped_by="interrupted").message == "no (output: logs/a.txt)"


@pytest.mark.parametrize(("cap_s", "reason"), [(3.5, "cap"), (4.0, "time_budget")])
def test_a_solo_run_ended_by_the_budget_is_a_miss_if_it_exceeded_its_cap(desk, cap_s, reason):
    """The training time after the last evaluation, at 3 s, also counts against the cap."""
    desk.deadline = Deadline(1000.0)

    def resume(name: str, spec: RunSpec) -> tuple[()]:
        desk.deadline.reserve(2000.0)  # the budget is over after the first evaluation
        return ()

    desk.saved.resume = resume
    single_run = desk.single_run(FakePool(busy_s=2.0))
    ended = single_run.train(SPEC, "0001-confirm0", "confirm", source="0001", cap_s=cap_s)
    assert ended.stop == reason
