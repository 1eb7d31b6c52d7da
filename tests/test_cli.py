"""Wrong input on the command line: one sentence, exit code 2, before Ray starts."""

import importlib.util
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raybench.cluster.admission import Capacity
from raybench.cluster.layout import Node
from raybench.commands import cli
from raybench.commands.cli import tune
from raybench.data.load import load_dataset
from raybench.report.console import make_console
from raybench.search.factorisation import factorise
from raybench.search.tune import print_plan
from raybench.spec.errors import Ended, UserError
from raybench.spec.study import build_study
from raybench.training.check_model import Probed
from tests.search.made_up import STUDY

GOOD = """\
objective: {target: 0.9}
space:
  framework: [torch, tensorflow]
  num_workers: [1, 2]
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Ray must not start, and nothing may be written beside the repository's files."""

    def refuse(*arguments, **options):
        raise AssertionError("Ray was about to start")

    import ray

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.chdir(tmp_path)


def refusal(capsys, *arguments):
    """Run tune; return the one line it must print."""
    assert tune.main(list(map(str, arguments))) == cli.WRONG_INPUT == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    (line,) = captured.err.splitlines()
    assert line.startswith("raybench: ")
    assert line.endswith(".") or line.endswith("?")
    return line


def space_file(text=GOOD):
    Path("space.yaml").write_text(text)
    return "space.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "serach: {trials: 3}\n", "unknown key 'serach'; did you mean 'search'?"),
        (GOOD + "search: {trials: many}\n", "'search.trials'"),
        (GOOD + "workload: minst_small\n", "did you mean 'mnist_small'?"),
        (GOOD + "workload: nowhere_to_be:Found\n", "'nowhere_to_be' cannot be imported"),
        (GOOD.replace("0.9", "95"), "0.98, not 98 (found 95)"),
        (GOOD.replace("0.9", "0.05"), "0.05 is not better than the baseline, whose accuracy is"),
        (GOOD.replace("{target", "{metric: rsme, target"), "did you mean 'rmse'?"),
        (GOOD.replace("{target", "{metric: rmse, target"), "rmse is not of classification"),
        (GOOD.replace("{target: 0.9", "{metric: loss, target: 2.4"), "baseline, whose loss is 2.3"),
        (GOOD + "dataset: {name: digits, limit: 100000}\n", "dataset.limit 100000"),
        (GOOD + "dataset: {name: digits, validation_size: 5000}\n", "validation_size 5000"),
    ],
)
def test_a_mistake_in_the_file(capsys, text, message):
    line = refusal(capsys, space_file(text))
    assert message in line
    assert "Traceback" not in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "nowhere.yaml: cannot be read (No such file or directory)"),
        (["."], "cannot be read (Is a directory)"),
        (["--set", "optimizer=adagrad"], "'optimizer'"),
        (["--set", "search.trials.x=1"], "'trials' holds no keys of its own"),
        (["--trials", "0"], "'search.trials'"),
        (["--time-budget", "-5"], "'search.time_budget_s'"),
        (["--seed", "-1"], "'search.seed'"),
        (["--workers", "1,two"], "'num_workers'"),
        (["--workers", ""], "the list is empty"),
        (["--gpus-per-worker", "4"], "'gpus_per_worker'"),
        (["--concurrency", "0"], "'search.concurrency'"),
    ],
)
def test_a_mistake_on_the_command_line(capsys, arguments, message):
    assert message in refusal(capsys, *arguments)
    assert list(Path().iterdir()) == [], "nothing is left behind"


