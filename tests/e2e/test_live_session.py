"""What happens to single runs on one live session: waiting, killed and hung workers, user code."""

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import ray

from raybench.cluster.run_client import RunClient
from raybench.cluster.session import Session
from raybench.core.objective import Objective
from raybench.core.outcome import RunOutcome
from raybench.core.placement import Placement
from raybench.core.spec import DatasetSpec, RunSpec

pytestmark = pytest.mark.ray
SPEC = RunSpec(
    batch_size_per_worker=32, objective=Objective(target=1.0, max_train_seconds=1.5), seed=3
)
NUM_RUNS, SETTLED = 30, 10
"""Runs in one group, and after how many allocators have reached their size."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    pytest.importorskip("torch")
    with Session() as session:
        yield session


def to_the_end(client: RunClient) -> RunOutcome:
    while not client.step().is_over:
        pass
    return client.finish()


def pids_of(session: Session, name: str) -> list[int]:
    groups = ray.get(session.pool.groups.remote())
    return next(list(group.pids) for group in groups if group.trial == name)


def test_seconds_in_the_queue_do_not_count_as_training(session: Session) -> None:
    alone = to_the_end(RunClient(session.pool, "alone", SPEC))
    holder = RunClient(session.pool, "holder", SPEC.model_copy(update={"num_workers": 2}))
    holder.step()
    waiting = RunClient(session.pool, "waiting", SPEC)
    ended: list[RunOutcome] = []
    thread = threading.Thread(target=lambda: ended.append(to_the_end(waiting)))
    thread.start()
    time.sleep(5)
    holder.finish()
    thread.join()
    ledger = ended[0].ledger
    assert ledger["queue"] >= 4.5
    assert ended[0].wall_s >= ledger["queue"]
    # Both train for the same 1.5 s budget: the clock must not have seen the wait.
    assert ledger["train"] == pytest.approx(alone.ledger["train"], rel=0.35)
    assert ledger["train"] < 5


# A TensorFlow worker that waits in a collective for a dead one does not see it by itself.
@pytest.mark.parametrize(
    ("framework", "num_workers"),
    [
        ("torch", 2),
        pytest.param("torch", 1, marks=pytest.mark.all),
        pytest.param("tensorflow", 2, marks=pytest.mark.all),
    ],
)
def test_a_killed_worker_ends_its_own_run_and_the_group_is_replaced(
    session: Session, framework: str, num_workers: int
) -> None:
    spec = SPEC.model_copy(update={"num_workers": num_workers, "framework": framework})
    client = RunClient(session.pool, f"victim-{framework}{num_workers}", spec)
    client.step()
    os.kill(pids_of(session, f"victim-{framework}{num_workers}")[-1], signal.SIGKILL)
    outcome = to_the_end(client)
    assert outcome.failure == "worker_lost"
    assert "common causes" not in (outcome.message or "")  # Ray's paragraph of guesses
    assert outcome.evaluation is not None, "what was measured is kept"
    after = to_the_end(RunClient(session.pool, f"next-{framework}{num_workers}", spec))
    assert after.ledger["start"] > 0  # in a new group
    assert after.stop == "max_train_seconds"


@pytest.mark.all
def test_a_hung_worker_is_found_by_the_time_limit(session: Session) -> None:
    client = RunClient(session.pool, "hung", SPEC, slice_timeout_s=3)
    client.step()
    os.kill(pids_of(session, "hung")[0], signal.SIGSTOP)
    assert to_the_end(client).failure == "timeout"


def test_an_exception_in_user_code_is_the_run_s_failure(session: Session) -> None:
    spec = SPEC.model_copy(update={"workload": "tests.e2e.broken_workload:Broken"})
    outcome = to_the_end(RunClient(session.pool, "broken", spec))
    assert outcome.failure == "error"
    assert outcome.message == "RuntimeError: this model cannot be built"
    assert "build_torch" in outcome.traceback


@pytest.mark.all
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_resident_memory_is_flat(session: Session, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"no {framework}")
    sizes = []
    for number in range(NUM_RUNS):
        spec = RunSpec(
            framework=framework,
            dataset=DatasetSpec(image_size=28, limit=256),
            batch_size_per_worker=(32, 128)[number % 2],
            optimizer=("adam", "lamb", "lars")[number % 3],
            epochs=1.0,
            objective=Objective(kind="accuracy_at_budget", max_train_seconds=30),
            seed=number,
        )
        assert to_the_end(RunClient(session.pool, f"{framework}{number}", spec)).stop == "epochs"
        groups = ray.get(session.pool.groups.remote())
        pids = next(one.pids for one in groups if one.placement == Placement(framework, 1))
        sizes.append(psutil.Process(pids[0]).memory_info().rss / 2**20)
    settled, last = sorted(sizes[SETTLED - 3 : SETTLED])[1], sorted(sizes[-3:])[1]
    # A run that kept its model and optimizer would add 5 MB each, 100 MB in all.
    assert last - settled < 40, [round(size) for size in sizes]
