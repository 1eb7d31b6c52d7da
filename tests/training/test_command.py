"""Commands as training loops: their arguments, reported lines, errors, and how they end; and
commands that are started once per worker."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from user_loops import run_on_two_ranks

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import Objective
from raybench.spec.own_loop import words_of
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.stats.record import Evaluation
from raybench.training import command
from raybench.training.command import run_command, values_of
from raybench.training.own import OwnTrainer, PlainWorld
from tests.refusals import refused

PYTHON = sys.executable


def trainer_of(script: Path | str, arguments: str = "", **changes: Any) -> OwnTrainer:
    content: dict[str, Any] = {
        "workload": f"$ {PYTHON} {script} {arguments}",
        "objective": Objective(target=0.9),
        "model": {"hidden_units": 64},
    }
    spec = RunSpec(**(content | changes))
    TRAINERS.append(OwnTrainer(spec, run_command, PlainWorld("cpu"), Ledger("setup")))
    return TRAINERS[-1]


TRAINERS: list[OwnTrainer] = []
"""Trainers whose command may still run."""


@pytest.fixture(autouse=True)
def _finished_commands() -> Iterator[None]:
    """End every command with its test, so that it does not print into a later one."""
    yield
    while TRAINERS:
        with contextlib.suppress(UserError):
            TRAINERS.pop().finish()


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(f"import json, os, subprocess, sys, time\n{body}")
        return path

    return write


def line(**values: Any) -> str:
    """Return code that prints one line of JSON."""
    return f"time.sleep(0.1)\nprint({json.dumps({'accuracy': 0.5} | values)!r}, flush=True)\n"


def test_placeholders_are_replaced_by_values_of_the_run():
    workload = "$ x -n={num_workers} '{model.name}' {global_batch_size} {nesterov} {{a}}"
    spec = RunSpec(workload=workload, model={"name": "a b"}, num_workers=2)
    values = values_of(spec, 0.01) | {"a": 1}
    assert words_of(workload, values) == ["x", "-n=2", "a b", "128", "false", "{1}"]
    for invalid in ("$ x 'a", "$  "):
        with refused(ErrorCode.COMMAND):
            words_of(invalid, values)


def test_json_lines_are_evaluations(script, capfd):
    path = script(
        "print('begin', sys.argv[1:])\n"
        "for value in (0.5, 0.7):\n"
        "    time.sleep(0.05)\n"
        "    print(json.dumps({'accuracy': value, 'samples': 50, 'train_s': 0.001, 'test': 0.4}))\n"
        "print(json.dumps({'loss': 1}), '{no json')\n"
    )
    trainer = trainer_of(path, "{learning_rate} {model.hidden_units} {folder}", learning_rate=0.25)
    curve = list(trainer.evaluations())
    assert trainer.finish() == 0.4
    assert [(point.value, point.samples, point.stop) for point in curve] == [
        (0.5, 50, None),
        (0.7, 100, None),
        (0.7, 100, "epochs"),
    ]
    assert [point.train_s for point in curve[:2]] == pytest.approx([0.001, 0.002])
    assert curve[0].memory_peak_bytes is None, "the command is another process"
    assert f"begin ['0.25', '64', '{trainer.run.folder}']" in capfd.readouterr().out


@pytest.mark.parametrize("prints", ["now", "at_the_end", "one_by_one_at_the_end"])
def test_reported_seconds_count_whenever_their_lines_arrive(prints, script):
    path = script(
        "lines = []\n"
        "for epoch in range(6):\n"
        "    time.sleep(0.06)\n"
        "    values = {'accuracy': 0.5 + 0.1 * epoch, 'samples': 50, 'train_s': 0.05}\n"
        "    lines.append(json.dumps(values))\n"
        "    if sys.argv[1] == 'now': print(lines.pop(), flush=True)\n"
        "if sys.argv[1] == 'at_the_end': print('\\n'.join(lines))\n"
        "else: [print(line, flush=True) for line in lines]\n"
    )
    trainer, curve = trainer_of(path, prints), []
    for point in trainer.evaluations():
        curve.append(point)
        time.sleep(0.02)  # the driver is busy between two lines
    trainer.finish()
    assert [point.train_s for point in curve] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25])
    assert curve[-1].stop == "target"
    assert curve[-1].time_to_target_s == pytest.approx(0.25)
    assert min(curve[-1].ledger["eval"], curve[-1].ledger["setup"]) >= 0
    assert not trainer.notes


@pytest.mark.parametrize("train_s", [{"train_s": 0.05}, {}])
def test_time_after_the_last_line_is_no_training(train_s, script):
    trainer = trainer_of(script(2 * line(**train_s) + "time.sleep(0.5)\n"))
    curve = list(trainer.evaluations())
    trainer.finish()
    assert curve[-1].train_s < 0.4 or not train_s
    assert trainer._ledger.seconds("train") == pytest.approx(curve[-1].train_s)
    assert trainer._ledger.seconds("eval") >= 0.5


def test_time_between_lines_counts_without_reported_seconds(script):
    """However late they are read. The first interval contains the start-up, with a note."""
    path = script(
        "time.sleep(0.4)\n"
        "for samples in (50, 100, 100):\n"
        "    time.sleep(0.2)\n    print(f'acc 0.5 of {samples}')\n"
    )
    pattern = r"acc (?P<value>[0-9.]+) of (?P<samples>[0-9]+)"
    trainer = trainer_of(path, objective=Objective(target=0.9, metric_pattern=pattern))
    curve = []
    for point in trainer.evaluations():
        curve.append(point)
        time.sleep(0.3)
    assert [point.samples for point in curve] == [50, 150, 250, 250]
    first, second, third = (point.train_s for point in curve[:3])
    assert first >= 0.59
    assert second - first >= 0.19
    assert third - second >= 0.19
    trainer.finish()
    (note,) = trainer.notes
    assert "train_s" in note


def test_lines_without_a_value_of_the_metric_are_skipped(script):
    body = [
        line(accuracy=[0.1, 0.2], epochs=3),
        "print(json.dumps({'train_accuracy': 0.3, 'val_acc': 0.4}))\n",
        line(accuracy=0.4, train_s=0.0),
        "print(json.dumps({'loss': 1.0}))\n",
        line(accuracy=0.5, train_s=0.01),
    ]
    curve = list(trainer_of(script("".join(body))).evaluations())
    assert [point.value for point in curve] == [0.4, 0.5, 0.5]
    assert curve[1].train_s == pytest.approx(0.01, rel=0.01)


def printed_slowly(*lines: str) -> str:
    """Return code that prints lines with pauses, so that each has a time of its own."""
    return f"for line in {lines}:\n    time.sleep(0.05)\n    print(line, flush=True)\n"


def test_json_after_other_text_or_color_codes_is_read(script):
    lines = (
        '\x1b[32m{"accuracy": 0.1}\x1b[0m',
        '\x1b[1;38;5;4mepoch 3\x1b[0m {"accuracy": 0.2}',
        '[###..] 28/30{"accuracy": 0.3}',
        '\r[#....] 1/30\r[###..] 28/30{ "accuracy": 0.4}',
        '{"accuracy": 0.5}\r[#....] 1/30',
        '{1, 2} INFO: {"accuracy": 0.6}',
    )
    curve = list(trainer_of(script(printed_slowly(*lines))).evaluations())
    assert [point.value for point in curve[:-1]] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def test_pattern_reads_all_notations_of_a_number_and_colored_ones(script):
    lines = ["loss 9.5e-05,", "loss -1.25 (best)", "loss \x1b[31m+2\x1b[0m", "loss 3.%", "loss nan"]
    objective = Objective(
        kind="best_at_budget", metric="loss", direction="max", metric_pattern=r"loss (\S+)"
    )
    trainer = trainer_of(script(printed_slowly(*lines)), objective=objective)
    curve = list(trainer.evaluations())
    assert [point.value for point in curve[:4]] == [9.5e-05, -1.25, 2.0, 3.0]
    assert curve[4].failure == "nan"


def test_command_and_its_children_are_killed_when_the_run_stops(script, tmp_path, monkeypatch):
    """Also children with a process group of their own, and processes that ignore SIGTERM."""
    monkeypatch.setattr(command, "GRACE_S", 0.3)
    path = script(
        "import signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "children = [subprocess.Popen(sleep, start_new_session=new) for new in (False, True)]\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(' '.join("
        "str(pid) for pid in [os.getpid(), *(child.pid for child in children)]))\n"
        "print(json.dumps({'accuracy': 0.95}), flush=True)\n"
        "time.sleep(600)\n"
    )
    trainer = trainer_of(path)
    assert [point.stop for point in trainer.evaluations()] == ["target"]
    trainer.finish()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    for pid in pids:
        wait_for_end(pid)


def wait_for_end(pid: int) -> None:
    """Wait until a killed process is gone or a zombie."""
    deadline = time.monotonic() + 60
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_command_ends_with_its_worker(script, tmp_path):
    path = script(
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "print(json.dumps({'accuracy': 0.5}), flush=True)\ntime.sleep(600)\n"
    )
    worker = (
        "import os, sys\nsys.path += ['.', 'tests/training']\n"
        "from test_command import trainer_of\n"
        f"next(trainer_of({str(path)!r}).evaluations())\nos.kill(os.getpid(), 9)\n"
    )
    subprocess.run([PYTHON, "-c", worker], check=False, timeout=120)
    wait_for_end(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("sys.exit(3)", ["exit code 3"]),
        ("raise ValueError('bad rate')", ["exit code 1", "ValueError: bad rate"]),
        ("os.kill(os.getpid(), 9)", ["SIGKILL"]),
        (line(accuracy=True), ["accuracy"]),
        (line(accuracy="0.5"), ["accuracy"]),
        (line(samples=0), ["samples"]),
        (line(samples=float("nan")), ["samples"]),
        (line(train_s=-0.1), ["train_s"]),
        (line(train_s="0.1"), ["train_s"]),
        (line(train_s=float("nan")), ["train_s"]),
        # More seconds than have passed: totals since the start, and milliseconds.
        ("".join(line(train_s=0.1 * n) for n in range(20)), ["train_s"]),
        (20 * line(train_s=100), ["train_s"]),
        ("time.sleep(0.3)\nprint(9 * (json.dumps({'accuracy': 0.5}) + '\\n'))", ["train_s"]),
        ("""print('{"epoch": 0, "val/acc": 0.5}\\n{"f1": 0.5}')""", ["accuracy", "epoch, val/acc"]),
    ],
)
def test_error_of_a_command_is_one_sentence(body, names, script, monkeypatch):
    monkeypatch.setattr(command, "SILENCE_S", 0.2)
    monkeypatch.setattr(command, "EXCESS_S", 0.0)
    with refused(ErrorCode.COMMAND, *names) as caught:
        list(trainer_of(script(body)).evaluations())
    assert "\n" not in str(caught.value)


def test_missing_program_is_refused():
    with refused(ErrorCode.COMMAND, "no-such-program"):
        list(trainer_of("", workload="$ no-such-program").evaluations())


LAUNCHED = """
import json, os, sys, time
from pathlib import Path
rank, mode = int(os.environ["RANK"]), sys.argv[1]
names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
Path(f"{rank}.json").write_text(json.dumps({name: os.environ[name] for name in names}))
while not Path("1.json").exists():  # otherwise rank 0 may end before rank 1 has started
    time.sleep(0.01)
