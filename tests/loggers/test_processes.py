"""The processes of the loggers: they write while a study goes on, and whatever becomes of them,
the study does not wait and goes on."""

import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from read_back import tensorboard_scalars

from raybench.commands import cli
from raybench.loggers.processes import LOGGERS, Loggers
from raybench.results.store import Store
from tests.below_url import wait_for
from tests.made_results import results_folder, run_line

ACCURACY = "by_train_ms/validation_accuracy"
DRIVER = """
import os, psutil, sys
from pathlib import Path
from raybench.loggers.processes import Loggers
loggers = Loggers(["tensorboard"], Path(sys.argv[1]), place=sys.argv[1], say=print)
loggers.start()
print(psutil.Process().children()[0].pid, flush=True)
os.kill(os.getpid(), 9)
"""


def loggers(folder, said, *tools, **more):
    return Loggers(tools or ["tensorboard"], folder, place=str(folder), say=said.append, **more)


def followers():
    """The loggers' processes that this one has started; other tests have some of their own."""
    every = psutil.Process().children(recursive=True)
    return [one for one in every if any("loggers.feed" in word for word in cmdline_of(one))]


def cmdline_of(process):
    try:
        return process.cmdline()
    except psutil.Error:  # it ends now
        return []


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
        running.end()
    assert [point[:2] for point in tensorboard_scalars(folder)[ACCURACY]] == [
        (1000, 0.25),
        (2000, 0.5),
    ]
    assert "run/time_to_target_s" in tensorboard_scalars(folder)
    assert not running.has_failed
    assert said[-1] == f"TensorBoard: 1 run written: tensorboard --logdir {tmp_path}/tensorboard"


def test_a_tool_that_fails_is_said_once_and_the_study_goes_on(tmp_path, point):
    said = []
    (tmp_path / "tensorboard").write_text("in the way")
    with Store(tmp_path) as store, loggers(tmp_path, said) as running:
        running.start()
        store.append(point("0000", 0))
        wait_for(lambda: said)
        for index in range(1, 50):
            store.append(point("0000", index))
        running.end()
    (sentence,) = said
    assert sentence.startswith("--log tensorboard: ended, NotADirectoryError: [Errno 20]")
    assert f"python -m raybench.report {tmp_path} --log tensorboard writes the rest." in sentence
    assert "to_tensorboard" in (tmp_path / "errors" / "log-tensorboard.txt").read_text()
    assert running.has_failed
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 50


def test_a_tool_that_hangs_is_not_waited_for(tmp_path, point):
    said = []
    with Store(tmp_path) as store:
        running = loggers(tmp_path, said, close_s=0.2)
        running.start()
        (process,) = followers()
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        store.append(point("0000", 0))
        running.end()
        running.close()
        assert time.monotonic() - began < 30  # CLOSE_S
    assert said[-1].startswith("--log tensorboard: TensorBoard did not take everything; python -m")
    assert running.has_failed
    assert not followers()


def test_a_tool_that_is_killed_is_said(tmp_path):
    said = []
    with Store(tmp_path), loggers(tmp_path, said) as running:
        running.start()
        (process,) = followers()
        process.kill()
        (sentence,) = wait_for(lambda: said)
        running.end()
    assert sentence.startswith("--log tensorboard: ended by itself (exit code -9); the study goes")
    assert said == [sentence]


def test_it_ends_when_its_driver_is_killed(tmp_path):
    (tmp_path / "records.jsonl").touch()
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    driver = subprocess.run(command, capture_output=True, text=True, check=False)
    assert driver.returncode == -signal.SIGKILL
    pid = int(driver.stdout)
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


def test_a_package_that_is_missing_is_said_before_anything_starts(tmp_path, monkeypatch, capsys):
    missing = replace(LOGGERS["wandb"], package="no_such_logger")
    monkeypatch.setitem(LOGGERS, "wandb", missing)
    # What the tool itself leaves in the current folder is not its package.
    (tmp_path / "no_such_logger").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", "--log", "wandb"]) == cli.WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "raybench: --log wandb: the package no_such_logger is not installed; install it with: "
        "pip install wandb"
    )
    assert [one.name for one in tmp_path.iterdir()] == ["no_such_logger"]


def exported(study):
    """What is said of writing a study that is finished."""
    said = []
    with loggers(study, said, close_s=None) as running:
        running.start()
        running.end()
    assert not running.has_failed
    return said[-1]


def test_a_finished_study_is_written_with_its_winners_once(study):
    assert exported(study).startswith("TensorBoard: 33 runs written: tensorboard --logdir ")
    winners = tensorboard_scalars(study / "tensorboard" / "winners")
    assert winners["winners/fastest/time_to_target_s"][0][1] == pytest.approx(1.2513679)
    assert exported(study).startswith("TensorBoard: 0 runs written: ")


@pytest.mark.all
def test_a_report_brings_a_study_to_a_tool(tmp_path, capsys):
    study = tmp_path / "study"
    results_folder(study, [run_line("0000", 2.0), run_line("0001", 3.0)])
    assert cli.main(["report", str(study), "--log", "tensorboard"]) == cli.DONE
    assert "TensorBoard: 2 runs written" in capsys.readouterr().out.splitlines()[-1]
    (study / "logged" / "mlflow.jsonl").mkdir()
    assert cli.main(["report", str(study), "--log", "mlflow"]) == cli.FAILED
    assert "--log mlflow: ended, IsADirectoryError" in capsys.readouterr().out.splitlines()[-1]
