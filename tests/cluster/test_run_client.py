"""A run seen by the driver: what it took, what becomes of it, and what it goes on from where it
loses its workers."""

from pathlib import Path

import pytest

from raybench.cluster.protocol import (
    STOPPED,
    Advance,
    Allocation,
    Finish,
    HostLeaves,
    RunFailed,
    Start,
)
from raybench.cluster.run_client import RESTARTS, RunClient
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import RunState
from raybench.stats.clock import PHASES
from raybench.stats.record import RunOutcome
from tests.cluster.fake_pool import BROKEN, LOST, SAVING_S, SPEC, FakePool, time

pytestmark = pytest.mark.usefixtures("no_ray")


def run_two(pool: FakePool) -> RunOutcome:
    client = RunClient(pool, "a", SPEC)
    client.step()
    time.sleep(0.04)  # the owner thinks
    client.step()
    return client.finish()


def test_travel_and_the_owner_s_own_time_are_report() -> None:
    outcome = run_two(FakePool(travel_s=0.02, busy_s=0.05))
    ledger = outcome.ledger
    assert ledger["report"] == pytest.approx(3 * 0.02 + 0.04)
    assert ledger["train"] == pytest.approx(0.15)
    assert (ledger["queue"], ledger["start"]) == (0.02, 0.01)
    assert ledger["other"] == pytest.approx(0.0, abs=1e-9)
    total = sum(ledger[phase] for phase in PHASES) + ledger["other"]
    assert total == pytest.approx(outcome.wall_s)


def test_what_no_phase_accounts_for_is_seen() -> None:
    """The ledger can fail: a phase that is not counted is not absorbed by another."""
    outcome = run_two(FakePool(busy_s=0.05, unaccounted_s=0.02))
    assert outcome.ledger["other"] == pytest.approx(3 * 0.02)


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
    assert (outcome.test_value, client.weights, outcome.concurrent) == (0.5, Path("weights"), 3)
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
    told = second.failure, second.message, second.traceback, second.mistake, second.restarts
    assert told == (*fault.args, 0), "not tried again: it is the run's own fault"
    assert client.finish(save=True, test=True).failure == fault.failure
    assert pool.heard[-2:] == [Advance(), ("a", {"keep": True})], "the pool has dropped its group"


def test_a_run_that_is_no_number_any_more_is_not_tested_or_saved() -> None:
    pool = FakePool(last=0, is_finite=False, faults={Finish: LOST})
    client = RunClient(pool, "a", SPEC)
    outcome = client.step()
    assert (outcome.is_over, outcome.failure) == (True, "nan")
    assert client.finish(save=True, test=True).failure == "nan"
    assert pool.heard[-2] == Finish()


HUNG = RunFailed("timeout", "the workers did not answer within 600 s")
ASKING_S, QUEUE_S, TRAVEL_S, BUSY_S = 0.03, 0.02, 0.1, 1.0


def slow_pool(**options: object) -> FakePool:
    return FakePool(travel_s=TRAVEL_S, busy_s=BUSY_S, **options)  # type: ignore[arg-type]


def run(pool: FakePool, **wanted: bool) -> tuple[list[int], RunOutcome]:
    """Train to the end; return the indices of its evaluations as they came, and the outcome."""
    client = RunClient(pool, "a", SPEC)
    came = []
    while not (outcome := client.step()).is_over:
        assert outcome.evaluation is not None
        came.append(outcome.evaluation.index)
    return came, client.finish(**wanted)


def adds_up(outcome: RunOutcome) -> None:
    total = sum(outcome.ledger[phase] for phase in PHASES)
    assert outcome.ledger["other"] == pytest.approx(0.0, abs=1e-9)
    assert total == pytest.approx(outcome.wall_s)


