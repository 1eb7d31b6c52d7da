"""What users break: killed workers, Ctrl-C, waiting for workers, a cluster that is too small."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import raybench
from raybench.cluster.protocol import RunFailed
from raybench.cluster.run_client import RunClient, shape_of
from raybench.cluster.session import Session
from raybench.cluster.signals import descendants
from raybench.core.errors import UserError
from raybench.core.objective import Objective
from raybench.core.spec import RunSpec
from raybench.results.store import read_records

from .commands import start

pytestmark = pytest.mark.ray
SPACE = Path(__file__).with_name("small.yaml")
SPEC = RunSpec(
    batch_size_per_worker=32, objective=Objective(target=1.0, max_train_seconds=1.5), seed=3
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    pytest.importorskip("torch")
    with Session() as session:
        yield session


def run(lease: RunClient) -> dict[str, float]:
    """Drive a lease to its end; return the ledger of the run."""
    lease.acquire()
    evaluation = lease.start()
    while not evaluation.stop:
        evaluation = lease.advance()
    lease.finish()
    ledger, _ = lease.ledger()
    lease.close()
    return ledger | {"samples": evaluation.samples}


def advance_for_ever(lease: RunClient) -> None:
    while True:
        lease.advance()


def test_ten_seconds_in_the_queue_do_not_count_as_training(session: Session) -> None:
    alone = run(RunClient(session.hub, "alone", SPEC))
    holder = RunClient(session.hub, "holder", SPEC.model_copy(update={"num_workers": 2}))
    holder.acquire()
    waiting = RunClient(session.hub, "waiting", SPEC)
    reference = session.hub.acquire.remote("waiting", waiting.shape)
    time.sleep(10)
    holder.close()
    waiting.take(reference)
    evaluation = waiting.start()
    while not evaluation.stop:
        evaluation = waiting.advance()
    waiting.finish()
    ledger, wall = waiting.ledger()
    waiting.close()
    assert ledger["queue"] >= 9.5
    assert wall >= ledger["queue"]
    # Both train for the same 1.5 s budget: the clock must not have seen the wait.
    assert ledger["train"] == pytest.approx(alone["train"], rel=0.35)
    assert ledger["train"] < 5


# A TensorFlow worker that waits in a collective for a dead one does not see it by itself.
@pytest.mark.parametrize(
    ("framework", "num_workers"), [("torch", 1), ("torch", 2), ("tensorflow", 2)]
)
def test_a_killed_worker_ends_its_own_run_and_the_group_is_replaced(
    session: Session, framework: str, num_workers: int
) -> None:
    import ray

    spec = SPEC.model_copy(update={"num_workers": num_workers, "framework": framework})
    lease = RunClient(session.hub, f"victim-{framework}{num_workers}", spec)
    lease.acquire()
    lease.start()
    groups = ray.get(session.hub.groups.remote()).values()
    pids = next(g["pids"] for g in groups if g["trial"] == f"victim-{framework}{num_workers}")
    os.kill(pids[-1], signal.SIGKILL)
    with pytest.raises(RunFailed) as caught:
        advance_for_ever(lease)
    assert caught.value.failure == "worker_lost"
    assert "common causes" not in caught.value.message  # Ray's paragraph of guesses
    lease.close()
    after = run(RunClient(session.hub, f"next-{framework}{num_workers}", spec))
    assert after["start"] > 0  # in a new group
    assert after["samples"] > 0


def test_a_hung_worker_is_found_by_the_time_limit(session: Session) -> None:
    import ray

    lease = RunClient(session.hub, "hung", SPEC, slice_timeout_s=3)
    lease.acquire()
    groups = ray.get(session.hub.groups.remote()).values()
    pids = next(g["pids"] for g in groups if g["trial"] == "hung")
    os.kill(pids[0], signal.SIGSTOP)
    with pytest.raises(RunFailed) as caught:
        lease.start()
    assert caught.value.failure == "timeout"
    lease.close()


def test_an_exception_in_user_code_is_the_run_s_failure(session: Session) -> None:
    spec = SPEC.model_copy(update={"workload": "tests.e2e.broken_workload:Broken"})
    lease = RunClient(session.hub, "broken", spec)
    lease.acquire()
    with pytest.raises(RunFailed) as caught:
        lease.start()
    assert caught.value.failure == "error"
    assert caught.value.message == "RuntimeError: this model cannot be built"
    assert "build_torch" in caught.value.traceback
    lease.close()


def test_more_workers_than_the_cluster_has_are_refused(session: Session) -> None:
    shape = shape_of(SPEC.model_copy(update={"num_workers": 999}))
    with pytest.raises(UserError, match=r"num_workers: 999 workers .* room for \d+"):
        session.capacity.refuse_infeasible(shape)


def test_ctrl_c_writes_results_and_the_same_command_continues(tmp_path: Path) -> None:
    records = tmp_path / "results" / "small" / "records.jsonl"
    process = start("tune", SPACE, "--set", "confirm.top=0", cwd=tmp_path, log=tmp_path / "log")
    wait_for_run(records, tmp_path / "log")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=90) == 130, (tmp_path / "log").read_text()
    first = raybench.load(records.parent).trials
    finished = set(first[first["stop"] != "interrupted"]["trial"])
    assert 1 <= len(finished) < 4
    assert (records.parent / "trials.csv").is_file()
    process = start("tune", SPACE, "--set", "confirm.top=0", cwd=tmp_path, log=tmp_path / "log2")
    assert process.wait(timeout=200) == 0, (tmp_path / "log2").read_text()
    trials = raybench.load(records.parent).trials
    trials = trials[trials["phase"] == "search"]
    assert sorted(trials["trial"]) == ["0000", "0001", "0002", "0003"]
    assert set(trials["state"]) == {"complete"}
    kept = trials[trials["trial"].isin(finished)]
    before = first.set_index("trial")["train_s"]
    assert all(row.train_s == before[row.trial] for row in kept.itertuples())


def test_ctrl_c_twice_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    records = tmp_path / "results" / "small" / "records.jsonl"
    process = start("tune", SPACE, cwd=tmp_path, log=tmp_path / "log")
    wait_for_run(records, tmp_path / "log")
    started = descendants(process.pid)
    assert len(started) > 5, "Ray, its agents and workers"
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    assert "the same command continues" in (tmp_path / "log").read_text()
    assert [r for r in read_records(records.parent) if r["kind"] == "run"]
    deadline = time.monotonic() + 5
    while left := [pid for pid in started if is_running(pid)]:
        assert time.monotonic() < deadline, [Path(f"/proc/{p}/cmdline").read_text() for p in left]
        time.sleep(0.1)


def wait_for_run(records: Path, log: Path) -> None:
    """Wait until a finished run is recorded."""
    deadline = time.monotonic() + 120
    while '"kind": "run"' not in (records.read_text() if records.is_file() else ""):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
