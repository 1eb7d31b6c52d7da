"""tune, train, load_model and report with a URL; only training is faked."""

import io
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import raybench
from raybench.commands import cli
from raybench.report.console import WholeLines, say
from raybench.report.progress import ProgressDisplay
from raybench.report.study import load
from raybench.results.place import StudyLock
from raybench.results.records import read_records
from raybench.results.storage import Bucket
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.runs import train as train_pipeline
from raybench.search import tune as tune_pipeline
from raybench.training.saved import DATA_FILE, MODEL_FILES
from tests.below_url import write
from tests.factories import wait_for
from tests.made_results import run_line

pytestmark = pytest.mark.usefixtures("one_picture")
FILE = MODEL_FILES["torch"]
SPACE = """
objective: {target: 0.9, max_train_seconds: 60.0}
confirm: {race: 0}
space: {num_workers: [1]}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)


@pytest.fixture
def search(monkeypatch):
    """A faked search; append functions of its store to the returned list."""
    steps = []

    def run(options, resolved, opened, *rest):
        store = opened.store
        store.write_yaml(STUDY_FILE, {"study": resolved.study.document()})
        recorded = read_records(store.folder).runs
        for number in range(len(recorded), len(recorded) + 3):
            store.append(run_line(f"{number:04d}", 1.0, learning_rate=0.01))
        for step in steps:
            step(store)
        return False

    monkeypatch.setattr(tune_pipeline, "_run", run)
    return steps


def tuned(place, *arguments):
    return cli.main(["tune", "space.yaml", "--out", str(place), *arguments])


def test_a_search_writes_to_its_url_and_other_machines_continue(
    url, search, capsys, tmp_path, monkeypatch
):
    assert tuned(url) == cli.DONE
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"results: {url} (")
    assert f"{tmp_path}/this machine/" in last
    assert {STUDY_FILE, "trials.csv", "best.yaml", "report.html"} <= set(Bucket(url).list_keys())
    for machine in ("another machine", "this machine"):  # whose local copy is outdated by then
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        assert tuned(url) == cli.DONE
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a reader"))
    assert list(raybench.load(url).trials["trial"]) == [f"{number:04d}" for number in range(9)]
    capsys.readouterr()
    assert cli.main(["report", url]) == cli.DONE
    assert f"{tmp_path}/a reader/" in capsys.readouterr().out
    name = url.rpartition("/")[2]
    assert f"of {name}: trial" in Bucket(url).get("best.yaml").decode()


def test_a_local_folder_in_use_is_refused(search, tmp_path, capsys):
    with StudyLock(tmp_path / "study"):
        assert tuned(f"file://{tmp_path}/study") == cli.WRONG_INPUT
    assert str(os.getpid()) in capsys.readouterr().err
    assert tuned(f"file://{tmp_path}/study") == cli.DONE
    assert len(raybench.load(f"file://{tmp_path}/study").trials) == 3


def test_another_study_is_refused_and_fresh_uses_a_new_url(url, search, capsys):
    assert tuned(url) == cli.DONE
    assert tuned(url, "--target", "0.8") == cli.WRONG_INPUT
    sentence = capsys.readouterr().err
    assert all(value in sentence for value in (f"{url}: ", "objective.target", "0.9", "0.8"))
    assert f"--seed-from {url}" not in sentence, "not suggested for another objective"
    assert tuned(url, "--target", "0.8", "--fresh") == cli.DONE
    assert STUDY_FILE in Bucket(f"{url}-2").list_keys()
    assert len(raybench.load(url).trials) == 3


def test_seed_from_reads_an_earlier_study_from_a_url(url, search, capsys, monkeypatch):
    assert tuned(url) == cli.DONE
    assert tuned("next", "--seed-from", url, "--dry-run") == cli.DONE
    assert tuned("next", "--seed-from", url, "--set", "dataset.limit=100") == cli.WRONG_INPUT
    assert f"--seed-from {url}: " in capsys.readouterr().err


def test_a_dry_run_writes_nothing(url, search, capsys):
    before = Bucket(url).list_keys()
    assert tuned(url, "--dry-run") == cli.DONE
    assert f"results: {url}" in capsys.readouterr().out
    assert cli.main(["train", "--out", url, "--dry-run"]) == cli.DONE
    assert Bucket(url).list_keys() == before


def test_a_study_taken_over_by_another_driver_ends_with_an_error(url, search, capsys):
    def take_over(store):
        wait_for(lambda: RECORDS_FILE in Bucket(url).list_keys())
        Bucket(url).put(RECORDS_FILE, b'{"of": "another driver"}\n')
        for number in range(10, 500):
            store.append(run_line(f"{number:04d}", 1.0, learning_rate=0.01))
            time.sleep(0.05)

    search.append(take_over)
    assert tuned(url) == cli.FAILED
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"raybench: {url}: ")
    folder = sentence.rpartition(" is in ")[2].rstrip(".")
    assert len(read_records(Path(folder)).runs) >= 3


def trained(spec, store, numbers):
    """Write the files of a training, with a run for each number; return the record of run 0."""
    objective = spec.objective.model_dump(mode="json")
    store.write_yaml(STUDY_FILE, {"study": {"objective": objective, "run": True}})
    for number in numbers:
        store.append(run_line(f"{number:04d}", 1.0, test_value=0.9))
    return read_records(store.folder).runs["0000"]


def test_a_model_is_saved_to_a_url_and_loaded_from_it(url, monkeypatch, capsys, tmp_path):
    torch = pytest.importorskip("torch")
    from raybench.models.find import load_workload_dataset
    from raybench.models.model_data import ModelData
    from raybench.training.torch.model import build_model

    def run(options, spec, opened):
        store = opened.store
        workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
        data = ModelData.of(dataset, spec.dataset)
        (store.folder / DATA_FILE).write_text(data.model_dump_json())
        weights = build_model(workload, spec.seed).state_dict()
        torch.save({key: value + 0.125 for key, value in weights.items()}, store.folder / FILE)
        return trained(spec, store, range(1))

    monkeypatch.setattr(train_pipeline, "_run", run)
    assert cli.main(["train", "--out", url]) == cli.DONE
    assert f"raybench.load_model('{url}')" in capsys.readouterr().out
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    loaded, saved = raybench.load_model(url).state_dict(), io.BytesIO(Bucket(url).get(FILE))
    assert all(torch.equal(loaded[key], value) for key, value in torch.load(saved).items())


def test_training_again_replaces_the_run_at_a_url(url, monkeypatch, capsys):
    """The records of the previous run are removed from the bucket."""
    numbers = iter([range(9), range(2)])

    def run(options, spec, opened):
        opened.store.clear()
        return trained(spec, opened.store, next(numbers))

    monkeypatch.setattr(train_pipeline, "_run", run)
    assert cli.main(["train", "--out", url]) == cli.DONE
    assert len(raybench.load(url).runs) == 9
    assert cli.main(["train", "--out", url]) == cli.DONE
    assert list(raybench.load(url).runs) == ["0000", "0001"]


def test_messages_of_other_threads_are_printed_whole_above_the_screen():
    file = io.StringIO()
    console = WholeLines(file=file, force_terminal=True, width=60, height=10)
    sentence = f"s3://bucket/study: cannot be reached ({'x' * 100}); it is tried again."

    def warn(number):
        for line in range(100):
            say(console, f"{number} {line} {sentence}")

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ProgressDisplay(console, num_trials=3) as progress, ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(warn, number) for number in range(4)]
            for _ in range(50):
                progress.say("a line of the search")
            for future in futures:
                future.result()
    finally:
        sys.setswitchinterval(switch_s)
    lines = [re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", line) for line in file.getvalue().splitlines()]
    expected = {f"{number} {line} {sentence}" for number in range(4) for line in range(100)}
    assert expected <= {line.rpartition("\r")[2].strip() for line in lines}


def test_a_report_reads_a_copy_and_writes_only_locally(url, study, said, capsys):
    write(url, study, range(3), said)
    Bucket(url).put("model.pt", b"old")
    folder = load(url, files=("model.pt",)).folder
    assert (folder / "model.pt").read_bytes() == b"old"
    (folder / "best.yaml").write_text("of an earlier time")
    before = set(Bucket(url).list_keys())
    assert cli.main(["report", url]) == 0
    assert set(Bucket(url).list_keys()) == before
    assert (folder / "best.yaml").read_text() != "of an earlier time"
    assert (folder / "trials.csv").read_bytes().count(b"\n") == 4
    assert "00000" in capsys.readouterr().out