@pytest.mark.parametrize("fault", [LOST, HUNG])
def test_a_lost_run_goes_on_from_its_checkpoint_on_the_same_clock(fault: RunFailed) -> None:
    pool = slow_pool(last=4, saves=(1,), faults={3: [fault]})
    came, outcome = run(pool)
    assert came == [0, 1, 2, 2, 3]
    assert (outcome.failure, outcome.stop, outcome.restarts) == (None, "epochs", 1)
    assert outcome.restart_reason == fault.message
    assert outcome.ledger["train"] == pytest.approx(6 * BUSY_S), "five evaluations and the end"
    # One whole evaluation, and the one in which it was lost.
    assert outcome.ledger["lost"] == pytest.approx(2 * (BUSY_S + TRAVEL_S))
    assert outcome.ledger["checkpoint"] == pytest.approx(SAVING_S)
    assert outcome.ledger["queue"] == pytest.approx(2 * QUEUE_S)
    assert outcome.ledger["report"] == pytest.approx(6 * TRAVEL_S)
    adds_up(outcome)
    starts = [command for command in pool.heard if isinstance(command, Start)]
    assert starts == [Start(spec=SPEC)] * 2, "what it goes on from is the pool's to fill in"


OWN = SPEC.model_copy(update={"workload": "train.py:train", "framework": "python"})


@pytest.mark.parametrize(
    ("spec", "expected"), [(OWN, ("timeout", 0)), (SPEC, ("worker_lost", RESTARTS))]
)
def test_a_loop_of_the_user_s_that_hangs_is_not_given_new_workers(
    spec: RunSpec, expected: tuple[str, int]
) -> None:
    """Code of ours hangs where a host or the network does."""
    client = RunClient(slow_pool(faults={0: HUNG}), "a", spec)
    client.step()
    outcome = client.finish()
    assert (outcome.failure, outcome.restarts) == expected
    ledger = outcome.ledger
    assert ledger["other"] == pytest.approx(0.0, abs=1e-9), "it is known what was waited for"
    assert ledger["lost"] >= (1 + outcome.restarts) * BUSY_S


def test_a_run_that_takes_longer_than_it_may_has_failed() -> None:
    """Between two reports its workers are waited for no longer; at a report it goes on no more."""
    limit_s = 2.5 * (BUSY_S + TRAVEL_S)
    pool = slow_pool(faults={2: [HUNG]})
    client = RunClient(pool, "a", OWN, limit_s=limit_s)
    waits_s = [client.step() and pool.waits_s[-1] for _ in range(3)]
    first_s, step_s = limit_s - (ASKING_S - QUEUE_S - 0.01), BUSY_S + TRAVEL_S
    assert waits_s == pytest.approx([first_s - n * step_s for n in range(3)])
    outcome = client.finish()
    assert (outcome.failure, outcome.restarts) == ("timeout", 0)
    assert "search.trial_seconds" in (outcome.message or "")
    assert "2 reports" in (outcome.message or "")
    assert outcome.evaluation is not None, "what was measured is kept"
    late = RunClient(slow_pool(), "b", SPEC, limit_s=0.9 * step_s)
    late.step()
    outcome = late.step()
    assert (outcome.is_over, outcome.failure) == (True, "timeout")
    assert late.finish(test=True).failure == "timeout"


def test_without_a_checkpoint_it_begins_again() -> None:
    came, outcome = run(slow_pool(last=2, faults={2: [LOST]}))
    assert came == [0, 1, 0, 1]
    assert outcome.ledger["train"] == pytest.approx(4 * BUSY_S)
    # All of it but the wait for workers, which was none of its work.
    lost = ASKING_S - QUEUE_S + 3 * (BUSY_S + TRAVEL_S)
    assert outcome.ledger["lost"] == pytest.approx(lost)
    adds_up(outcome)


def test_a_group_that_does_not_start_is_asked_for_again() -> None:
    pool = slow_pool(last=0, faults={Allocation: [LOST, LOST]})
    _, outcome = run(pool)
    assert (outcome.failure, outcome.restarts) == (None, 2)
    assert outcome.ledger["lost"] == pytest.approx(2 * ASKING_S)
    adds_up(outcome)


