"""Single runs in one live session: waiting, killed and hung workers, sockets, errors of user code,
and the user's own training loops, with torch, without a framework, and as commands."""

import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import ray
from rich.console import Console

import raybench
from raybench.cluster.doctor import examine
from raybench.cluster.run_client import RunClient
from raybench.cluster.session import Session
from raybench.report.progress import ProgressDisplay
from raybench.report.scaling_report import ScalingReport
from raybench.results.store import Store, StudyFiles
from raybench.runs.lifecycle import single_runs
from raybench.runs.scale import run_study
from raybench.runs.wait_watch import Deadline
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec, ResourceRequest, RunSpec
from raybench.spec.scaling_study import build_scaling_study
from raybench.stats.record import RunOutcome
from raybench.training.own import state_of
from tests.cluster.test_doctor import SCHEMA
from tests.factories import wait_for

from .test_kills import facts
from .test_ports import Socket, assert_only_here, listening

pytestmark = pytest.mark.ray
SPEC = RunSpec(
    batch_size_per_worker=32, objective=Objective(target=1.0, max_train_seconds=1.5), seed=3
)
TO_THE_LAST_EPOCH = Objective(kind="best_at_budget", max_train_seconds=1e6)
CONTINUED = RunSpec(
    workload="tests.training.regularised:Regularised",
    dataset=DatasetSpec(limit=300),
    objective=TO_THE_LAST_EPOCH,
    optimizer="lamb",
    schedule="cosine",
    epochs=3.0,
    batch_size_per_worker=16,
    eval_every_samples=150,
    checkpoint_every_s=1e-9,
)
LOOPS = Path(__file__).with_name("own_loops.py")
TRAIN = RunSpec(
    workload=f"{LOOPS}:train",
    model={"hidden_units": 32},
    objective=Objective(target=0.9, max_train_seconds=60),
    learning_rate=0.003,
)
PLAIN = RunSpec(
    workload=f"{LOOPS}:plain",
    framework="python",
    model={"slowness": 1},
    objective=Objective(target=0.9),
)
NUM_RUNS, SETTLED = 22, 8
"""Number of runs in one group, and number after which allocators have reached their size."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    pytest.importorskip("torch")
    with Session() as session:
        yield session


def to_the_end(client: RunClient) -> RunOutcome:
    while not client.step().is_over:
        pass
    return client.finish()


def printed_by(session: Session, name: str) -> list[str]:
    printed: bytes = ray.get(session.pool.printed.remote(name))
    return printed.decode().splitlines()


def pids_of(session: Session, name: str) -> list[int]:
    groups = ray.get(session.pool.groups.remote())
    return next(pids for trial, _, pids in groups if trial == name)


def test_workers_of_our_own_ray_are_as_nice_as_this_process(session):
    """By default, Ray adds 15, and any ordinary process would slow them down."""
    niceness = ray.get(ray.remote(num_cpus=0)(lambda: os.nice(0)).remote())
    assert niceness == os.getpriority(os.PRIO_PROCESS, 0)
    # The interface of this session's workers is not set for another Ray of this process.
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_seconds_in_the_queue_do_not_count_as_training(session):
    holder = RunClient(session.pool, "holder", SPEC.model_copy(update={"num_workers": 2}))
    holder.step()
    waiting = RunClient(session.pool, "waiting", SPEC)
    with ThreadPoolExecutor(1) as threads:
        ending = threads.submit(to_the_end, waiting)
        wait_for(lambda: "waiting" in session.waiting())
        time.sleep(0.5)
        holder.finish()
        outcome = ending.result()
    assert outcome.ledger["queue"] >= 0.5
    assert outcome.ledger["train"] <= outcome.wall_s - outcome.ledger["queue"]
    assert outcome.stop == "max_train_seconds"


# A TensorFlow worker in a collective does not notice that another worker is dead.
@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.all)])
def test_a_run_that_lost_a_worker_equals_an_undisturbed_one(session, framework):
    """The worker is killed between two evaluations, after a checkpoint; all values are equal, bit
    by bit: batch normalization, dropout, momentum, schedule and order of the samples are resumed.
    """
    spec = CONTINUED.model_copy(update={"num_workers": 2, "framework": framework})
    undisturbed = RunClient(session.pool, f"whole-{framework}", spec)
    expected = curve_of(undisturbed)
    name = f"victim of {framework}"
    client = RunClient(session.pool, name, spec)
    before = [client.step() for _ in range(3)]
    assert before[-1].saved == 3
    os.kill(pids_of(session, name)[-1], signal.SIGKILL)
    after = curve_of(client)
    points = [one.evaluation for one in [*before, *after[:-1]]]
    assert facts(points) == facts([one.evaluation for one in expected[:-1]])
    assert sorted(arrays_of(framework, client)) == sorted(arrays_of(framework, undisturbed))
    end = after[-1]
    assert (end.failure, end.stop, end.restarts) == (None, "epochs", 1)
    assert end.ledger["start"] > 0, "in a new group"
    assert end.ledger["lost"] > 0
    assert expected[-1].ledger["lost"] == 0
    seconds = [one.evaluation.train_s for one in [*before, *after] if one.evaluation]
    assert seconds == sorted(seconds), "one training clock"
    assert end.ledger["other"] > -0.1 * end.wall_s, "no second is counted twice"
    assert "common causes" not in end.restart_reason  # Ray's paragraph of guesses


def curve_of(client: RunClient) -> list[RunOutcome]:
    """Train to the end; return the outcome after each evaluation, and the final one."""
    outcomes = []
    while not outcomes or not outcomes[-1].is_over:
        outcomes.append(client.step())
    return [*outcomes, client.finish(save=True)]


def arrays_of(framework: str, client: RunClient) -> list[tuple[str, bytes]]:
    """Return the name and content of every array of the run's saved weights."""
    weights = io.BytesIO(client.weights.read_bytes())
    if framework == "torch":
        import torch

        state = torch.load(weights, weights_only=True)
        return [(name, value.numpy().tobytes()) for name, value in state.items()]
    import h5py

    found: list[tuple[str, bytes]] = []
    with h5py.File(weights) as file:
        file.visititems(
            lambda name, node: (
                found.append((name, node[()].tobytes())) if isinstance(node, h5py.Dataset) else None
            )
        )
    return found


