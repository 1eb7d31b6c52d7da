"""A run seen by its owner: the ledger of what it took, and what becomes of it."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.cluster import run_client
from raybench.cluster.protocol import (
    STOPPED,
    Advance,
    Command,
    Finish,
    Finished,
    Lent,
    Progress,
    RunFailed,
    Start,
)
from raybench.cluster.run_client import RunClient, release, run_once
from raybench.core.clock import PHASES, WORKER_PHASES
from raybench.core.objective import Objective
from raybench.core.outcome import RunOutcome
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec

SPEC = RunSpec(objective=Objective(target=0.9))
LOST = RunFailed("worker_lost", "a worker process has died")
BROKEN = RunFailed("error", "ValueError: no", "Traceback ...")


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a pool that stands here are answered at once."""
    monkeypatch.setattr(run_client.ray, "get", lambda answer: answer)


class FakePool:
    """Answers after `travel_s`; its workers were busy for `busy_s`, of which they account for all
    but `unaccounted_s`. The run stops at evaluation `last`; `faults` are raised for commands."""

    def __init__(
        self,
        *,
        travel_s: float = 0.0,
        unaccounted_s: float = 0.0,
        busy_s: float = 0.001,
        last: int = 9,
        is_finite: bool = True,
        faults: dict[type | int, RunFailed] | None = None,
    ) -> None:
        self.travel_s, self.unaccounted_s, self.busy_s = travel_s, unaccounted_s, busy_s
        self.last, self.is_finite, self.faults = last, is_finite, faults or {}
        self.heard: list[Any] = []
        self._train, self._index = 0.0, -1
        self.acquire = SimpleNamespace(remote=self._acquire)
        self.command = SimpleNamespace(remote=self._command)
        self.release = SimpleNamespace(remote=self._release)

    def _acquire(self, name: str, placement: Any) -> Lent:
        self.heard.append(placement)
        time.sleep(0.03)
        if Lent in self.faults:
            raise self.faults[Lent]
        return Lent(group=0, queue_s=0.02, start_s=0.01, hosts=("here",), devices=("cpu",))

    def _release(self, name: str, **options: bool) -> int:
        self.heard.append((name, options))
        return 3

    def _command(self, name: str, command: Command, timeout_s: float) -> list[Any]:
        self.heard.append(command)
        time.sleep(self.travel_s + self.busy_s)
        self._train += self.busy_s - self.unaccounted_s
        ledger = dict.fromkeys(WORKER_PHASES, 0.0) | {"train": self._train, "input": 0.0}
        if isinstance(command, Finish):
            if Finish in self.faults:
                raise self.faults[Finish]
            weights = b"weights" if command.save else None
            accuracy = 0.5 if command.test else None
            return [
                Finished(ledger=ledger, busy_s=self.busy_s, weights=weights, test_accuracy=accuracy)
            ]
        self._index += 1
        if self._index in self.faults:
            raise self.faults[self._index]
        is_last = self._index == self.last
        evaluation = Evaluation(
            index=self._index,
            epoch=1.0,
            samples=1,
            train_s=self._train,
            train_loss=0.0,
            accuracy=0.0,
            learning_rate=0.1,
            samples_per_s=1.0,
            ledger=ledger,
            stop="epochs" if is_last and self.is_finite else None,
            failure="nan" if is_last and not self.is_finite else None,
        )
        return [
            Progress(
                evaluation=evaluation,
                num_parameters=1,
                batch_statistics=False,
                num_classes=10,
                busy_s=self.busy_s,
            )
        ]


def run(pool: FakePool) -> RunOutcome:
    client = RunClient(pool, "a", SPEC)
    client.step()
    time.sleep(0.04)  # the owner thinks
    client.step()
    return client.finish()


def test_travel_and_the_owner_s_own_time_are_report() -> None:
    outcome = run(FakePool(travel_s=0.02, busy_s=0.05))
    ledger = outcome.ledger
    assert ledger["report"] == pytest.approx(3 * 0.02 + 0.04, abs=0.02)
    assert ledger["train"] == pytest.approx(0.15)
    assert abs(ledger["other"]) < 0.01
    total = sum(ledger[phase] for phase in PHASES) + ledger["other"]
    assert total == pytest.approx(outcome.wall_s)


def test_what_no_phase_accounts_for_is_seen() -> None:
    """The ledger can fail: a phase that is not counted is not absorbed by another."""
    outcome = run(FakePool(busy_s=0.05, unaccounted_s=0.02))
    assert outcome.ledger["other"] == pytest.approx(3 * 0.02, abs=0.01)


@pytest.mark.parametrize(
    ("fault", "failure"), [(RunFailed(STOPPED, "the run was stopped"), None), (LOST, LOST.failure)]
)
def test_a_run_that_never_got_workers_has_only_waited(
    fault: RunFailed, failure: str | None
) -> None:
    pool = FakePool(faults={Lent: fault})
    client = RunClient(pool, "a", SPEC)
    outcome = client.step()
    assert (outcome.is_over, outcome.failure, outcome.evaluation) == (True, failure, None)
    time.sleep(0.02)
    outcome = client.finish()
    assert outcome.wall_s == pytest.approx(0.05, abs=0.015)
    assert outcome.ledger == {"queue": pytest.approx(outcome.wall_s), "other": 0.0}
    assert pool.heard == [SPEC.placement, ("a", {"keep": True})], "no command, workers given back"


