"""Run states and checkpoint folders."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.checkpoint import (
    VERSION,
    Checkpoint,
    DamagedCheckpointError,
    RunState,
    latest_checkpoint,
    read_checkpoint,
    spec_digest,
    write_checkpoint,
)
from raybench.stats.record import Evaluation
from raybench.stats.step_times import NoiseSums, NoiseTerms, StepTimes
from tests.factories import evaluation
from tests.refusals import refused

SPEC = RunSpec(learning_rate=0.1 + 0.2)


def at(index: int, **changes: Any) -> Evaluation:
    seconds = 0.1 * (index + 1)
    values = {
        "train_loss": 1 / (index + 3),
        "ledger": {"setup": 1.0, "train": seconds, "eval": seconds / 3, "input": 0.01},
        "steps": StepTimes.of([0.1, 0.2, 0.7]),
        "memory_peak_bytes": 2**31,
        "noise_scale": NoiseSums.of([NoiseTerms(0.1, 0.7)]),
    }
    return evaluation(seconds, index=index, **values | changes)


def state(points: int, spec: RunSpec = SPEC) -> RunState:
    return RunState.after(spec, [at(index) for index in range(points)])


def write(folder: Path, points: int, spec: RunSpec = SPEC) -> Path:
    weights = bytes([points]) * 1000
    return write_checkpoint(folder, state(points, spec), lambda path: path.write_bytes(weights))


def is_one_of(checkpoint: Checkpoint | None, points: int, spec: RunSpec = SPEC) -> bool:
    assert checkpoint is not None
    weights = bytes([points]) * 1000
    return (checkpoint.state, checkpoint.weights.read_bytes()) == (state(points, spec), weights)


def test_checkpoints_are_read_as_written(tmp_path):
    folder = tmp_path / "study" / "trial 1"
    assert latest_checkpoint(folder, SPEC) is None
    path = write(folder, 2)
    assert sorted(file.name for file in path.iterdir()) == ["state.json", "weights.pt"]
    assert is_one_of(latest_checkpoint(folder, SPEC), 2)
    tensorflow = SPEC.model_copy(update={"framework": "tensorflow"})
    path = write(tmp_path / "other", 1, tensorflow)
    assert sorted(file.name for file in path.iterdir()) == ["state.json", "weights.npz"]
    assert is_one_of(read_checkpoint(path, tensorflow), 1, tensorflow)


def test_a_metric_that_is_not_finite_is_saved(tmp_path):
    curve = [at(0, value=math.inf, best_value=math.inf), at(1, value=math.nan)]
    write_checkpoint(tmp_path, RunState.after(SPEC, curve), Path.touch)
    checkpoint = latest_checkpoint(tmp_path, SPEC)
    assert checkpoint is not None
    first, second = checkpoint.state.evaluations
    assert (first.value, first.best_value) == (math.inf, math.inf)
    assert math.isnan(second.value)


def test_the_last_two_are_kept(tmp_path):
    (tmp_path / ".000001.99.partial").mkdir()  # left by a killed writer
    for points in (1, 2, 9, 10, 11):
        write(tmp_path, points)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000010", "000011"]
    # The run resumed from 10 because 11 was damaged.
    write(tmp_path, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000010"]


def test_a_killed_writer_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, 2)
    assert is_one_of(latest_checkpoint(tmp_path, SPEC), 1)
    write(tmp_path, 2)
    assert is_one_of(latest_checkpoint(tmp_path, SPEC), 2)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)


def count_samples_in_words(path: Path) -> None:
    content = json.loads(path.read_text())
    content["state"]["evaluations"][0]["samples"] = "many"
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "harm", "names"),
    [
        ("weights.pt", cut, ["weights.pt", "993", "1000"]),
        ("weights.pt", flip, ["weights.pt"]),
        ("weights.pt", Path.unlink, ["weights.pt"]),
        ("state.json", Path.unlink, ["state.json"]),
        ("state.json", cut, ["state.json"]),
        ("state.json", lambda path: path.write_text("{}"), ["state.json"]),
        ("state.json", count_samples_in_words, ["'state.evaluations.0.samples'"]),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_previous_one_is_used(tmp_path, name, harm, names):
    write(tmp_path, 2)
    path = write(tmp_path, 3)
    harm(path / name)
    with refused(ErrorCode.INVALID_WEIGHTS, "000003", *names) as caught:
        read_checkpoint(path, SPEC)
    assert isinstance(caught.value, DamagedCheckpointError)
    checkpoint = latest_checkpoint(tmp_path, SPEC)
    assert is_one_of(checkpoint, 2)
    assert checkpoint is not None
    assert checkpoint.refused == (str(caught.value),)
    harm(tmp_path / "000002" / name)
    with refused(ErrorCode.INVALID_WEIGHTS, "000003"):
        latest_checkpoint(tmp_path, SPEC)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    write(tmp_path, 2)
    other = SPEC.model_copy(update={"seed": 1, "objective": Objective(target=0.5)})
    shown = "objective.target 0.95 there, 0.5 here, seed 0 there, 1 here"
    with refused(ErrorCode.INVALID_WEIGHTS, shown):
        latest_checkpoint(tmp_path, other)
    # Keys that do not change the result of a run may differ.
    often = SPEC.model_copy(update={"checkpoint_every_s": 1.0, "record_steps": True})
    assert is_one_of(latest_checkpoint(tmp_path, often), 2)
    assert spec_digest(often) == spec_digest(SPEC) != spec_digest(RunSpec())


def test_another_format_is_refused(tmp_path):
    file = write(tmp_path, 2) / "state.json"
    content = json.loads(file.read_text())
    content["state"]["version"] = 1
    file.write_text(json.dumps(content))
    with refused(ErrorCode.INVALID_WEIGHTS, "000002", "1", str(VERSION)):
        latest_checkpoint(tmp_path, SPEC)