def test_missing_data_say_what_to_provide(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    # A split of its own, because datasets that another test has loaded are kept.
    changed = space_file(GOOD + "dataset: {name: mnist, split_seed: 987654}\n")
    line = refusal(capsys, changed)
    assert f"RAYBENCH_DATA={tmp_path} holds no MNIST" in line
    assert "mnist.npz" in line


def test_a_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for below in ("file/results", "file/a/b"):
        line = refusal(capsys, space_file(), "--out", tmp_path / below)
        assert "cannot be written" in line
    assert "is a file" in refusal(capsys, space_file(), "--out", tmp_path / "file")


def test_a_framework_that_is_not_installed(capsys, monkeypatch):
    installed = importlib.util.find_spec

    def without_tensorflow(name, *arguments):
        return None if name == "tensorflow" else installed(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", without_tensorflow)
    line = refusal(capsys, space_file())
    assert "framework tensorflow is not installed; run: pip install 'raybench[tensorflow]'" in line


@pytest.mark.parametrize("arguments", [[], ["digits"], ["--target", "0.5", "--workers", "1"]])
def test_a_dry_run_prints_the_plan_and_starts_nothing(capsys, tmp_path, arguments):
    assert tune.main([*arguments, "--dry-run"]) == cli.DONE == 0
    printed = capsys.readouterr().out
    for word in ("learning_rate", "optimizer=lars", "120 trials", "a race of 24", "results/digits"):
        assert word in printed
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"


def test_the_plan_names_what_is_aimed_at_and_where_the_data_lie(capsys, tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("size,price\n" + "".join(f"{n % 7},{n % 7 + n % 3}.5\n" for n in range(60)))
    data = ["--set", f"dataset={{name: csv, path: {file}, label: price}}", "--set", "workload=mlp"]
    aim = ["--set", "objective={metric: mae, target: 0.5, hold: 2, max_train_seconds: 9}"]
    assert tune.main([*data, *aim, "--dry-run"]) == cli.DONE
    printed = capsys.readouterr().out
    assert f"workload mlp, dataset csv {file}:" in printed
    assert (
        "objective time_to_target: validation mean absolute error 0.5, held for 2 evaluations, "
        "within 9 s of training" in printed
    )
    assert tune.main(["--target", "0.5", "--dry-run"]) == cli.DONE
    assert "time_to_target: validation 50 % accuracy, held for 2" in capsys.readouterr().out


def test_a_budget_that_the_data_have_taken_starts_nothing(capsys):
    assert tune.main(["--time-budget", "0.001"]) == cli.WRONG_INPUT
    assert "went to reading and checking the data" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "scale", "compare"])
def test_models_are_tried_for_as_many_workers_as_train_them(command, monkeypatch, tmp_path):
    asked = []

    def tried(*arguments, several):
        asked.append(several)
        return Probed([])

    monkeypatch.setattr(f"raybench.runs.{command}.check_models", tried)
    spec = tmp_path / "spec.yaml"
    spec.write_text("{num_workers: 2, dataset: digits, objective: {target: 0.5}}")
    given = {
        "train": [spec],
        "compare": [spec, spec],
        "scale": ["--set", "num_workers=[1,2]", "--set", "base.dataset=digits"],
    }
    assert cli.main([command, *map(str, given[command]), "--dry-run"]) == cli.DONE
    assert asked == [{"torch"}] * len(asked)
    assert asked


def test_the_plan_is_no_longer_than_the_time_budget(capsys):
    assert tune.main(["--dry-run"]) == cli.DONE
    printed = capsys.readouterr().out
    assert "120 trials (a reference run sets how long each may train)" in printed
    assert "at most about 170 s on this machine" in printed


@pytest.mark.parametrize(
    ("settings", "capacity", "words"),
    [
        # 60 trials, 24 and 24 of two races, 3 times 3 and 3 alone, 5 placement checks,
        # 1 reference, 2 groups
        ({}, Capacity((Node(2, 0),), 0.0), "at most about 22 min on this machine's 2 cores, ev"),
        ({}, Capacity((Node(8, 0),), 0.0), "at most about 540 s on this machine's 8 cores"),
        ({"concurrency": 1}, Capacity((Node(8, 0),), 0.0), "about 22 min on this machine's 8 c"),
        ({"gpus_per_worker": 1}, Capacity((Node(8, 2),), 0.0), "at most about 22 min on this"),
        ({}, None, "how long it takes on the cluster is not known beforehand; --time-budget"),
        ({"time_budget_s": 90}, None, "at most about 90 s on the cluster; runs that"),
    ],
)
def test_the_plan_counts_every_phase_on_what_there_is(tmp_path, settings, capacity, words):
    gpus = settings.pop("gpus_per_worker", 0)
    content = STUDY | {"search": {"trials": 60} | settings, "fixed": {"gpus_per_worker": gpus}}
    study, space = build_study(content, "test")
    factors = factorise(study, space, equal_frameworks=True)
    console = make_console(file=io.StringIO())
    dataset = load_dataset(study.dataset)
    print_plan(console, study, space, dataset, "out", factors, capacity)
    assert words in console.file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "then a race of 24 runs over the best 12, 3 runs of each winner alone"),
        (["--confirm", "race=40, fresh=1"], "a race of 40 runs over the best 20, 1 run of each"),
        (["--no-confirm"], "120 trials (a reference run sets how long each may train), not con"),
    ],
)
def test_the_confirm_phase_is_chosen(capsys, arguments, words):
    assert tune.main([*arguments, "--dry-run"]) == cli.DONE
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--confirm", "3"], "--confirm 3: write it as race=40,fresh=5, or only one of them."),
        (["--confirm", "rase=3"], "unknown key 'confirm.rase'; did you mean 'race'?"),
        (["--more", "0"], "--more 0: name a number of runs, 1 or more."),
        (["--confirm", "race=1", "--no-confirm"], "--no-confirm: not with --confirm"),
        (["--confirm", "race=0,fresh=6"], "fresh runs are of a race's winner, and there is no"),
        (["--more", "5"], "--more 5: results/digits holds no confirmed study; run the same"),
    ],
)
def test_a_confirm_phase_that_cannot_be(capsys, arguments, sentence):
    assert sentence in refusal(capsys, *arguments)


