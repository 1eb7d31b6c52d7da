"""Temporary folders of sessions, and those that killed ones have left."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from raybench.cluster import worker as module
from raybench.cluster.worker import Scratch, on_this_host, sweep

HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from raybench.cluster.worker import Scratch
scratch = Scratch()
print(scratch.folder, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_held", {})


def test_what_a_killed_session_left_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    (left / "data").mkdir()
    own = Scratch()
    assert left.is_dir(), "its session lives"
    holder.kill()
    holder.wait()
    deadline = time.monotonic() + 120
    while left.exists():
        assert time.monotonic() < deadline
        sweep()
    assert own.folder.is_dir()
    own.remove()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "raybench-mine").mkdir()  # no file that says whether somebody uses it
    (tmp_path / "other").mkdir()
    Scratch().remove()
    assert {path.name for path in tmp_path.iterdir()} == {"raybench-mine", "other"}


def test_a_worker_of_another_host_has_a_folder_of_its_own(tmp_path: Path) -> None:
    own = Scratch()
    assert on_this_host(str(own.folder)) == own.folder
    elsewhere = on_this_host("/not/on/this/host/raybench-abc")
    assert elsewhere == tmp_path / "raybench-abc"
    sweep()
    assert elsewhere.is_dir(), "it is in use"
    assert on_this_host("/not/on/this/host/raybench-abc") == elsewhere
    module._held.pop(elsewhere).close()
    sweep()
    assert not elsewhere.exists()
