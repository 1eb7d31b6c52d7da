"""The MLflow logger, with a SQLite database and with an unreachable server."""

import os
import shutil

import pytest
from read_back import interrupted_study, log

from tests.made_results import results_folder, run_line
from tests.s3_server import free_port

pytestmark = pytest.mark.all
pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow-skinny")


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MLFLOW_") and name[7:10] != "SER"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The URI of one database for all tests, because creating it is slow."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def database(place, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    return place


def runs(uri, experiment):
    """Return the client and {name: run} of an experiment; fail on duplicate names."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    stored = client.search_runs([number])
    names = {run.info.run_name: run for run in stored}
    assert len(names) == len(stored)
    return client, names


def test_runs_are_logged_once_with_specs_and_seconds_as_steps(tmp_path, point, database):
    folder = tmp_path / "my study"
    first, second = interrupted_study("mlflow", folder, point)
    assert "3 runs" in first
    assert "1 run" in second
    client, logged = runs(database, "my study")
    assert set(logged) == {"0000", "0001", "0002"}
    run = logged["0001"]
    history = client.get_metric_history(run.info.run_id, "validation_accuracy")
    points = [(metric.step, metric.value) for metric in history]
    assert points == [(1000, 0.5), (2000, 0.5), (3000, 0.875)]
    times = [metric.timestamp - run.info.start_time for metric in history]
    assert times == pytest.approx([1000, 2000, 3000], abs=1)
    assert run.data.params["learning_rate"] == "0.25"
    assert run.data.metrics["time_to_target_s"] == 3.0
    assert (run.info.status, logged["0002"].info.status) == ("FINISHED", "FAILED")
    assert logged["0002"].data.tags["failure"] == "oom"


def test_an_unreachable_server_is_reported_once(tmp_path, point, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:pa55word@127.0.0.1:{free_port()}")
    results_folder(tmp_path / "study", [])
    points = [point("0000", index) for index in range(9)]
    (sentence,) = log("mlflow", tmp_path / "study", *points)
    assert sentence.startswith("--log mlflow: ")
    assert "MlflowException" in sentence
    assert "pa55word" not in sentence
    for file in (tmp_path / "study").rglob("*"):
        assert file.is_dir() or b"pa55word" not in file.read_bytes(), file


def test_a_deleted_experiment_is_reported(tmp_path, point, database):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(database)
    client.delete_experiment(client.create_experiment("study"))
    results_folder(tmp_path / "study", [])
    messages = log("mlflow", tmp_path / "study", point("0000", 0), run_line("0000", 1.0))
    assert "MLFLOW_EXPERIMENT_NAME" in messages[-1]
    shutil.rmtree(tmp_path / "study")