if mode == "fails" and rank == 1:
    sys.exit("no data on this host")
for number in range(1, 1000 if mode in ("long", "fails") else 4):
    time.sleep(0.02)
    if rank == 0 and mode != "silent":
        accuracy = 0.1 if mode == "fails" else min(0.3 * number, 0.95)
        values = {"accuracy": accuracy, "samples": 10, "train_s": 0.01}
        print(json.dumps(values), flush=True)
"""


def run_of(
    folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[Evaluation]], dict[int, str]]:
    """Run the script on two ranks; return curves, and errors by rank. No script is left running."""
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(LAUNCHED)
    objective = Objective(target=0.9, max_train_seconds=1000.0)
    workload = f"$torchrun {PYTHON} train.py {mode}"
    spec = RunSpec(workload=workload, objective=objective, num_workers=2)
    curves, errors = run_on_two_ranks(spec, run_command)
    for child in psutil.Process().children(recursive=True):
        assert "train.py" not in " ".join(child.cmdline())
    return curves, errors


@pytest.mark.parametrize("mode", ["ends", "long"])
def test_rank_0_reports_for_all_ranks_and_all_end_together(tmp_path, mode, monkeypatch):
    curves, errors = run_of(tmp_path, mode, monkeypatch)
    assert errors == {}
    for curve in curves:
        assert [point.value for point in curve][:3] == pytest.approx([0.3, 0.6, 0.9])
        assert [point.samples for point in curve][:3] == [10, 20, 30]
        assert [point.train_s for point in curve][:3] == pytest.approx([0.01, 0.02, 0.03])
        assert curve[-1].stop == "target"
    environments = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [variables["LOCAL_RANK"] for variables in environments] == ["0", "1"]
    for variables in environments:
        assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]) == ("2", "2")
        assert variables["NODE_RANK"] == "0"
    assert environments[0]["MASTER_PORT"] == environments[1]["MASTER_PORT"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [("fails", {0: "rank 1", 1: "no data"}), ("silent", {0: "accuracy"})],
)
def test_rank_that_fails_or_reports_nothing_ends_all_ranks(tmp_path, mode, words, monkeypatch):
    _, errors = run_of(tmp_path, mode, monkeypatch)
    assert all(word in errors[rank] for rank, word in words.items())
