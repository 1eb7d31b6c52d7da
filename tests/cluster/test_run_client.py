"""Run as seen by the driver: its ledger, its outcome, and restarts after lost workers."""

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
from raybench.stats.clock import PHASES
from raybench.stats.record import RunOutcome
from tests.cluster.fake_pool import BROKEN, LOST, SAVING_S, SPEC, FakePool, time

pytestmark = pytest.mark.usefixtures("no_ray")


def assert_phases_sum_to_wall_time(outcome: RunOutcome) -> None:
    total = sum(outcome.ledger[phase] for phase in PHASES)
    assert outcome.ledger["other"] == pytest.approx(0.0, abs=1e-9)
    assert total == pytest.approx(outcome.wall_s)


def run_two(pool: FakePool) -> RunOutcome:
    client = RunClient(pool, "a", SPEC)
    client.step()
    time.sleep(0.04)  # the driver is busy between two steps
    client.step()
    return client.finish()


def test_travel_and_time_of_the_driver_count_as_report():
    outcome = run_two(FakePool(travel_s=0.02, busy_s=0.05))
    ledger = outcome.ledger
    assert ledger["report"] == pytest.approx(3 * 0.02 + 0.04)
    assert ledger["train"] == pytest.approx(0.15)
    assert (ledger["queue"], ledger["start"]) == (0.02, 0.01)
    assert_phases_sum_to_wall_time(outcome)


def test_unaccounted_time_is_in_phase_other():
    """A phase that is not counted is not absorbed by another one."""
    outcome = run_two(FakePool(busy_s=0.05, unaccounted_s=0.02))
    assert outcome.ledger["other"] == pytest.approx(3 * 0.02)


@pytest.mark.parametrize(
    ("fault", "failure"), [(RunFailed(STOPPED, "the run was stopped"), None), (LOST, LOST.failure)]
)
def test_run_without_workers_has_only_queue_time(fault, failure):
    pool = FakePool(faults={Allocation: fault})
    client = RunClient(pool, "a", SPEC)
    outcome = client.step()
    assert (outcome.is_over, outcome.failure, outcome.evaluation) == (True, failure, None)
    time.sleep(0.02)
    outcome = client.finish()
    assert outcome.wall_s == pytest.approx(0.03 * (1 + outcome.restarts) + 0.02)
    assert outcome.ledger == {"queue": pytest.approx(outcome.wall_s), "other": 0.0}
    num_requests = 1 if failure is None else 1 + RESTARTS
    assert outcome.restarts == num_requests - 1
    expected = num_requests * [SPEC.resources] + [("a", {"keep": True})]
    assert pool.heard == expected, "no command is sent"


def test_run_steps_through_evaluations_to_its_end():
    pool = FakePool(last=1)
    client = RunClient(pool, "a", SPEC, keep=False)
    first, second = client.step(), client.step()
    outcomes = (first, second)
    assert [outcome.is_over for outcome in outcomes] == [False, True]
    assert [outcome.evaluation and outcome.evaluation.index for outcome in outcomes] == [0, 1]
    assert (second.stop, second.failure, second.baseline_value) == ("epochs", None, 0.1)
    outcome = client.finish(save=True, test=True)
    assert (outcome.test_value, client.weights, outcome.concurrent) == (0.5, Path("weights"), 3)
    assert (outcome.hosts, outcome.devices) == (("here",), ("cpu",))
    commands = [Start(spec=SPEC), Advance(), Finish(save=True, test=True)]
    assert pool.heard == [SPEC.resources, *commands, ("a", {"keep": False})]


def test_failure_ends_the_run_and_keeps_its_last_evaluation():
    pool = FakePool(faults={1: BROKEN})
    client = RunClient(pool, "a", SPEC)
    first, second = client.step(), client.step()
    assert second.is_over
    assert second.evaluation == first.evaluation is not None
    failure = second.failure, second.message, second.traceback, second.mistake
    assert (*failure, second.restarts) == (*BROKEN.args, 0), "errors of the run are not retried"
    assert client.finish(save=True, test=True).failure == BROKEN.failure
    assert pool.heard[-2:] == [Advance(), ("a", {"keep": True})], "the pool has closed the group"


def test_run_that_became_nan_is_not_tested_or_saved():
    pool = FakePool(last=0, is_finite=False, faults={Finish: LOST})
    client = RunClient(pool, "a", SPEC)
    outcome = client.step()
    assert (outcome.is_over, outcome.failure) == (True, "nan")
    assert client.finish(save=True, test=True).failure == "nan"
    assert pool.heard[-2] == Finish()


