"""Threads of the loggers: they write during the study, and a failing or hanging tool never stops or
delays it."""

import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from read_back import log, tensorboard_scalars

from raybench.commands import cli
from raybench.loggers import to_tensorboard
from raybench.loggers.follow import LOGGERS, Loggers, check_loggers
from raybench.results.store import Store
from raybench.spec.errors import ErrorCode
from tests.factories import wait_for
from tests.made_results import results_folder, run_line
from tests.refusals import refused

ACCURACY = "by_train_ms/validation_accuracy"


def loggers(folder, messages, **options):
    return Loggers(["tensorboard"], folder, place=str(folder), say=messages.append, **options)


def test_curves_are_written_during_the_study_and_complete_at_its_end(tmp_path, point):
    messages, folder = [], tmp_path / "tensorboard" / "0000"
    results_folder(tmp_path, [])
    with Store(tmp_path) as store, loggers(tmp_path, messages) as running:
        running.start()
        store.append(point("0000", 0, 0.25))
        wait_for(lambda: list(folder.glob("events*")))
        wait_for(lambda: tensorboard_scalars(folder).get(ACCURACY))
        store.append(point("0000", 1, 0.5))
        store.append(run_line("0000", 2.0))
    scalars = tensorboard_scalars(folder)
    assert [point[:2] for point in scalars[ACCURACY]] == [(1000, 0.25), (2000, 0.5)]
    assert "run/time_to_target_s" in scalars
    assert not running.has_failed
    assert "1 run" in messages[-1]
    assert f"tensorboard --logdir {tmp_path}/tensorboard" in messages[-1]


def test_a_failing_logger_is_reported_once_and_the_study_continues(tmp_path, point):
    messages = []
    (tmp_path / "tensorboard").write_text("in the way")
    with Store(tmp_path) as store, loggers(tmp_path, messages) as running:
        running.start()
        store.append(point("0000", 0))
        wait_for(lambda: messages)
        for index in range(1, 50):
            store.append(point("0000", index))
    (sentence,) = messages
    assert "NotADirectoryError" in sentence
    assert f"report {tmp_path} --log tensorboard" in sentence
    assert "to_tensorboard" in (tmp_path / "errors" / "log-tensorboard.txt").read_text()
    assert running.has_failed
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 50


def test_a_hanging_logger_is_dropped(tmp_path, point, monkeypatch):
    messages, has_begun, may_fail = [], threading.Event(), threading.Event()

    def hang(*arguments):
        has_begun.set()
        may_fail.wait(60)
        raise OSError("too late to be said")

    monkeypatch.setattr(to_tensorboard, "open_sink", hang)
    with Store(tmp_path) as store:
        running = loggers(tmp_path, messages, close_s=0.2)
        running.start()
        assert has_begun.wait(60)
        store.append(point("0000", 0))
        running.close()
    assert running.has_failed
    assert f"report {tmp_path} --log tensorboard" in messages[-1]
    num_messages = len(messages)
    may_fail.set()
    for thread in threading.enumerate():
        if thread.name == "log-tensorboard":
            thread.join()
    assert len(messages) == num_messages


def test_only_runs_of_this_session_are_logged_by_default(tmp_path, point):
    results_folder(tmp_path, [run_line("0000", 2.0)])
    log("tensorboard", tmp_path, run_line("0001", 3.0))
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == ["0001"]


def test_a_missing_package_is_refused_before_anything_starts(tmp_path, monkeypatch):
    missing = replace(LOGGERS["wandb"], package="no_such_logger")
    monkeypatch.setitem(LOGGERS, "wandb", missing)
    # A folder that the tool leaves in the current directory is not its package.
    (tmp_path / "no_such_logger").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with refused(ErrorCode.NOT_INSTALLED, "wandb", "no_such_logger"):
        check_loggers(["wandb"])
    assert cli.main(["tune", "--log", "wandb"]) == cli.WRONG_INPUT
    assert [path.name for path in tmp_path.iterdir()] == ["no_such_logger"]


def test_a_logger_imports_no_framework(tmp_path):
    code = (
        "import sys; from pathlib import Path; from raybench.loggers.follow import Loggers\n"
        "with Loggers(['tensorboard'], Path(sys.argv[1]), place='x', say=print) as running:\n"
        "    running.start()\n"
        "assert 'tensorboardX' in sys.modules and 'torch' not in sys.modules"
    )
    (tmp_path / "records.jsonl").touch()
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


@pytest.mark.all
def test_report_logs_a_finished_study(tmp_path, capsys):
    study = tmp_path / "study"
    results_folder(study, [run_line("0000", 2.0), run_line("0001", 3.0)])
    assert cli.main(["report", str(study), "--log", "tensorboard"]) == cli.DONE
    assert "2 runs" in capsys.readouterr().out.splitlines()[-1]
    shutil.rmtree(study / "tensorboard")
    (study / "tensorboard").touch()
    assert cli.main(["report", str(study), "--log", "tensorboard"]) == cli.FAILED
    assert "NotADirectoryError" in capsys.readouterr().out.splitlines()[-1]
