"""MLflow, in a database of its own kind, and where its server does not answer."""

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
    """Of one database for all tests: making it takes long."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def database(place, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    return place


def runs(uri, experiment):
    """{name: run} of an experiment; two of one name are a failure."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    found = client.search_runs([number])
    names = {run.info.run_name: run for run in found}
    assert len(names) == len(found)
    return client, names


def test_runs_are_written_once_over_seconds_with_their_specs(tmp_path, point, database):
    folder = tmp_path / "my study"
    first, second = interrupted_study("mlflow", folder, point)
    assert "3 runs" in first
    assert "1 run" in second
    client, found = runs(database, "my study")
    assert set(found) == {"0000", "0001", "0002"}
    run = found["0001"]
    history = client.get_metric_history(run.info.run_id, "validation_accuracy")
    assert [(one.step, one.value) for one in history] == [(1000, 0.5), (2000, 0.5), (3000, 0.875)]
    assert [one.timestamp - run.info.start_time for one in history] == pytest.approx(
        [1000, 2000, 3000], abs=1
    )
    assert run.data.params["learning_rate"] == "0.25"
    assert run.data.metrics["time_to_target_s"] == 3.0
    assert (run.info.status, found["0002"].info.status) == ("FINISHED", "FAILED")
    assert found["0002"].data.tags["failure"] == "oom"


def test_a_server_that_is_away_is_said_once(tmp_path, point, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:pa55word@127.0.0.1:{free_port()}")
    results_folder(tmp_path / "study", [])
    points = [point("0000", index) for index in range(9)]
    (sentence,) = log("mlflow", tmp_path / "study", *points)
    assert sentence.startswith("--log mlflow: ")
    assert "MlflowException" in sentence
    assert "pa55word" not in sentence
    for file in (tmp_path / "study").rglob("*"):
        assert file.is_dir() or b"pa55word" not in file.read_bytes(), file


def test_an_experiment_that_was_deleted_is_said(tmp_path, point, database):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(database)
    client.delete_experiment(client.create_experiment("study"))
    results_folder(tmp_path / "study", [])
    said = log("mlflow", tmp_path / "study", point("0000", 0), run_line("0000", 1.0))
    assert "MLFLOW_EXPERIMENT_NAME" in said[-1]
    shutil.rmtree(tmp_path / "study")
