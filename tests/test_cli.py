"""Dry runs, the command overview and exit codes; test_bad_input.py covers invalid input."""

import io
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raybench.cluster.layout import Capacity, Node
from raybench.commands import cli
from raybench.data.load import load_dataset
from raybench.report.console import make_console
from raybench.search.factorisation import factorise
from raybench.search.resolve import StudyPlan
from raybench.spec.errors import Ended, ErrorCode, UserError
from raybench.spec.study import build_study
from tests.search.made_up import STUDY

pytestmark = pytest.mark.usefixtures("elsewhere")


TRIALS = "120 trials (a reference run sets how long each may train)"
PLAN = (TRIALS, "learning_rate", "optimizer=lars", "results/digits")
RACE = "then 24 confirmation runs of the best 12, and 3 runs of each winner alone"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], (*PLAN, RACE, "about 170 s")),
        (["--target", "0.5", "--workers", "1"], (*PLAN[1:], "120 trials", RACE)),
        (["--confirm", "race=40, fresh=1"], ["40 confirmation runs", "best 20", "1 run of each"]),
        (["--no-confirm"], [f"{TRIALS}, not con"]),
    ],
)
def test_a_dry_run_prints_the_plan_and_starts_nothing(capsys, tmp_path, arguments, words):
    assert cli.main(["tune", *arguments, "--dry-run"]) == cli.DONE == 0
    printed = capsys.readouterr().out
    assert [word for word in words if word not in printed] == []
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"


def test_the_plan_names_the_target_and_the_data(capsys, tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("size,price\n" + "".join(f"{n % 7},{n % 7 + n % 3}.5\n" for n in range(60)))
    data = ["--set", f"dataset={{name: csv, path: {file}, label: price}}", "--set", "workload=mlp"]
    aim = ["--set", "objective={metric: mae, target: 0.5, hold: 2, max_train_seconds: 9}"]
    assert cli.main(["tune", *data, *aim, "--dry-run"]) == cli.DONE
    printed = capsys.readouterr().out
    for value in ("workload mlp", f"dataset csv {file}", "mean absolute error 0.5", "9 s"):
        assert value in printed
    assert cli.main(["tune", "--target", "0.5", "--dry-run"]) == cli.DONE
    assert "50 % accuracy" in capsys.readouterr().out


def test_a_budget_used_up_by_loading_data_starts_nothing(capsys):
    assert cli.main(["tune", "--time-budget", "0.001"]) == cli.WRONG_INPUT
    assert "increase --time-budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "capacity", "words"),
    [
        # 60 trials, 24 and 24 of two races, 3 times 3 and 3 alone, 5 placement checks,
        # 1 reference, 2 groups
        ({}, Capacity((Node(2, 0),), 0.0), ("22 min", "2 cores")),
        ({}, Capacity((Node(8, 0),), 0.0), ("540 s", "8 cores")),
        ({}, None, ("--time-budget",)),
        ({"time_budget_s": 90}, None, ("90 s",)),
    ],
)
def test_the_plan_counts_every_phase_on_the_available_cores(tmp_path, settings, capacity, words):
    content = STUDY | {"search": {"trials": 60} | settings}
    study, space = build_study(content, "test")
    factors = factorise(study, space, equal_frameworks=True)
    console = make_console(file=io.StringIO())
    dataset = load_dataset(study.dataset)
    StudyPlan(study, space, factors).show(console, dataset, "out", capacity)
    assert [word for word in words if word not in console.file.getvalue()] == []