HUNG = RunFailed("timeout", "the workers did not answer within 600 s")
ASKING_S, QUEUE_S, TRAVEL_S, BUSY_S = 0.03, 0.02, 0.1, 1.0


def slow_pool(**options: object) -> FakePool:
    return FakePool(travel_s=TRAVEL_S, busy_s=BUSY_S, **options)


def run(pool: FakePool, **finish_options: bool) -> tuple[list[int], RunOutcome]:
    """Train to the end; return the indices of the evaluations in their order, and the outcome.

    The seconds of all phases must add up to the wall time.
    """
    client = RunClient(pool, "a", SPEC)
    indices = []
    while not (outcome := client.step()).is_over:
        indices.append(outcome.evaluation.index)
    outcome = client.finish(**finish_options)
    assert_phases_sum_to_wall_time(outcome)
    return indices, outcome


@pytest.mark.parametrize("fault", [LOST, HUNG])
def test_run_with_lost_workers_resumes_from_its_checkpoint(fault):
    pool = slow_pool(last=4, saves=(1,), faults={3: [fault]})
    indices, outcome = run(pool)
    assert indices == [0, 1, 2, 2, 3]
    assert (outcome.failure, outcome.stop, outcome.restarts) == (None, "epochs", 1)
    assert outcome.restart_reason == fault.message
    assert outcome.ledger["train"] == pytest.approx(6 * BUSY_S), "five evaluations and the end"
    # One complete evaluation, and the one in which the workers were lost.
    assert outcome.ledger["lost"] == pytest.approx(2 * (BUSY_S + TRAVEL_S))
    assert outcome.ledger["checkpoint"] == pytest.approx(SAVING_S)
    assert outcome.ledger["queue"] == pytest.approx(2 * QUEUE_S)
    assert outcome.ledger["report"] == pytest.approx(6 * TRAVEL_S)
    starts = [command for command in pool.heard if isinstance(command, Start)]
    assert starts == [Start(spec=SPEC)] * 2, "the pool fills in the checkpoint"


OWN_LOOP = SPEC.model_copy(update={"workload": "train.py:train", "framework": "python"})


@pytest.mark.parametrize(
    ("spec", "expected"), [(OWN_LOOP, ("timeout", 0)), (SPEC, ("worker_lost", RESTARTS))]
)
def test_hanging_user_loop_is_not_restarted(spec, expected):
    """A hang in code of raybench is caused by a host or the network, so that run is restarted."""
    client = RunClient(slow_pool(faults={0: HUNG}), "a", spec)
    client.step()
    outcome = client.finish()
    assert (outcome.failure, outcome.restarts) == expected
    ledger = outcome.ledger
    assert ledger["other"] == pytest.approx(0.0, abs=1e-9), "the waiting time is accounted for"
    assert ledger["lost"] >= (1 + outcome.restarts) * BUSY_S


def test_run_beyond_its_time_limit_fails():
    """The limit ends the wait for a report, and a run that is beyond it at a report."""
    limit_s = 2.5 * (BUSY_S + TRAVEL_S)
    pool = slow_pool(faults={2: [HUNG]})
    client = RunClient(pool, "a", OWN_LOOP, limit_s=limit_s)
    waits_s = [client.step() and pool.waits_s[-1] for _ in range(3)]
    first_s, step_s = limit_s - (ASKING_S - QUEUE_S - 0.01), BUSY_S + TRAVEL_S
    assert waits_s == pytest.approx([first_s - n * step_s for n in range(3)])
    outcome = client.finish()
    assert (outcome.failure, outcome.restarts) == ("timeout", 0)
    assert "search.trial_seconds" in outcome.message
    assert "2 reports" in outcome.message
    assert outcome.evaluation is not None, "measured values are kept"
    late = RunClient(slow_pool(), "b", SPEC, limit_s=0.9 * step_s)
    late.step()
    outcome = late.step()
    assert (outcome.is_over, outcome.failure) == (True, "timeout")
    assert late.finish(test=True).failure == "timeout"


def test_run_without_checkpoint_restarts_from_the_beginning():
    indices, outcome = run(slow_pool(last=2, faults={2: [LOST]}))
    assert indices == [0, 1, 0, 1]
    assert outcome.ledger["train"] == pytest.approx(4 * BUSY_S)
    # All work; the wait for workers is in phase queue.
    lost = ASKING_S - QUEUE_S + 3 * (BUSY_S + TRAVEL_S)
    assert outcome.ledger["lost"] == pytest.approx(lost)


