"""Bad input of every kind: one sentence, exit code 2, no traceback, and Ray does not start."""

import sys
import textwrap
from pathlib import Path

import pytest

from raybench.commands import cli, init
from raybench.commands.cli import train, tune
from raybench.models import find

from .bad_inputs import ENDLESS, FILES, FLAGS, USERS, Bad

OWN_NET = """\
import sys

import numpy as np

from raybench import Workload
from raybench.data.dataset import Dataset, Split


def split(size, features=3, label=None, value=1.0):
    inputs = np.full((size, features), value, np.float32)
    labels = np.arange(size) % 2 if label is None else np.full(size, label)
    return Split(inputs, labels.astype(np.int64))


PRICES = np.linspace(0, 1, 8, dtype=np.float32)


class OnDemand:
    shape, dtype = (8, 3), np.float32

    def __init__(self, read):
        self.read = read

    def __getitem__(self, rows):
        return self.read(rows)


class Net(Workload):
    name, input_shape, num_classes = "net", (3,), 2

"""
COMMANDS = {"tune": tune, "train": train}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Ray must not start, and nothing may be written beside the repository's files."""

    def refuse(*arguments, **options):
        raise AssertionError("Ray was about to start")

    import ray

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    find._own_data.clear()
    sys.modules.pop("own_net", None)


def sentence(bad: Bad, capsys, monkeypatch) -> str:
    """Run the command, which must print one line and exit with 2; return the line."""
    text = bad.text
    if bad.own:
        at_class = bad.name.startswith("a module")
        body = bad.own if at_class else textwrap.indent(bad.own, "    ")
        Path("own_net.py").write_text(OWN_NET + ("    pass\n\n" if at_class else "") + body)
        assert isinstance(text, str)
        text = f"workload: own_net:Net\ndataset: {{name: workload}}\n{text}"
    Path("space.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    arguments = ["--dry-run", *bad.arguments]
    if bad.command == "tune":
        arguments.insert(0, "space.yaml")
    assert COMMANDS[bad.command].main(arguments) == cli.WRONG_INPUT == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    (line,) = captured.err.splitlines()
    assert line.startswith("raybench: ")
    assert line.endswith((".", "?"))
    assert line.isprintable()
    assert len(line) < 700
    return line


def test_there_are_at_least_60():
    every = [*FILES, *FLAGS, *USERS, *ENDLESS]
    assert len(every) >= 60
    assert len({(bad.name, bad.words) for bad in every}) == len(every)


@pytest.mark.parametrize("bad", [*FILES, *FLAGS, *USERS], ids=lambda bad: bad.name)
def test_bad_input_is_one_sentence(bad, capsys, monkeypatch):
    assert bad.words in sentence(bad, capsys, monkeypatch)


@pytest.mark.parametrize("name", ["/dev/zero", "x" * 5000], ids=["device", "long"])
def test_what_is_no_file_is_one_sentence(name, capsys):
    """Of a device no more is read than of a file."""
    for command in (tune, init):
        assert command.main([name, *(["--dry-run"] if command is tune else [])]) == cli.WRONG_INPUT
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("bad", ENDLESS, ids=lambda bad: bad.name)
def test_what_cannot_come_to_an_end_is_one_sentence(bad, capsys, monkeypatch):
    assert bad.words in sentence(bad, capsys, monkeypatch)
