"""A run seen by its owner: the ledger of what it took, and what becomes of it."""

import pytest

from raybench.cluster.protocol import STOPPED, Advance, Allocation, Finish, RunFailed, Start
from raybench.cluster.run_client import RESTARTS, RunClient, release
from raybench.stats.clock import PHASES
from raybench.stats.record import RunOutcome
from tests.cluster.fake_pool import BROKEN, LOST, SPEC, FakePool, time

pytestmark = pytest.mark.usefixtures("no_ray")


def run(pool: FakePool) -> RunOutcome:
    client = RunClient(pool, "a", SPEC)
    client.step()
    time.sleep(0.04)  # the owner thinks
    client.step()
    return client.finish()


def test_travel_and_the_owner_s_own_time_are_report() -> None:
    outcome = run(FakePool(travel_s=0.02, busy_s=0.05))
    ledger = outcome.ledger
    assert ledger["report"] == pytest.approx(3 * 0.02 + 0.04)
    assert ledger["train"] == pytest.approx(0.15)
    assert (ledger["queue"], ledger["start"]) == (0.02, 0.01)
    assert ledger["other"] == pytest.approx(0.0, abs=1e-9)
    total = sum(ledger[phase] for phase in PHASES) + ledger["other"]
    assert total == pytest.approx(outcome.wall_s)


def test_what_no_phase_accounts_for_is_seen() -> None:
    """The ledger can fail: a phase that is not counted is not absorbed by another."""
    outcome = run(FakePool(busy_s=0.05, unaccounted_s=0.02))
    assert outcome.ledger["other"] == pytest.approx(3 * 0.02)


def test_how_long_a_worker_may_be_silent_follows_what_was_measured() -> None:
    """An evaluation may take hours; set-up and compilation are no part of what a run trains."""
    train_s = 3 * SPEC.objective.max_train_seconds
    pool = FakePool(busy_s=200.0)
    run(pool)
    assert pool.waits_s == [3600 + train_s, 2000 + train_s, 2000 + train_s]
    RunClient(pool, "b", SPEC).step()
    pool.slowest_start_s = 90.0  # another run's
    client = RunClient(pool, "c", SPEC)
    client.step()
    assert pool.waits_s[-1] == 900 + train_s
    client.finish(test=True)
    assert pool.waits_s[-1] == 3600 + train_s, "the test split may be larger"


@pytest.mark.parametrize(
    ("fault", "failure"), [(RunFailed(STOPPED, "the run was stopped"), None), (LOST, LOST.failure)]
)
def test_a_run_that_never_got_workers_has_only_waited(
    fault: RunFailed, failure: str | None
) -> None:
    pool = FakePool(faults={Allocation: fault})
    client = RunClient(pool, "a", SPEC)
    outcome = client.step()
    assert (outcome.is_over, outcome.failure, outcome.evaluation) == (True, failure, None)
    time.sleep(0.02)
    outcome = client.finish()
    assert outcome.wall_s == pytest.approx(0.03 * (1 + outcome.restarts) + 0.02)
    assert outcome.ledger == {"queue": pytest.approx(outcome.wall_s), "other": 0.0}
    asked = 1 if failure is None else 1 + RESTARTS
    assert outcome.restarts == asked - 1
    assert pool.heard == asked * [SPEC.placement] + [("a", {"keep": True})], "no command"


def test_a_run_goes_from_evaluation_to_evaluation_and_ends_by_itself() -> None:
    pool = FakePool(last=1)
    client = RunClient(pool, "a", SPEC, keep=False)
    first, second = client.step(), client.step()
    assert [one.is_over for one in (first, second)] == [False, True]
    assert [one.evaluation and one.evaluation.index for one in (first, second)] == [0, 1]
    assert (second.stop, second.failure, second.baseline_value) == ("epochs", None, 0.1)
    outcome = client.finish(save=True, test=True)
    assert (outcome.test_value, client.weights, outcome.concurrent) == (0.5, b"weights", 3)
    assert (outcome.hosts, outcome.devices) == (("here",), ("cpu",))
    commands = [Start(spec=SPEC), Advance(), Finish(save=True, test=True)]
    assert pool.heard == [SPEC.placement, *commands, ("a", {"keep": False})]


@pytest.mark.parametrize("fault", [BROKEN, RunFailed("oom", "CUDA out of memory")])
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


def test_a_run_ended_from_outside_gets_no_workers_any_more() -> None:
    pool = FakePool()
    assert release(pool, "a", keep=False) == 3
    assert pool.heard == [("a", {"keep": False, "for_good": True})]
