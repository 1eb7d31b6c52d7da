"""The threads of the loggers: they write while a study goes on, and whatever becomes of a tool, the
study does not wait and goes on."""

import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from read_back import tensorboard_scalars

from raybench.commands import cli
from raybench.loggers import to_tensorboard
from raybench.loggers.follow import LOGGERS, Loggers, check_loggers
from raybench.results.store import Store
from raybench.spec.errors import ErrorCode
from tests.below_url import wait_for
from tests.made_results import results_folder, run_line
from tests.refusals import refused

ACCURACY = "by_train_ms/validation_accuracy"


def loggers(folder, said, **more):
    return Loggers(["tensorboard"], folder, place=str(folder), say=said.append, **more)


def test_curves_are_there_while_the_study_runs_and_all_in_the_end(tmp_path, point):
    said, folder = [], tmp_path / "tensorboard" / "0000"
    results_folder(tmp_path, [])
    with Store(tmp_path) as store, loggers(tmp_path, said) as running:
        running.start()
        store.append(point("0000", 0, 0.25))
        wait_for(lambda: list(folder.glob("events*")))
        wait_for(lambda: tensorboard_scalars(folder).get(ACCURACY))
        store.append(point("0000", 1, 0.5))
        store.append(run_line("0000", 2.0))
    assert [point[:2] for point in tensorboard_scalars(folder)[ACCURACY]] == [
        (1000, 0.25),
        (2000, 0.5),
    ]
    assert "run/time_to_target_s" in tensorboard_scalars(folder)
    assert not running.has_failed
    assert "1 run" in said[-1]
    assert f"tensorboard --logdir {tmp_path}/tensorboard" in said[-1]


def test_a_tool_that_fails_is_said_once_and_the_study_goes_on(tmp_path, point):
    said = []
    (tmp_path / "tensorboard").write_text("in the way")
    with Store(tmp_path) as store, loggers(tmp_path, said) as running:
        running.start()
        store.append(point("0000", 0))
        wait_for(lambda: said)
        for index in range(1, 50):
            store.append(point("0000", index))
    (sentence,) = said
    assert "NotADirectoryError" in sentence
    assert f"report {tmp_path} --log tensorboard" in sentence
    assert "to_tensorboard" in (tmp_path / "errors" / "log-tensorboard.txt").read_text()
    assert running.has_failed
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 50


def test_a_tool_that_hangs_is_dropped(tmp_path, point, monkeypatch):
    said, begun, goes_on = [], threading.Event(), threading.Event()

    def hang(*arguments):
        begun.set()
        goes_on.wait(60)
        raise OSError("too late to be said")

    monkeypatch.setattr(to_tensorboard, "open_sink", hang)
    with Store(tmp_path) as store:
        running = loggers(tmp_path, said, close_s=0.2)
        running.start()
        assert begun.wait(60)
        store.append(point("0000", 0))
        running.close()
    assert running.has_failed
    assert f"report {tmp_path} --log tensorboard" in said[-1]
    num_said = len(said)
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "log-tensorboard":
            thread.join()
    assert len(said) == num_said


def test_only_the_runs_of_this_session_are_written_unless_all_are_asked_for(tmp_path, point):
    results_folder(tmp_path, [run_line("0000", 2.0)])
    for is_whole, names in ((False, {"0001"}), (True, {"0000", "0001"})):
        said = []
        with Store(tmp_path) as store, loggers(tmp_path, said) as running:
            running.start(is_whole=is_whole)
            if not is_whole:
                store.append(run_line("0001", 3.0))
        there = {one.name for one in (tmp_path / "tensorboard").iterdir()}
        assert there == names


def test_a_package_that_is_missing_is_refused_before_anything_starts(tmp_path, monkeypatch):
    missing = replace(LOGGERS["wandb"], package="no_such_logger")
    monkeypatch.setitem(LOGGERS, "wandb", missing)
    # What the tool itself leaves in the current folder is not its package.
    (tmp_path / "no_such_logger").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with refused(ErrorCode.NOT_INSTALLED, "wandb", "no_such_logger"):
        check_loggers(["wandb"])
    assert cli.main(["tune", "--log", "wandb"]) == cli.WRONG_INPUT
    assert [one.name for one in tmp_path.iterdir()] == ["no_such_logger"]


def test_frameworks_that_a_tool_would_import_stay_away(tmp_path):
    code = (
        "import sys; from pathlib import Path; from raybench.loggers.follow import Loggers\n"
        "with Loggers(['tensorboard'], Path(sys.argv[1]), place='x', say=print) as running:\n"
        "    running.start()\n"
        "assert 'tensorboardX' in sys.modules and 'torch' not in sys.modules"
    )
    (tmp_path / "records.jsonl").touch()
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


@pytest.mark.all
def test_a_report_brings_a_study_to_a_tool(tmp_path, capsys):
    study = tmp_path / "study"
    results_folder(study, [run_line("0000", 2.0), run_line("0001", 3.0)])
    assert cli.main(["report", str(study), "--log", "tensorboard"]) == cli.DONE
    assert "2 runs" in capsys.readouterr().out.splitlines()[-1]
    shutil.rmtree(study / "tensorboard")
    (study / "tensorboard").touch()
    assert cli.main(["report", str(study), "--log", "tensorboard"]) == cli.FAILED
    assert "NotADirectoryError" in capsys.readouterr().out.splitlines()[-1]
