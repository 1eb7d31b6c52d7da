"""A run that loses its workers: what it goes on from, how often, and where the seconds stand."""

import pytest

from raybench.cluster.protocol import Advance, Allocation, Finish, HostLeaves, RunFailed, Start
from raybench.cluster.run_client import RESTARTS, RunClient
from raybench.stats.clock import PHASES
from raybench.stats.record import RunOutcome
from tests.cluster.fake_pool import LOST, REFUSAL, SAVING_S, SPEC, FakePool, time

pytestmark = pytest.mark.usefixtures("no_ray")
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


def test_without_a_checkpoint_it_begins_again() -> None:
    came, outcome = run(slow_pool(last=2, faults={2: [LOST]}))
    assert came == [0, 1, 0, 1]
    assert outcome.ledger["train"] == pytest.approx(4 * BUSY_S)
    # All of it but the wait for workers, which was none of its work.
    lost = ASKING_S - QUEUE_S + 3 * (BUSY_S + TRAVEL_S)
    assert outcome.ledger["lost"] == pytest.approx(lost)
    adds_up(outcome)


def test_a_group_that_does_not_start_is_asked_for_again() -> None:
    pool = slow_pool(last=0, faults={Allocation: [HUNG, LOST]})
    _, outcome = run(pool)
    assert (outcome.failure, outcome.restarts) == (None, 2)
    assert outcome.ledger["lost"] == pytest.approx(2 * ASKING_S)
    adds_up(outcome)


def test_the_number_of_restarts_is_bounded_and_said() -> None:
    pool = slow_pool(faults={1: LOST})
    came, outcome = run(pool)
    assert came == [0] * (1 + RESTARTS)
    assert (outcome.failure, outcome.restarts) == ("worker_lost", RESTARTS)
    assert outcome.message == f"{LOST.message} (given new workers {RESTARTS} times)"
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


def test_the_run_s_own_faults_are_not_tried_again() -> None:
    _, outcome = run(slow_pool(faults={1: RunFailed("error", "ValueError: no")}))
    assert (outcome.failure, outcome.restarts) == ("error", 0)


def test_a_study_that_is_over_starts_nothing_again() -> None:
    pool = slow_pool(faults={1: LOST})
    client = RunClient(pool, "a", SPEC, goes_on=lambda: False)
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


def test_workers_lost_at_the_end_are_a_failure_after_so_many_times() -> None:
    _, outcome = run(slow_pool(last=0, faults={Finish: LOST}), save=True)
    assert (outcome.failure, outcome.stop, outcome.restarts) == ("worker_lost", "epochs", RESTARTS)


def test_workers_lost_at_the_end_take_nothing_where_nothing_is_wanted() -> None:
    _, outcome = run(slow_pool(last=0, faults={Finish: LOST}))
    assert (outcome.failure, outcome.restarts) == (None, 0)


def test_a_run_of_an_earlier_session_goes_on_where_its_checkpoint_is() -> None:
    first = slow_pool(saves=(1,))
    begun = RunClient(first, "a", SPEC)
    for _ in range(3):
        begun.step()
    time.sleep(1000.0)  # the driver is gone
    second = slow_pool(last=4, faults={3: [LOST]}, resume=first.resume)
    came, outcome = run(second)
    assert came == [2, 2, 3]
    assert outcome.ledger["train"] == pytest.approx(6 * BUSY_S)
    assert outcome.ledger["lost"] == pytest.approx(ASKING_S - QUEUE_S + 2 * (BUSY_S + TRAVEL_S))
    assert outcome.ledger["checkpoint"] == pytest.approx(SAVING_S)
    assert outcome.wall_s < 100
    adds_up(outcome)


def refusing_pool(**options: object) -> FakePool:
    """Its workers refuse the checkpoint of an earlier session, of two evaluations."""
    first = slow_pool(saves=(1,))
    begun = RunClient(first, "a", SPEC)
    for _ in range(2):
        begun.step()
    return slow_pool(faults={2: [REFUSAL]}, resume=first.resume, **options)


def test_a_run_whose_checkpoint_is_refused_begins_anew() -> None:
    pool = refusing_pool(last=3)
    came, outcome = run(pool)
    assert came == [0, 1, 2], "and 3 is the last"
    assert (outcome.failure, outcome.stop, outcome.restarts) == (None, "epochs", 1)
    assert outcome.refused == outcome.restart_reason == REFUSAL.message
    assert pool.heard.count("forget") == 1
    assert outcome.ledger["train"] == pytest.approx(5 * BUSY_S), "four evaluations and the end"
    assert outcome.ledger["lost"] == pytest.approx(ASKING_S - QUEUE_S + BUSY_S + TRAVEL_S)
    assert outcome.ledger["checkpoint"] == 0
    adds_up(outcome)


def test_a_refused_checkpoint_stays_where_the_study_is_over() -> None:
    pool = refusing_pool()
    outcome = RunClient(pool, "a", SPEC, goes_on=lambda: False).step()
    assert (outcome.is_over, outcome.failure, outcome.refused) == (True, None, None)
    assert "forget" not in pool.heard
