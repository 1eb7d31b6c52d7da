"""Invalid input of every kind: one line, exit code 2, no traceback, and Ray does not start."""

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import pytest

from raybench.commands import cli
from raybench.models import find
from raybench.spec.errors import ErrorCode as Code

STUDY = "objective: {target: 0.9}\nspace:\n  framework: [torch]\n  num_workers: [1]\n"
FILES = {
    "": (Code.INVALID_FILE, ["space.yaml"]),
    b"a: 1\n\x80\x81": (Code.INVALID_FILE, ["UTF-8", "0x80", "line 2"]),
    f"{STUDY}---\n{STUDY}": (Code.INVALID_FILE, ["line 5"]),
    f"{STUDY}7: 1": (Code.INVALID_VALUE, ["'7'"]),
}
HUGE = "1" + "0" * 12
ARGUMENTS = {
    "tune --set 'dataset={name: synthetic, num_classes: 10000000000}'": (Code.NO_ROOM, []),
    "tune --set 'augment=[{random_crop: {padding: 40}}]'": (Code.INVALID_VALUE, ["28"]),
    "tune --set augment=[flpi]": (Code.INVALID_VALUE, ["'flip'"]),
    "tune --set workload=minst_small": (Code.UNKNOWN_NAME, ["'mnist_small'"]),
    "tune --target 0.05": (Code.INVALID_VALUE, ["objective.target", "0.05", "accuracy"]),
    "tune --set optimizer": (Code.INVALID_OPTION, ["optimizer="]),
    "tune --set optimzer=adam": (Code.UNKNOWN_KEY, ["'optimzer'", "'optimizer'"]),
    "tune --set mup_base=3": (Code.REMOVED, ["'mup_base'"]),
    "tune --time-budget inf": (Code.INVALID_VALUE, ["'time_budget'", "inf"]),
    "tune --time-budget soon": (Code.INVALID_VALUE, ["'time_budget'", "30min", "soon"]),
    "data --unused-for=-5 --remove all": (Code.INVALID_VALUE, ["'unused_for'"]),
    "tune --workers 1,,2": (Code.INVALID_FILE, ["--workers"]),
    "tune --workers=": (Code.INVALID_VALUE, ["'space.num_workers'"]),
    "tune --confirm 3": (Code.INVALID_VALUE, ["race=40,fresh=5"]),
    "tune --confirm race=1 --no-confirm": (Code.CONFLICT, ["--no-confirm", "--confirm"]),
    "tune --confirm race=0,fresh=6": (Code.CONFLICT, ["race=0", "--no-confirm"]),
    "tune --more 0": (Code.INVALID_VALUE, ["--more"]),
    "tune --more 5": (Code.NO_RESULT, ["--more", "results/space"]),
    "tune --workload no.such.module:Net": (Code.USER_CODE, ["no.such.module:Net"]),
    "tune --workload ''": (Code.UNKNOWN_NAME, ["mnist_small"]),
    "tune --out space.yaml/below": (Code.NOT_WRITABLE, ["--out", "space.yaml"]),
    "tune --out " + "x" * 300: (Code.NOT_WRITABLE, ["--out"]),
    "tune --workers 64": (Code.NO_ROOM, ["num_workers", "64"]),
    f"tune --set space.num_workers=[{HUGE}]": (Code.NO_ROOM, [HUGE]),
    "tune --gpus-per-worker 1": (Code.NO_ROOM, ["GPU"]),
    "tune --address 127.0.0.1:99999": (Code.INVALID_VALUE, ["--address", "99999"]),
    "train nowhere.yaml": (Code.NOT_FOUND, ["nowhere.yaml"]),
}
WORKLOAD = """\
import numpy as np

from raybench import Dataset, Split, Workload

labels = np.arange(8) % 2


class OnDemand:
    shape, dtype = (8, 3), np.float32

    def __getitem__(self, rows):
        return open("7.png")


class Net(Workload):
    name, input_shape, num_classes = "net", (3,), 2

    def build_torch(self):
        import torch
        return torch.nn.Linear(3, 2)

    def load_dataset(self, spec):
        train = Split(INPUTS, labels)
        return Dataset("own", 2, train, train, train)
"""
WORKLOADS = {
    "load_dataset raises": ("1 / 0", Code.USER_CODE, ["own_net.py, line "]),
    "a sample raises": ("OnDemand()", Code.USER_CODE, ["own_net.py, line "]),
    "another shape": ("np.ones((8, 4), 'f')", Code.INVALID_MODEL, ["(3,)", "(4,)"]),
    "NaN": ("np.full((8, 3), np.nan, 'f')", Code.INVALID_DATA, ["train", "sample 0"]),
    "a syntax error": ("(", Code.USER_CODE, ["SyntaxError"]),
}


