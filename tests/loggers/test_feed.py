"""The feed of a logger: every run once, with the curve of its last attempt, flat parameters and no
secrets."""

import json
import math
import sys
from types import ModuleType

import pytest
from read_back import tensorboard_events, tensorboard_scalars

from raybench.loggers.follow import curve_values, new_lines, params_of, redacted
from raybench.loggers.to_tensorboard import folder_name
from raybench.report.study import load
from raybench.results.store import RECORDS_FILE
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation
from tests.factories import read_lines
from tests.made_results import POINT, run_line

ACCURACY = "by_train_ms/validation_accuracy"


def ended(trial, train_s, **changes):
    return json.loads(json.dumps(run_line(trial, train_s=train_s, **changes)))


def test_every_run_and_curve_of_a_recorded_study_is_logged(study, tmp_path, session):
    lines = read_lines(study / RECORDS_FILE)
    results = load(study)
    assert session(*lines) == len(results.runs) == 33
    for trial, points in results.evaluations.items():
        scalars = tensorboard_scalars(tmp_path / "tensorboard" / trial)
        assert [step for step, *_ in scalars[ACCURACY]] == [round(1000 * p.train_s) for p in points]
        assert [value for _, value, _ in scalars[ACCURACY]] == pytest.approx(
            [point.value for point in points]
        )
        seconds = [at for *_, at in scalars["by_samples/train_loss"]]
        # TensorBoard's RELATIVE axis shows seconds of training.
        assert [at - seconds[0] for at in seconds] == pytest.approx(
            [point.train_s - points[0].train_s for point in points], abs=1e-3
        )
        record = results.runs[trial]
        (best,) = scalars["run/best_accuracy"]
        assert best[1] == pytest.approx(record.best_value)
        assert ("run/time_to_target_s" in scalars) == (record.time_to_target_s is not None)


def test_hparams_hold_the_searched_keys(tmp_path, session, point):
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    session(point("0000", 0), ended("0000", 1.0, learning_rate=0.25, failure="oom"))
    (content,) = (
        value.metadata.plugin_data.content
        for event in tensorboard_events(tmp_path / "tensorboard" / "0000")
        for value in event.summary.value
        if value.tag == "_hparams_/session_start_info"
    )
    params = HParamsPluginData.FromString(content).session_start_info.hparams
    assert params["learning_rate"].number_value == 0.25
    assert params["optimizer"].string_value == "adam"


def test_repeated_evaluations_replace_earlier_ones(tmp_path, session, point):
    first = [point("0000", index, 0.25 * index) for index in range(4)]
    repeated = [point("0000", index, 0.5) for index in (2, 3)]
    session(*first, *repeated, point("0001", 0))
    curves = [
        [(step, value) for step, value, _ in tensorboard_scalars(folder)[ACCURACY]]
        for folder in sorted((tmp_path / "tensorboard").iterdir())
    ]
    assert curves == [[(1000, 0.0), (2000, 0.25), (3000, 0.5), (4000, 0.5)], [(1000, 0.5)]]


def test_tensorboard_drops_the_curve_of_a_lost_attempt(tmp_path, session, point, monkeypatch):
    # TensorBoard's own switch to avoid importing TensorFlow, which takes seconds.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.plugin_event_accumulator",
        reason="TensorBoard is not installed: pip install tensorboard",
    ).EventAccumulator
    session(*(point("0000", index, 0.1) for index in range(3)), close=False)
    viewer = accumulator(str(tmp_path / "tensorboard" / "0000"))
    viewer.Reload()
    assert [event.step for event in viewer.Tensors(ACCURACY)] == [1000, 2000, 3000]
    session(point("0000", 0, 0.1), point("0000", 1, 0.9))
    viewer = accumulator(str(tmp_path / "tensorboard" / "0000"))
    viewer.Reload()
    assert [event.step for event in viewer.Tensors(ACCURACY)] == [1000, 2000]


@pytest.mark.parametrize("name", ["../../up", "a/b", ".hidden", "ünï <b>", "x" * 300])
def test_a_run_name_cannot_leave_the_log_folder(tmp_path, session, point, name):
    session(point(name, 0), ended(name, 1.0))
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert folder.name == folder_name(name)
    assert tensorboard_scalars(folder)[ACCURACY]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tensorboard"]


def test_only_complete_new_lines_are_read(tmp_path):
    path = tmp_path / "records.jsonl"
    with path.open("a") as written, path.open("rb") as read:
        for text, lines in (
            ("one\ntw", [b"one\n"]),
            ("o", []),
            ("\nthree\n", [b"two\n", b"three\n"]),
        ):
            written.write(text)
            written.flush()
            assert list(new_lines(read)) == lines


def test_params_are_flat_and_omit_unset_keys():
    params = params_of(RunSpec(learning_rate=0.25, step_at=[0.25, 0.5]))
    assert params["learning_rate"] == 0.25
    assert params["dataset.name"] == "digits"
    assert params["step_at"] == "[0.25, 0.5]"
    assert params["nesterov"] is False
    assert "momentum" not in params


def test_non_finite_values_are_not_logged():
    point = Evaluation(**(POINT | {"train_loss": math.nan}), index=0, samples=7, train_s=1, value=1)
    values = curve_values(point, "accuracy")
    assert values["validation_accuracy"] == 1
    assert values["samples"] == 7
    assert "train_loss" not in values


@pytest.mark.parametrize(
    "path", ["https://user:hunter22@host/data.csv", "s3://key:hunter22@bucket/data.csv"]
)
def test_params_contain_no_secrets(monkeypatch, path):
    monkeypatch.setenv("MY_API_KEY", "tomato-soup")
    data = DatasetSpec(name="csv", path=path, label="price")
    spec = RunSpec(dataset=data, weights="/models/tomato-soup.pt")
    for value in params_of(spec).values():
        assert "hunter22" not in str(value)
        assert "tomato-soup" not in str(value)
    assert redacted("token=abcdef\nin two lines") == "token=*** in two lines"