def test_a_run_goes_from_evaluation_to_evaluation_and_ends_by_itself() -> None:
    pool = FakePool(last=1)
    client = RunClient(pool, "a", SPEC, keep=False)
    first, second = client.step(), client.step()
    assert [one.is_over for one in (first, second)] == [False, True]
    assert [one.evaluation and one.evaluation.index for one in (first, second)] == [0, 1]
    assert (second.stop, second.failure, second.chance) == ("epochs", None, 0.1)
    outcome = client.finish(save=True, test=True)
    assert (outcome.test_accuracy, client.weights, outcome.concurrent) == (0.5, b"weights", 3)
    assert (outcome.hosts, outcome.devices) == (("here",), ("cpu",))
    commands = [Start(spec=SPEC), Advance(), Finish(save=True, test=True)]
    assert pool.heard == [SPEC.placement, *commands, ("a", {"keep": False})]


@pytest.mark.parametrize("fault", [LOST, BROKEN])
def test_what_happens_to_a_run_ends_it_and_its_last_evaluation_stays(fault: RunFailed) -> None:
    pool = FakePool(faults={1: fault})
    client = RunClient(pool, "a", SPEC)
    first, second = client.step(), client.step()
    assert second.is_over
    assert second.evaluation == first.evaluation is not None
    assert (second.failure, second.message) == (fault.failure, fault.message)
    assert second.traceback == fault.traceback
    assert client.finish(save=True, test=True).failure == fault.failure
    assert pool.heard[-2:] == [Advance(), ("a", {"keep": True})], "the pool has dropped its group"


def test_a_run_that_is_no_number_any_more_is_not_tested_or_saved() -> None:
    pool = FakePool(last=0, is_finite=False, faults={Finish: LOST})
    client = RunClient(pool, "a", SPEC)
    outcome = client.step()
    assert (outcome.is_over, outcome.failure) == (True, "nan")
    assert outcome.message == "the training loss is not finite"
    assert client.finish(save=True, test=True).failure == "nan"
    assert pool.heard[-2] == Finish()


@pytest.mark.parametrize(
    ("wanted", "failure"),
    [({}, None), ({"save": True}, "worker_lost"), ({"test": True}, "worker_lost")],
)
def test_workers_lost_at_the_end_are_a_failure_where_something_was_wanted(
    wanted: dict[str, bool], failure: str | None
) -> None:
    client = RunClient(FakePool(last=0, faults={Finish: LOST}), "a", SPEC)
    client.step()
    outcome = client.finish(**wanted)
    assert (outcome.failure, outcome.stop, client.weights) == (failure, "epochs", None)


def once(
    pool: FakePool, seen: list[Any], *, stopped_by: Callable[[], Any] = lambda: None
) -> tuple[Any, bytes | None]:
    return run_once(
        pool,
        SPEC,
        "a",
        role="confirm",
        source="0001",
        on_evaluation=lambda name, evaluation: seen.append((name, evaluation.index)),
        stopped_by=stopped_by,
        on_error=lambda name, message, traceback: f"{name}: {message} [{traceback}]",
        save=True,
        test=True,
    )


def test_run_once_trains_to_the_end_and_returns_record_and_weights() -> None:
    seen: list[Any] = []
    record, weights = once(FakePool(last=2), seen)
    assert seen == [("a", 0), ("a", 1), ("a", 2)]
    assert weights == b"weights"
    assert (record.trial, record.role, record.source) == ("a", "confirm", "0001")
    assert (record.state, record.stop, record.failure) == ("complete", "epochs", None)
    assert (record.test_accuracy, record.concurrent, record.hosts) == (0.5, 3, ["here"])
    assert record.spec == SPEC


def test_run_once_ends_when_asked_to_with_the_reason() -> None:
    reasons = iter([None, "time_budget"])
    record, weights = once(FakePool(), [], stopped_by=lambda: next(reasons))
    assert (record.state, record.stop, record.samples) == ("stopped", "time_budget", 1)
    assert (record.test_accuracy, weights) == (0.5, b"weights"), "it did not fail"


@pytest.mark.parametrize("at", [0, 2])
def test_run_once_records_a_failure_and_keeps_its_error(at: int) -> None:
    seen: list[Any] = []
    record, weights = once(FakePool(faults={at: BROKEN}), seen)
    assert len(seen) == at, "the last evaluation is not told twice"
    assert (record.state, record.failure, record.stop) == ("failed", "error", None)
    assert record.message == "a: ValueError: no [Traceback ...]"
    assert weights is None


def test_run_once_of_a_run_that_was_stopped_while_it_waited() -> None:
    record, _ = once(FakePool(faults={Lent: RunFailed(STOPPED, "the run was stopped")}), [])
    assert (record.state, record.stop, record.message) == ("stopped", "interrupted", None)


def test_run_once_of_a_run_that_is_no_number_any_more() -> None:
    seen: list[Any] = []
    record, weights = once(FakePool(last=1, is_finite=False), seen)
    assert (record.state, record.failure, weights) == ("failed", "nan", None)
    assert record.message == "the training loss is not finite"
    assert seen == [("a", 0), ("a", 1)]


def test_a_run_ended_from_outside_gets_no_workers_any_more() -> None:
    pool = FakePool()
    assert release(pool, "a", keep=False) == 3
    assert pool.heard == [("a", {"keep": False, "for_good": True})]