@pytest.fixture(autouse=True)
def _own_net(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    find._own_data.clear()
    sys.modules.pop("own_net", None)


def assert_refused(capsys, code, names, content=STUDY, arguments=("tune",)):
    """Run a command, which must print one line with these names, exit with 2, and write nothing."""
    Path("space.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    command, *words = arguments
    file = ["space.yaml"] if command == "tune" else []
    assert cli.main([command, *file, *words, "--json"]) == cli.WRONG_INPUT == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    (line,) = captured.err.splitlines()
    assert Code(json.loads(captured.out)["error"]["code"]) is code, line
    assert line.startswith("raybench: ")
    assert line.endswith((".", "?"))
    assert line.isprintable()
    assert len(line) < 700
    for name in names:
        assert name in line
    assert {path.name for path in Path().iterdir()} <= {"space.yaml", "own_net.py", "__pycache__"}


@pytest.mark.parametrize("content", FILES, ids=range(len(FILES)))
def test_invalid_files_are_refused(content, capsys):
    assert_refused(capsys, *FILES[content], content)


@pytest.mark.parametrize("words", ARGUMENTS, ids=lambda words: words[:40])
def test_invalid_arguments_are_refused(words, capsys):
    assert_refused(capsys, *ARGUMENTS[words], arguments=shlex.split(words))


@pytest.mark.parametrize("name", WORKLOADS)
def test_invalid_workloads_are_refused(name, capsys):
    inputs, code, names = WORKLOADS[name]
    Path("own_net.py").write_text(WORKLOAD.replace("INPUTS", inputs))
    content = f"workload: own_net:Net\ndataset: {{name: workload}}\n{STUDY}"
    assert_refused(capsys, code, names, content)


def test_missing_data_are_refused_with_the_expected_files(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    # A unique split seed, because datasets loaded by other tests are cached.
    content = STUDY + "dataset: {name: mnist, split_seed: 987654}\n"
    names = [f"RAYBENCH_DATA={tmp_path}", "mnist.npz"]
    assert_refused(capsys, Code.NOT_FOUND, names, content)


def test_a_missing_framework_is_refused_with_its_install_command(capsys, monkeypatch, tmp_path):
    installed = importlib.util.find_spec

    def without_torch(name, *arguments):
        return None if name == "torch" else installed(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    assert_refused(capsys, Code.NOT_INSTALLED, ["pip install 'raybench[torch]'"])
    # The default space searches only installed frameworks.
    assert cli.main(["tune", "--dry-run", "--out", str(tmp_path / "out")]) == cli.DONE
    printed = capsys.readouterr().out
    assert "pip install 'raybench[all]'" in printed
    assert "pytorch" not in printed.lower()


@pytest.mark.parametrize("name", ["/dev/zero", "x" * 5000], ids=["device", "long"])
@pytest.mark.parametrize("command", ["tune", "init"])
def test_a_path_that_is_no_file_is_refused_on_one_line(command, name, capsys):
    """An endless device is not read."""
    assert cli.main([command, name]) == cli.WRONG_INPUT
    assert len(capsys.readouterr().err.splitlines()) == 1