@pytest.mark.all
def test_a_hung_worker_is_found_by_the_time_limit_and_replaced(session, monkeypatch):
    client = RunClient(session.pool, "hung", SPEC)
    client.step()
    os.kill(pids_of(session, "hung")[0], signal.SIGSTOP)
    limits = iter([2.0])  # the new workers have no such limit
    monkeypatch.setattr(client, "_timeout_s", lambda command: next(limits, 600.0))
    outcome = to_the_end(client)
    assert (outcome.failure, outcome.restarts) == (None, 1)
    assert "2 s" in outcome.restart_reason
    assert outcome.ledger["lost"] > 2


def test_an_exception_in_user_code_is_the_run_s_failure(session):
    spec = SPEC.model_copy(update={"workload": "tests.e2e.broken_workload:Broken"})
    outcome = to_the_end(RunClient(session.pool, "broken", spec))
    assert outcome.failure == "error"
    assert outcome.mistake is ErrorCode.INVALID_MODEL
    assert "RuntimeError" in outcome.message
    assert "build_torch" in outcome.traceback


@pytest.mark.all
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_resident_memory_is_flat(session, framework):
    pytest.importorskip(framework)
    sizes = []
    for number in range(NUM_RUNS):
        spec = RunSpec(
            framework=framework,
            dataset=DatasetSpec(image_size=28, limit=256),
            batch_size_per_worker=(32, 128)[number % 2],
            optimizer=("adam", "lamb", "lars")[number % 3],
            epochs=1.0,
            objective=TO_THE_LAST_EPOCH,
            seed=number,
        )
        assert to_the_end(RunClient(session.pool, f"{framework}{number}", spec)).stop == "epochs"
        groups = ray.get(session.pool.groups.remote())
        pids = next(pids for _, one, pids in groups if one == ResourceRequest(framework, 1))
        sizes.append(psutil.Process(pids[0]).memory_info().rss / 2**20)
    settled, last = sorted(sizes[SETTLED - 3 : SETTLED])[1], sorted(sizes[-3:])[1]
    # A run that kept its model and optimizer would add 5 MB each, 70 MB in all.
    assert last - settled < 40, [round(size) for size in sizes]


