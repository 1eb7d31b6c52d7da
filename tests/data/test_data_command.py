"""`raybench data`: listing and removing stored datasets."""

import os
import time

import numpy as np
import pytest

from raybench.commands import cli
from raybench.data.store import Source, stored


@pytest.fixture
def keys(tmp_path, own_store):
    """Two datasets, the first of them unused for 40 days."""

    def build(writer):
        writer.save("labels", np.zeros(1234, np.int64))
        return {}

    folders = []
    for size in (8, 16):
        options = {"image_size": size, "channels": None}
        source = Source(name="toy", path=tmp_path, files=[], options=options)
        folders.append(stored(source, build).folder)
    old = time.time() - 40 * 86400
    os.utime(folders[0] / "about.json", (old, old))
    return [folder.name for folder in folders]


def run(capsys, *arguments):
    code = cli.main(["data", *arguments])
    return code, capsys.readouterr()


def test_stored_datasets_are_listed_by_last_use(capsys, keys, own_store, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, output = run(capsys)
    lines = [line for line in output.out.splitlines() if line.startswith("toy-")]
    assert code == cli.DONE
    assert [line.split()[0] for line in lines] == [keys[1], keys[0]]
    for part in ("1,234", "10.0 kB", "40.0 days ago", str(tmp_path), "image_size: 8"):
        assert part in lines[1]
    assert "20.0 kB" in output.out
    assert str(own_store) in output.out
    assert keys[1] not in run(capsys, "--unused-for", "30d")[1].out


def test_entries_are_removed_by_key_by_age_or_all(capsys, keys, tmp_path):
    assert run(capsys, "--remove", "all", "--unused-for", "30d")[0] == cli.DONE
    assert keys[0] in run(capsys, "--remove", keys[0])[1].err
    (tmp_path / "store" / f"{keys[1]}.part").mkdir()
    code, output = run(capsys, "--remove", keys[1], "all")
    assert code == cli.DONE
    assert output.out.count(keys[1]) == 1
    assert list((tmp_path / "store").glob("toy*[!k]")) == []
    assert "toy-" not in run(capsys)[1].out


@pytest.mark.parametrize(
    ("arguments", "value"), [(["--remove", "toy"], "toy"), (["--unused-for", "30 days"], "30 days")]
)
def test_invalid_arguments_are_refused(capsys, keys, arguments, value):
    try:
        code = cli.main(["data", *arguments])
    except SystemExit as left:
        code = left.code
    assert code == cli.WRONG_INPUT
    assert value in capsys.readouterr().err