def test_number_of_restarts_is_limited():
    pool = slow_pool(faults={1: LOST})
    indices, outcome = run(pool)
    assert indices == [0] * (1 + RESTARTS)
    assert (outcome.failure, outcome.restarts) == ("worker_lost", RESTARTS)
    assert LOST.message in outcome.message
    assert f"{RESTARTS} times" in outcome.message
    assert outcome.evaluation is not None, "measured values are kept"
    assert outcome.ledger["train"] == outcome.evaluation.train_s
    assert pool.heard.count(SPEC.resources) == 1 + RESTARTS


def test_failed_starts_are_repeated_and_do_not_count_on_draining_hosts():
    leaves: list[RunFailed] = [HostLeaves("worker_lost", "host a is leaving the cluster")]
    pool = slow_pool(last=0, faults={Allocation: [*leaves * 5, *[LOST] * RESTARTS, *leaves]})
    _, outcome = run(pool)
    assert (outcome.failure, outcome.restarts) == (None, 6 + RESTARTS)
    assert outcome.ledger["lost"] == pytest.approx((6 + RESTARTS) * ASKING_S)


def test_restarts_are_unlimited_while_the_run_makes_progress():
    last = 3 * RESTARTS
    faults = {index: [LOST] for index in range(1, last)}
    indices, outcome = run(slow_pool(last=last, saves=tuple(range(last)), faults=faults))
    assert indices == list(range(last)), "each was saved, so none is repeated"
    assert (outcome.failure, outcome.restarts) == (None, last - 1)
    assert outcome.ledger["lost"] == pytest.approx((last - 1) * (BUSY_S + TRAVEL_S))


def test_run_of_a_finished_study_is_not_restarted():
    pool = slow_pool(faults={1: LOST})
    client = RunClient(pool, "a", SPEC, may_restart=lambda: False)
    client.step()
    outcome = client.step()
    assert (outcome.failure, outcome.message, outcome.restarts) == (*LOST.args[:2], 0)


@pytest.mark.parametrize("wanted", ["save", "test"])
def test_workers_lost_at_finish_are_replaced_for_weights_or_test(wanted):
    pool = slow_pool(last=3, saves=(1,), faults={Finish: [LOST]})
    _, outcome = run(pool, **{wanted: True})
    assert (outcome.failure, outcome.stop, outcome.restarts) == (None, "epochs", 1)
    assert (outcome.test_value is not None) == (wanted == "test")
    calls_after_loss = pool.heard[pool.heard.index(Finish(**{wanted: True})) + 1 :]
    assert calls_after_loss[1:4] == [Start(spec=SPEC), Advance(), Finish(**{wanted: True})]
    assert outcome.ledger["lost"] == pytest.approx(3 * (BUSY_S + TRAVEL_S))


@pytest.mark.parametrize(
    ("fault", "save", "expected"),
    [
        (LOST, True, ("worker_lost", RESTARTS, ())),
        (LOST, False, (None, 0, (LOST.message,))),
        # A study that is stopped also stops runs that have just reached their target.
        (RunFailed(STOPPED, "the run was stopped"), False, (None, 0, ())),
    ],
)
def test_fault_at_every_finish_fails_a_run_with_weights_to_save(fault, save, expected):
    """Without weights to save, the finished run is complete."""
    _, outcome = run(slow_pool(last=0, faults={Finish: fault}), save=save)
    assert (outcome.failure, outcome.restarts, outcome.notes) == expected
    assert outcome.stop == "epochs"


def test_run_of_an_earlier_session_resumes_from_its_checkpoint():
    earlier = slow_pool(saves=(1,))
    client = RunClient(earlier, "a", SPEC)
    for _ in range(3):
        client.step()
    time.sleep(1000.0)  # time between two sessions, which does not count
    indices, outcome = run(slow_pool(last=4, faults={3: [LOST]}, resume=earlier.resume))
    assert indices == [2, 2, 3]
    assert outcome.ledger["train"] == pytest.approx(6 * BUSY_S)
    assert outcome.ledger["lost"] == pytest.approx(ASKING_S - QUEUE_S + 2 * (BUSY_S + TRAVEL_S))
    assert outcome.ledger["checkpoint"] == pytest.approx(SAVING_S)
    assert outcome.wall_s < 100