@pytest.mark.all
def test_a_scaling_study_measures_what_more_workers_bring(session, tmp_path):
    """A study without its command: runs, records, cells, models and figures."""
    content = {"base": {"epochs": 2}, "num_workers": [1, 2], "batch_sizes": [64], "repeats": 2}
    study = build_scaling_study(content, "test", name="tiny")
    console = Console(file=io.StringIO(), width=120)
    objective = study.base.objective.model_dump(mode="json")
    with Store(tmp_path / "tiny") as store:
        store.write_yaml(
            "study.yaml",
            {"study": {"objective": objective}, "scaling_study": study.document()},
        )
        progress = ProgressDisplay(console, num_trials=6)
        with single_runs(session, store, Deadline(None), progress, wait_s=None) as single_run:
            for _ in range(2):  # the second time, nothing is left to run
                run_study(study, single_run, progress)
    results = raybench.load(tmp_path / "tiny")
    assert len(results.runs) == 6
    assert set(results.trials["concurrent"]) == {0}, "one run at a time"
    assert set(results.trials["state"]) == {"complete"}
    cells = results.scaling
    assert cells["n"].tolist() == [2] * 4
    assert set(zip(cells["scaling"], cells["num_workers"], strict=True)) == {
        (scaling, workers) for scaling in ("weak", "strong") for workers in (1, 2)
    }
    assert set(cells["num_parameters"]) == {402_442}
    assert set(cells["num_nodes"]) == {1}
    assert cells["samples_per_s"].gt(10).all()
    assert cells["efficiency"].between(0.05, 2).all()
    assert cells["input_share"].between(0, 1).all()
    report = ScalingReport.of(results)
    assert all(path.is_file() for path in report.write(StudyFiles(results.folder)))
    report.show(console)
    assert "Leave-one-out error" in console.file.getvalue()


@pytest.mark.all
def test_nothing_listens_on_the_network(session):
    """Sockets are listed from the start of two workers to the end of their run."""
    found, of_tensorflow = set[Socket](), set[int]()
    for framework in ("tensorflow", "torch"):
        pytest.importorskip(framework)
        spec = SPEC.model_copy(update={"framework": framework, "num_workers": 2})
        client = RunClient(session.pool, f"heard-{framework}", spec)
        with ThreadPoolExecutor() as threads:
            run = threads.submit(to_the_end, client)
            while not run.done():
                pids = {one.pid for one in psutil.Process().children(recursive=True)}
                found |= set(listening(pids))
                time.sleep(0.2)
        assert run.result().failure is None
        for _, request, own in ray.get(session.pool.groups.remote()):
            if request.framework == "tensorflow":
                of_tensorflow |= set(own)
    assert_only_here(found, tensorflow=of_tensorflow)


def test_a_loop_of_torch_trains_over_workers(session):
    spec = TRAIN.model_copy(update={"num_workers": 2})
    client = RunClient(session.pool, "torch", spec)
    while not client.step().is_over:
        pass
    outcome, weights = client.finish(save=True, test=True), client.weights
    record = outcome.record("torch", spec, role="trial", source=None, stopped_by="interrupted")
    assert (record.state, record.stop, record.failure) == ("complete", "target", None), (
        record.message
    )
    assert record.best_value >= 0.9
    assert record.test_value == record.best_value
    assert record.ledger["train"] > 0
    assert record.ledger["other"] > -0.1 * record.wall_s, "no second is counted twice"
    assert state_of(weights.read_bytes())[0] == "torch"
    assert record.num_parameters is None
    assert {"[rank 0] trained", "[rank 1] trained"} <= {*printed_by(session, "torch")}