def test_the_overview_names_every_command(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        assert cli.main(arguments) == 0
        printed = capsys.readouterr().out
        for command in ("tune", "train", "report"):
            assert command in printed


@pytest.mark.parametrize("command", ["tunes", "", "--tune", "cli"])
def test_an_unknown_command(capsys, command):
    assert cli.main([command]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"raybench: unknown command '{command}'")
    assert "tune" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_of_the_overview_exists(capsys, command):
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main([command, "--help"])
    assert f"usage: raybench {command}" in capsys.readouterr().out


def test_python_runs_the_package_like_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "raybench", "--help"], capture_output=True, text=True, check=True
    )
    for name, line in cli.COMMANDS.items():
        assert re.search(rf"^  {name} +{line}$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("error", "code"), [(UserError("is wrong."), 2), (KeyboardInterrupt(), 130)]
)
def test_exit_codes(capsys, error, code):
    def fail():
        raise error

    assert cli.run_command(fail) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert cli.run_command(lambda: Ended(0)) == 0


def test_a_bug_of_ours_is_not_taken_for_the_users_mistake():
    with pytest.raises(ZeroDivisionError, match="division"):
        cli.run_command(lambda: 1 // 0)


def test_the_module_is_a_command_too():
    result = subprocess.run(
        [sys.executable, "-m", "raybench.tune", "nowhere.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("raybench: nowhere.yaml: cannot be read")
    assert len(result.stderr.splitlines()) == 1


def test_a_full_disk_is_one_sentence_and_exit_1(tmp_path, capsys):
    from raybench.results.store import Store

    (tmp_path / "records.jsonl").symlink_to("/dev/full")

    def command() -> int:
        with Store(tmp_path) as store:
            store.append({"kind": "run"})
        return 0

    assert cli.run_command(command) == 1
    message = capsys.readouterr().err
    assert message.startswith("raybench: results cannot be written any more (No space left")
    assert message.count("\n") == 1