def test_the_overview_names_every_command(capsys):
    command = [sys.executable, "-m", "raybench", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name, about in cli.COMMANDS.items():
        assert re.search(rf"^  {name} +{about}$", printed, re.MULTILINE)
    for arguments in ([], ["--help"], ["-h"]):
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out == printed
    assert cli.main(["--version"]) == 0
    assert re.match(r"raybench \d+\.\d+", capsys.readouterr().out)


def test_a_command_with_a_shipped_space_is_refused_with_what_to_do(capsys):
    command = "python train.py --lr {learning_rate}"
    assert cli.main(["tune", "--dry-run", "--command", command]) == cli.WRONG_INPUT
    message = " ".join(capsys.readouterr().err.split())
    assert "name a space file that lists what to vary" in message
    assert "warmup" not in message


@pytest.mark.parametrize("command", ["tunes", "", "--tune"])
def test_an_unknown_command_is_refused(capsys, command):
    assert cli.main([command]) == cli.WRONG_INPUT
    captured = capsys.readouterr()
    assert f"'{command}'" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("report results --as torch", "best.yaml"),
        ("report --as=keras results", "best.yaml"),
        ("watch results", "--log tensorboard"),
        ("watch", "optuna-dashboard"),
    ],
)
def test_removed_commands_are_refused_with_their_replacement(capsys, words, instead):
    with pytest.raises(SystemExit, match=r"^2$"):
        sys.exit(cli.main(words.split()))
    (line,) = capsys.readouterr().err.splitlines()
    assert "removed" in line
    assert instead in line


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_of_the_overview_exists(capsys, command):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([command, "--help"])
    assert f"usage: raybench {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"), [(UserError("is wrong.", ErrorCode.CONFLICT), 2), (KeyboardInterrupt(), 130)]
)
def test_exit_codes_follow_the_error(capsys, error, code):
    def fail():
        raise error

    assert cli.run_command(fail) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert cli.run_command(lambda: Ended(0)) == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, BrokenPipeError])
def test_internal_errors_and_other_broken_pipes_are_raised(error):
    def fail():
        raise error

    with pytest.raises(error):
        cli.run_command(fail)


def test_a_full_disk_exits_with_1_and_one_line(tmp_path, capsys):
    from raybench.results.store import Store

    (tmp_path / "records.jsonl").symlink_to("/dev/full")

    def command() -> int:
        with Store(tmp_path) as store:
            store.append({"kind": "run"})
        return 0

    assert cli.run_command(command) == 1
    message = capsys.readouterr().err
    assert "No space left" in message
    assert message.count("\n") == 1


def test_a_closed_stdout_ends_the_command_without_a_traceback():
    """The reader closes the pipe early, as in `raybench forecast ... | head`."""
    code = (
        "import sys, time; from raybench.commands import cli\n"
        "def command():\n    time.sleep(1); print('line\\n' * 100_000); return None\n"
        "sys.exit(cli.run_command(command))"
    )
    reading, writing = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    assert process.communicate() == (None, b"")
    assert process.returncode == cli.FAILED


@pytest.mark.parametrize("words", [[], ["-v"]])
def test_log_messages_are_shown_on_request(capfd, monkeypatch, words):
    def doctor(options, interrupt):
        logging.getLogger("raybench.training.machine").info("no driver")
        return Ended(cli.DONE)

    monkeypatch.setitem(cli.FUNCTIONS, "doctor", "tests.test_cli:_doctor")
    monkeypatch.setattr(sys.modules[__name__], "_doctor", doctor, raising=False)
    assert cli.main(["doctor", *words]) == cli.DONE
    assert ("no driver" in capfd.readouterr().err) == bool(words)
    assert not logging.getLogger("raybench").handlers


@pytest.mark.skipif("RAYBENCH_DATA" not in os.environ, reason="set RAYBENCH_DATA to MNIST")
def test_dry_run_of_more_names_the_configurations_that_would_run_again(capsys, tmp_path):
    study = Path(__file__).parent / "fixtures" / "mnist_workers"
    shutil.copytree(study, tmp_path / "results" / "mnist")
    words = ["tune", "mnist", "--time-budget", "20min", "--more", "32", "--dry-run"]
    assert cli.main([*words, "--out", str(tmp_path / "results" / "mnist")]) == cli.DONE
    printed = " ".join(capsys.readouterr().out.split())
    assert "at most 32 confirmation runs of trials 0045, 0010, 0031, 0029" in printed
    assert cli.main([*words, "--out", str(tmp_path / "empty")]) == cli.WRONG_INPUT
    assert "--more 32" in capsys.readouterr().err