@pytest.mark.all
def test_a_loop_that_lost_its_workers_goes_on_from_what_it_saved(session):
    """How a library's trainer goes on is in `training/test_trainers.py`."""
    update = {"checkpoint_every_s": 1e-9, "epochs": 5.0, "objective": TO_THE_LAST_EPOCH}
    client = RunClient(session.pool, "victim", TRAIN.model_copy(update=update))
    assert [client.step() for _ in range(3)][-1].saved == 3
    os.kill(pids_of(session, "victim")[-1], signal.SIGKILL)
    after = client.step()
    assert after.restarts == 1
    assert (after.evaluation.index, after.evaluation.epoch) == (3, 4.0)
    end = to_the_end(client)
    assert (end.stop, end.evaluation.epoch) == ("epochs", 5.0)


def test_plain_python_imports_no_framework_and_its_workers_stay(session):
    first = RunClient(session.pool, "plain", PLAIN)
    first.step()
    pids = pids_of(session, "plain")
    assert to_the_end(first).stop == "target"
    assert printed_by(session, "plain") == ["a line"] * 4
    second = RunClient(session.pool, "plain again", PLAIN)
    second.step()
    assert pids_of(session, "plain again") == pids
    assert second.finish().failure is None, "the search has stopped it"


def test_a_command_has_the_cores_of_its_workers(session):
    code = "import json, os; print(json.dumps({'accuracy': len(os.sched_getaffinity(0)) / 2}))"
    spec = RunSpec(
        workload=f'$ {sys.executable} -c "{code}" {{num_workers}} {{model.a}}',
        model={"a": 1},
        num_workers=2,
        objective=Objective(target=0.9),
    )
    outcome = to_the_end(RunClient(session.pool, "command", spec))
    assert outcome.failure is None, outcome.message
    assert outcome.evaluation.value == 1.0
    assert printed_by(session, "command") == ['{"accuracy": 1.0}']


def test_a_mistake_is_one_sentence_of_its_run_alone(session):
    update: dict[str, Any] = {"workload": f"{LOOPS}:faulty", "model": {"fault": "raises"}}
    outcome = to_the_end(RunClient(session.pool, "raises", PLAIN.model_copy(update=update)))
    assert outcome.failure == "error"
    assert "ValueError" in outcome.message
    assert not outcome.message.startswith("UserError")
    assert printed_by(session, "raises") == ["last words"]


@pytest.mark.all
def test_ranks_that_can_never_meet_again_fail_the_run_at_once(session):
    """The message names the ranks, and the workers do not count as lost."""
    update = {"workload": f"{LOOPS}:parting", "num_workers": 2}
    outcome = to_the_end(RunClient(session.pool, "exits", TRAIN.model_copy(update=update)))
    assert (outcome.failure, outcome.restarts) == ("error", 0)
    for words in ("rank 1", "(sys.exit())", "rank 0", "run.training()"):
        assert words in outcome.message
    assert "parting" in outcome.traceback, "the traceback of the waiting rank"


@pytest.mark.all
def test_a_loop_that_hangs_is_ended_by_its_limit_and_by_the_end_of_the_study(session):
    """The group is replaced, and measured values are kept."""
    spec = PLAIN.model_copy(
        update={"workload": f"{LOOPS}:faulty", "model": {"fault": "hangs"}, "epochs": 9.0}
    )
    outcome = to_the_end(RunClient(session.pool, "hangs", spec, limit_s=2.0))
    assert (outcome.failure, outcome.restarts) == ("timeout", 0)
    assert "search.trial_seconds" in outcome.message
    assert outcome.ledger["lost"] > 1, "its seconds are not unexplained"
    client = RunClient(session.pool, "hangs again", spec)
    with ThreadPoolExecutor(1) as threads:
        ending = threads.submit(to_the_end, client)
        ended = wait_for(lambda: session.stop_running(1.0))
        outcome = ending.result(timeout=60)
    assert ended.keys() == {"hangs again"}
    assert (outcome.is_over, outcome.failure, outcome.stop) == (True, None, None)
    assert to_the_end(RunClient(session.pool, "after", PLAIN)).stop == "target"


def test_this_machine_is_examined(session):
    """The last test of this file, because the doctor reuses the group of two workers."""
    found = examine(session, None)
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    (host,) = found["hosts"]
    assert host["ray_cpus"] == host["cores"]
    assert (found["network"] is None) == (host["cores"] < 2)