def test_the_number_of_restarts_is_bounded_and_said() -> None:
    pool = slow_pool(faults={1: LOST})
    came, outcome = run(pool)
    assert came == [0] * (1 + RESTARTS)
    assert (outcome.failure, outcome.restarts) == ("worker_lost", RESTARTS)
    assert outcome.message is not None
    assert LOST.message in outcome.message
    assert f"{RESTARTS} times" in outcome.message
    assert outcome.evaluation is not None, "what was measured is kept"
    assert outcome.ledger["train"] == outcome.evaluation.train_s
    assert pool.heard.count(SPEC.placement) == 1 + RESTARTS


def test_starts_on_hosts_that_leave_are_not_counted() -> None:
    leaves: list[RunFailed] = [HostLeaves("worker_lost", "host a is leaving the cluster")]
    pool = slow_pool(last=0, faults={Allocation: [*leaves * 5, *[LOST] * RESTARTS, *leaves]})
    _, outcome = run(pool)
    assert (outcome.failure, outcome.restarts) == (None, 6 + RESTARTS)


def test_a_run_that_gets_on_may_be_restarted_as_often_as_it_takes() -> None:
    last = 3 * RESTARTS
    faults = {index: [LOST] for index in range(1, last)}
    came, outcome = run(slow_pool(last=last, saves=tuple(range(last)), faults=faults))
    assert came == list(range(last)), "none twice: each was saved"
    assert (outcome.failure, outcome.restarts) == (None, last - 1)
    assert outcome.ledger["lost"] == pytest.approx((last - 1) * (BUSY_S + TRAVEL_S))
    adds_up(outcome)


def test_a_study_that_is_over_starts_nothing_again() -> None:
    pool = slow_pool(faults={1: LOST})
    client = RunClient(pool, "a", SPEC, may_restart=lambda: False)
    client.step()
    outcome = client.step()
    assert (outcome.failure, outcome.message, outcome.restarts) == (*LOST.args[:2], 0)


@pytest.mark.parametrize("wanted", ["save", "test"])
def test_workers_lost_at_the_end_are_replaced_where_something_is_wanted(wanted: str) -> None:
    pool = slow_pool(last=3, saves=(1,), faults={Finish: [LOST]})
    _, outcome = run(pool, **{wanted: True})
    assert (outcome.failure, outcome.stop, outcome.restarts) == (None, "epochs", 1)
    assert (outcome.test_value is not None) == (wanted == "test")
    again = pool.heard[pool.heard.index(Finish(**{wanted: True})) + 1 :]
    assert again[1:4] == [Start(spec=SPEC), Advance(), Finish(**{wanted: True})]
    assert outcome.ledger["lost"] == pytest.approx(3 * (BUSY_S + TRAVEL_S))
    adds_up(outcome)


@pytest.mark.parametrize(
    ("save", "expected"), [(True, ("worker_lost", RESTARTS)), (False, (None, 0))]
)
def test_workers_lost_at_the_end_again_and_again(save: bool, expected: tuple[object, int]) -> None:
    """A failure, but where nothing is wanted of them any more."""
    _, outcome = run(slow_pool(last=0, faults={Finish: LOST}), save=save)
    assert (outcome.failure, outcome.restarts) == expected
    assert outcome.stop == "epochs"


def begun_earlier(evaluations: int) -> RunState | None:
    """What is saved after the second evaluation of a run, which made so many."""
    pool = slow_pool(saves=(1,))
    client = RunClient(pool, "a", SPEC)
    for _ in range(evaluations):
        client.step()
    return pool.resume


def test_a_run_of_an_earlier_session_goes_on_where_its_checkpoint_is() -> None:
    resume = begun_earlier(3)
    time.sleep(1000.0)  # the driver is gone
    came, outcome = run(slow_pool(last=4, faults={3: [LOST]}, resume=resume))
    assert came == [2, 2, 3]
    assert outcome.ledger["train"] == pytest.approx(6 * BUSY_S)
    assert outcome.ledger["lost"] == pytest.approx(ASKING_S - QUEUE_S + 2 * (BUSY_S + TRAVEL_S))
    assert outcome.ledger["checkpoint"] == pytest.approx(SAVING_S)
    assert outcome.wall_s < 100
    adds_up(outcome)
