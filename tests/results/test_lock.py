"""One command at a time in a results folder; what a killed one left is no obstacle."""

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raybench.core.errors import UserError
from raybench.results.lock import LOCK_FILE, StudyLock

HOLD = """
import sys, time
from pathlib import Path
from raybench.results.lock import StudyLock
with StudyLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
NO_FLOCK = """
import errno, fcntl
def flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""


@pytest.fixture(params=["flock", "file"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file system knows locks, or does not."""
    if request.param == "file":

        def flock(*_: Any) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", flock)
    return str(request.param)


@pytest.fixture
def holder(tmp_path: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    code = HOLD if kind == "flock" else NO_FLOCK + HOLD
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_held_folder_is_refused_with_its_owner(
    tmp_path: Path, holder: subprocess.Popen[str], kind: str
) -> None:
    with pytest.raises(UserError) as refusal, StudyLock(tmp_path):
        pass
    sentence = str(refusal.value)
    assert f"is in use by process {holder.pid} on {platform.node()} since 20" in sentence
    assert "-c" in sentence, "the command"
    assert "\n" not in sentence
    assert ("if it is gone, delete" in sentence) == (kind == "file")


def test_a_killed_owners_lock_is_taken_over(
    tmp_path: Path, holder: subprocess.Popen[str], kind: str
) -> None:
    holder.kill()
    holder.wait()
    with StudyLock(tmp_path):
        pass
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {LOCK_FILE}, "an empty one, where a file is the lock"


def test_it_is_given_back_and_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with StudyLock(tmp_path / "new" / "study"):
            pass
    assert list((tmp_path / "new" / "study").iterdir()) == []


def test_it_is_given_back_after_an_error(tmp_path: Path, kind: str) -> None:
    with pytest.raises(KeyboardInterrupt), StudyLock(tmp_path):
        raise KeyboardInterrupt
    with StudyLock(tmp_path):
        pass


def test_the_owner_stands_in_the_file(tmp_path: Path) -> None:
    with StudyLock(tmp_path):
        owner = json.loads((tmp_path / LOCK_FILE).read_text())
    assert (owner["pid"], owner["host"]) == (os.getpid(), platform.node())
    assert owner["command"]
    assert owner["since"].startswith("20")


def test_a_folder_deleted_meanwhile_is_no_trouble(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "study"
    with StudyLock(folder):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert not folder.exists()


def test_one_of_many_at_once_gets_it(tmp_path: Path, kind: str) -> None:
    def attempt(_: int) -> bool:
        try:
            with StudyLock(tmp_path):
                time.sleep(1.0)
                return True
        except UserError:
            return False

    if kind == "file":  # threads share a process id, so its private file too
        with StudyLock(tmp_path), pytest.raises(UserError, match="is in use"), StudyLock(tmp_path):
            pass
        return
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


@pytest.mark.parametrize(
    ("owner", "age_s", "is_taken"),
    [
        ({"pid": 2**22 + 5, "host": platform.node()}, 0, True),
        ({"pid": os.getpid(), "host": platform.node(), "born": "1"}, 0, True),
        ({"pid": os.getpid(), "host": platform.node()}, 0, False),
        ({"pid": 2**22 + 5, "host": "another"}, 9999, False),
        ({"pid": 1, "host": platform.node()}, 0, False),
        ("", 0, False),
        ("", 60, True),
        ('{"pid": 12', 60, True),
    ],
    ids=["ended", "number used again", "alive", "other host", "init", "just made", "torn", "half"],
)
def test_a_file_without_a_process_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, age_s: float, is_taken: bool
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    path = tmp_path / f"{LOCK_FILE}.owner"
    path.write_text(owner if isinstance(owner, str) else json.dumps(owner))
    os.utime(path, (time.time() - age_s,) * 2)
    if is_taken:
        with StudyLock(tmp_path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
        assert not path.exists()
    else:
        with pytest.raises(UserError, match="is in use by process"), StudyLock(tmp_path):
            pass
        assert path.exists()


def test_a_folder_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), StudyLock(tmp_path / "file" / "x"):
        pass
