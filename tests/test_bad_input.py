"""Bad input of every kind: one sentence, exit code 2, no traceback, and Ray does not start."""

import importlib.util
import json
import sys
import textwrap
from pathlib import Path

import pytest

from raybench.commands import cli
from raybench.models import find
from raybench.spec.errors import ErrorCode

from .bad_inputs import ENDLESS, FILES, FLAGS, USERS, Bad, in_file

OWN_NET = """\
import sys

import numpy as np

from raybench import Workload
from raybench.data.dataset import Dataset, Split


def split(size, features=3, label=None, value=1.0):
    inputs = np.full((size, features), value, np.float32)
    labels = np.arange(size) % 2 if label is None else np.full(size, label)
    return Split(inputs, labels.astype(np.int64))


class OnDemand:
    shape, dtype = (8, 3), np.float32

    def __init__(self, read):
        self.read = read

    def __getitem__(self, rows):
        return self.read(rows)


class Net(Workload):
    name, input_shape, num_classes = "net", (3,), 2

"""


@pytest.fixture(autouse=True)
def _own_net(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    find._own_data.clear()
    sys.modules.pop("own_net", None)


def error_of(bad: Bad, capsys) -> tuple[ErrorCode, str]:
    """Run the command, which must print one line and exit with 2; return the code and the line."""
    text = bad.text
    if bad.own:
        at_class = bad.name.startswith("a module")
        body = bad.own if at_class else textwrap.indent(bad.own, "    ")
        Path("own_net.py").write_text(OWN_NET + ("    pass\n\n" if at_class else "") + body)
        assert isinstance(text, str)
        text = f"workload: own_net:Net\ndataset: {{name: workload}}\n{text}"
    Path("space.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    file = ["space.yaml"] if bad.command == "tune" else []
    assert cli.main([bad.command, *file, *bad.arguments, "--json"]) == cli.WRONG_INPUT == 2
    captured = capsys.readouterr()
    code = ErrorCode(json.loads(captured.out)["error"]["code"])
    assert "Traceback" not in captured.err
    (line,) = captured.err.splitlines()
    assert line.startswith("raybench: ")
    assert line.endswith((".", "?"))
    assert line.isprintable()
    assert len(line) < 700
    left = {"space.yaml", "own_net.py", "__pycache__"}
    assert {path.name for path in Path().iterdir()} <= left, "nothing else is left behind"
    return code, line


@pytest.mark.parametrize("bad", [*FILES, *FLAGS, *USERS, *ENDLESS], ids=lambda bad: bad.name)
def test_bad_input_is_one_sentence(bad, capsys):
    code, line = error_of(bad, capsys)
    assert code is bad.code
    for name in bad.names:
        assert name in line


def test_missing_data_say_what_to_provide(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    # A split of its own, because datasets that another test has loaded are kept.
    bad = in_file("", "dataset: {name: mnist, split_seed: 987654}\n", ErrorCode.NOT_FOUND)
    _, line = error_of(bad, capsys)
    assert f"RAYBENCH_DATA={tmp_path}" in line
    assert "mnist.npz" in line


def test_a_framework_that_is_not_installed(capsys, monkeypatch, tmp_path):
    installed = importlib.util.find_spec

    def without_torch(name, *arguments):
        return None if name == "torch" else installed(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    bad = in_file("", "", ErrorCode.NOT_INSTALLED)
    code, line = error_of(bad, capsys)
    assert code is bad.code
    assert "pip install 'raybench[torch]'" in line
    # The shipped space searches the frameworks that are installed.
    assert cli.main(["tune", "--dry-run", "--out", str(tmp_path / "out")]) == cli.DONE
    printed = capsys.readouterr().out
    assert "pip install 'raybench[all]'" in printed
    assert "pytorch" not in printed.lower()


@pytest.mark.parametrize("name", ["/dev/zero", "x" * 5000], ids=["device", "long"])
@pytest.mark.parametrize("command", ["tune", "init"])
def test_a_path_that_is_no_file_is_one_sentence(command, name, capsys):
    """A device is not read to its end, as it may have none."""
    assert cli.main([command, name]) == cli.WRONG_INPUT
    assert len(capsys.readouterr().err.splitlines()) == 1
