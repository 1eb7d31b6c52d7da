"""`raybench data`: what is kept on this machine, and what may be removed."""

import os
import time

import numpy as np
import pytest

from raybench.commands import cli
from raybench.data.store import Source, stored
from tests.data.making import close_datasets


@pytest.fixture
def keys(tmp_path, own_store):
    """Two datasets that nobody uses, the first of them for 40 days."""

    def build(writer):
        writer.save("labels", np.zeros(1234, np.int64))
        return {}

    found = []
    for size in (8, 16):
        options = {"image_size": size, "channels": None}
        source = Source(name="toy", path=tmp_path, files=[], options=options)
        found.append(stored(source, build).folder)
    close_datasets()
    old = time.time() - 40 * 86400
    os.utime(found[0] / "about.json", (old, old))
    return [folder.name for folder in found]


def run(capsys, *arguments):
    code = cli.main(["data", *arguments])
    return code, capsys.readouterr()


def test_what_is_kept_is_listed_last_used_first(capsys, keys, own_store, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, said = run(capsys)
    lines = [line for line in said.out.splitlines() if line.startswith("toy-")]
    assert code == cli.DONE
    assert [line.split()[0] for line in lines] == [keys[1], keys[0]]
    for part in ("1,234", "10.0 kB", "40.0 days ago", str(tmp_path), "image_size: 8"):
        assert part in lines[1]
    assert f"20.0 kB in {own_store}, whose disk has" in said.out
    assert keys[1] not in run(capsys, "--unused-for", "30d")[1].out


def test_removing_by_key_by_age_and_all(capsys, keys, tmp_path):
    assert run(capsys, "--remove", "all", "--unused-for", "30d")[0] == cli.DONE
    assert f"{keys[0]}: no such" in run(capsys, "--remove", keys[0])[1].err
    (tmp_path / "store" / f"{keys[1]}.part-x").mkdir()
    code, said = run(capsys, "--remove", keys[1], "all")
    assert code == cli.DONE
    assert said.out.count("Removed") == 1
    assert list((tmp_path / "store").glob("toy*[!k]")) == []
    assert run(capsys)[1].out.startswith("No datasets are kept in")


def test_what_is_used_is_kept(capsys, keys, tmp_path):
    options = {"image_size": 8, "channels": None}
    used = stored(Source(name="toy", path=tmp_path, files=[], options=options), dict)
    code, said = run(capsys, "--remove", "all")
    assert code == cli.FAILED
    assert f"Kept {keys[0]}: a running command uses it." in said.out
    assert [path.name for path in used.folder.parent.glob("*/")] == [keys[0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--remove", "toy"], "--remove toy: no such dataset is kept here; "),
        (["--unused-for", "30 days"], "30 days is no age such as 12h, 30d or 8w"),
    ],
)
def test_mistakes(capsys, keys, arguments, message):
    try:
        code = cli.main(["data", *arguments])
    except SystemExit as left:
        code = left.code
    assert code == cli.WRONG_INPUT
    assert message in capsys.readouterr().err
