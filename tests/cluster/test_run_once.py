"""One run from asking for workers to its record."""

from collections.abc import Callable
from typing import Any

import pytest

from raybench.cluster.protocol import STOPPED, Allocation, RunFailed
from raybench.cluster.run_client import RunClient, run_once
from raybench.stats.checkpoint import RunState
from tests.cluster.fake_pool import BROKEN, LOST, REFUSAL, SPEC, FakePool

pytestmark = pytest.mark.usefixtures("no_ray")


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
    assert (record.test_value, record.concurrent, record.hosts) == (0.5, 3, ["here"])
    assert record.spec == SPEC
    assert record.num_parameters == 1, "as the built model has, in every record"


def test_run_once_ends_when_asked_to_with_the_reason() -> None:
    reasons = iter([None, "time_budget"])
    record, weights = once(FakePool(), [], stopped_by=lambda: next(reasons))
    assert (record.state, record.stop, record.samples) == ("stopped", "time_budget", 1)
    assert (record.test_value, weights) == (0.5, b"weights"), "it did not fail"


@pytest.mark.parametrize("at", [0, 2])
def test_run_once_records_a_failure_and_keeps_its_error(at: int) -> None:
    seen: list[Any] = []
    record, weights = once(FakePool(faults={at: BROKEN}), seen)
    assert len(seen) == at, "the last evaluation is not told twice"
    assert (record.state, record.failure, record.stop) == ("failed", "error", None)
    assert record.message == "a: ValueError: no [Traceback ...]"
    assert weights is None


def test_run_once_of_a_run_that_was_stopped_while_it_waited() -> None:
    record, _ = once(FakePool(faults={Allocation: RunFailed(STOPPED, "the run was stopped")}), [])
    assert (record.state, record.stop, record.message) == ("stopped", "interrupted", None)


def test_run_once_of_a_run_that_is_no_number_any_more() -> None:
    seen: list[Any] = []
    record, weights = once(FakePool(last=1, is_finite=False), seen)
    assert (record.state, record.failure, weights) == ("failed", "nan", None)
    assert record.message == "the training loss is not finite"
    assert seen == [("a", 0), ("a", 1)]


def test_run_once_gives_the_workers_back_whatever_happens() -> None:
    def full_disk(name: str, evaluation: Any) -> None:
        raise OSError("no space left")

    pool = FakePool()
    with pytest.raises(OSError, match="no space"):
        run_once(pool, SPEC, "a", role="trial", on_evaluation=full_disk, stopped_by=lambda: None)
    assert pool.heard[-1] == ("a", {"keep": True, "for_good": True})


def test_run_once_tells_of_a_refused_checkpoint_once_and_begins_anew() -> None:
    first = RunClient(FakePool(), "a", SPEC)
    earlier = RunState.after(SPEC, [first.step().evaluation])  # type: ignore[list-item]
    seen: list[Any] = []
    record, _ = run_once(
        FakePool(last=1, faults={1: [REFUSAL]}, resume=earlier),
        SPEC,
        "a",
        role="trial",
        on_evaluation=lambda name, evaluation: seen.append(evaluation.index),
        on_refused=lambda *told: seen.append(told),
        stopped_by=lambda: None,
    )
    assert seen == [("a", REFUSAL.message), 0, 1]
    assert (record.state, record.stop, record.restarts) == ("complete", "epochs", 1)


def test_run_once_tells_of_lost_workers_where_the_run_goes_on() -> None:
    told: list[Any] = []
    pools = [FakePool(last=2, faults={1: [LOST]}), FakePool(faults={Allocation: [LOST] * 9})]
    records = [
        run_once(
            pool,
            SPEC,
            name,
            role="race",
            on_evaluation=lambda name, evaluation: None,
            on_restart=lambda *given: told.append(given),
            stopped_by=lambda: None,
        )[0]
        for name, pool in zip("ab", pools, strict=True)
    ]
    assert told == [("a", LOST.message)], "the other one was lost for good"
    assert [one.failure for one in records] == [None, "worker_lost"]
