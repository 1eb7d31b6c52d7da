"""Training loops of one's own on one live session: functions of torch and of none, commands, lost
workers and mistakes; and a whole search."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raybench
from raybench.cluster.run_client import RunClient, run_once
from raybench.cluster.session import Session
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.training.own import state_of

from .commands import raybench as command
from .test_live_session import pids_of, to_the_end

pytestmark = pytest.mark.ray
LOOPS = Path(__file__).with_name("own_loops.py")
TRAIN = RunSpec(
    workload="own_loops.py:train",
    model={"hidden_units": 32},
    objective=Objective(target=0.9, max_train_seconds=60),
    learning_rate=0.003,
)
PLAIN = RunSpec(
    workload="own_loops.py:plain",
    framework="python",
    model={"slowness": 1},
    objective=Objective(target=0.9),
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    pytest.importorskip("torch")
    before = Path.cwd()
    os.chdir(LOOPS.parent)  # where the user is, and the file
    try:
        with Session() as session:
            yield session
    finally:
        os.chdir(before)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_loop_of_torch_trains_over_workers(session: Session, num_workers: int) -> None:
    spec = TRAIN.model_copy(update={"num_workers": num_workers})
    record, weights = run_once(
        session.pool,
        spec,
        f"torch{num_workers}",
        role="trial",
        on_evaluation=lambda name, evaluation: None,
        stopped_by=lambda: None,
        save=True,
        test=True,
    )
    assert (record.state, record.stop, record.failure) == ("complete", "target", None), (
        record.message
    )
    assert record.best_value is not None
    assert record.best_value >= 0.9
    assert record.test_value == record.best_value
    assert record.ledger["train"] > 0
    assert abs(record.ledger["other"]) < 0.05 * record.wall_s + 0.05
    assert weights is not None
    assert state_of(weights)[0] == "torch"
    assert record.num_parameters is None


def test_a_loop_that_lost_its_workers_goes_on_from_what_it_saved(session: Session) -> None:
    objective = Objective(kind="best_at_budget", max_train_seconds=60)
    spec = TRAIN.model_copy(
        update={"checkpoint_every_s": 1e-9, "epochs": 6.0, "objective": objective}
    )
    client = RunClient(session.pool, "victim", spec)
    before = [client.step() for _ in range(3)]
    assert before[-1].saved == 3
    os.kill(pids_of(session, "victim")[-1], signal.SIGKILL)
    after = client.step()
    assert after.restarts == 1
    assert after.evaluation is not None
    assert after.evaluation.index == 3
    assert after.evaluation.epoch == 4.0
    end = to_the_end(client)
    assert end.evaluation is not None
    assert (end.stop, end.evaluation.epoch) == ("epochs", 6.0)


def test_plain_python_imports_no_framework_and_its_workers_stay(session: Session) -> None:
    first = RunClient(session.pool, "plain", PLAIN)
    first.step()
    pids = pids_of(session, "plain")
    assert to_the_end(first).stop == "target"
    second = RunClient(session.pool, "plain again", PLAIN)
    second.step()
    assert pids_of(session, "plain again") == pids
    assert second.finish().failure is None, "it is stopped by the search"


def test_a_command_has_the_cores_of_its_workers(session: Session) -> None:
    code = "import json, os; print(json.dumps({'accuracy': len(os.sched_getaffinity(0)) / 2}))"
    spec = RunSpec(
        workload=f'$ {sys.executable} -c "{code}" {{num_workers}} {{model.a}}',
        model={"a": 1},
        num_workers=2,
        objective=Objective(target=0.9),
    )
    outcome = to_the_end(RunClient(session.pool, "command", spec))
    assert outcome.failure is None, outcome.message
    assert outcome.evaluation is not None
    assert outcome.evaluation.value == 1.0


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raises", "ValueError: no luck)"),
        ("exits", "sys.exit(3)"),
        ("says nothing", "ended and has not reported its accuracy"),
    ],
)
def test_a_mistake_is_one_sentence_of_its_run_alone(
    session: Session, fault: str, sentence: str
) -> None:
    update: dict[str, Any] = {"workload": "own_loops.py:faulty", "model": {"fault": fault}}
    outcome = to_the_end(RunClient(session.pool, fault, PLAIN.model_copy(update=update)))
    assert outcome.failure == "error"
    assert sentence in (outcome.message or "")
    assert not (outcome.message or "").startswith("UserError")


SPACE = """
objective: {target: 0.9, max_train_seconds: 20}
search: {trials: 4, early_stopping: false}
confirm: {race: 2, fresh: 1}
space:
  learning_rate: [0.003, 0.001]
  model: {hidden_units: [16, 32]}
"""


@pytest.mark.all
def test_a_whole_search_of_a_loop(tmp_path: Path) -> None:
    (tmp_path / LOOPS.name).write_text(LOOPS.read_text())
    (tmp_path / "space.yaml").write_text(SPACE)
    printed = command("tune", "space.yaml", "--train", "own_loops.py:train", cwd=tmp_path)
    assert "Answer: Train with PyTorch on 1 worker" in " ".join(printed.split())
    results = raybench.load(tmp_path / "results/space")
    trials = results.trials
    assert set(trials["workload"]) == {"own_loops.py:train"}
    assert sorted(trials["phase"]) == ["confirm"] * 3 + ["search"] * 4
    assert set(trials["state"]) == {"complete"}
    done = command("train", "results/space/best.yaml", cwd=tmp_path)
    assert "state.pt, as run.save was given it" in " ".join(done.split())
    folder = tmp_path / "results/train-best"
    assert (folder / "state.pt").is_file()
    with pytest.raises(raybench.UserError, match=r"own_loops.py:train builds its model itself"):
        raybench.load_model(folder)
    again = command("train", "results/space/best.yaml", cwd=tmp_path)
    assert "this run is finished" in again
