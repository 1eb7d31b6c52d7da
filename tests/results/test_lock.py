"""One command at a time in a results folder; what a killed one left is no obstacle."""

import errno
import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raybench.results import lock
from raybench.results.lock import OWNER_FILE, SOFT_LOCK_FILE, StudyLock
from raybench.spec.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from raybench.results.lock import StudyLock
with StudyLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
SLEEPER = """
import sys
from pathlib import Path
from raybench.spec.errors import StudyError
from raybench.results import lock
lock.BEAT_S, lock.STALE_S = 0.4, 2.0
with lock.StudyLock(Path(sys.argv[1])) as held:
    held.check()
    print("held", flush=True)
    sys.stdin.readline()
    try:
        held.check()
        print("still held", flush=True)
    except StudyError as error:
        print(error, flush=True)
"""
NO_FLOCK = """
import errno, fcntl
def flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""


def no_flock(*_: Any) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.fixture(params=["flock", "file"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file system knows locks, or does not."""
    if request.param == "file":
        monkeypatch.setattr(fcntl, "flock", no_flock)
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
    assert list(tmp_path.iterdir()) == []


def test_it_is_given_back_after_an_error_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "new" / "study"
    with pytest.raises(KeyboardInterrupt), StudyLock(folder):
        raise KeyboardInterrupt
    with StudyLock(folder):
        pass
    assert list(folder.iterdir()) == []


def test_a_folder_deleted_meanwhile_is_no_trouble(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "study"
    with StudyLock(folder):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert not folder.exists()


def test_one_of_many_at_once_gets_it(tmp_path: Path, kind: str) -> None:
    holders: list[int] = []
    most = 0

    def attempt(number: int) -> bool:
        nonlocal most
        try:
            with StudyLock(tmp_path):
                holders.append(number)
                most = max(most, len(holders))
                time.sleep(1.0)
                holders.remove(number)
                return True
        except UserError:
            return False

    with ThreadPoolExecutor(8) as pool:
        num_held = sum(pool.map(attempt, range(8)))
    assert most == 1
    # Where a file is the lock, whoever waits for a sign of its owner gets it when it is free.
    assert num_held == 1 or kind == "file"


class TestAnotherHost:
    """A file that was left by a host that is gone, or that another host keeps touching."""

    @pytest.fixture(autouse=True)
    def _soft(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fcntl, "flock", no_flock)
        monkeypatch.setattr(lock, "BEAT_S", 0.4)
        monkeypatch.setattr(lock, "STALE_S", 2.0)

    def leave(self, folder: Path) -> Path:
        """Leave the lock of a driver of another host, whose clock is a day ahead."""
        path = folder / SOFT_LOCK_FILE
        with StudyLock(folder):
            marker, owner = path.read_text(), (folder / OWNER_FILE).read_text()
        path.write_text(re.sub("host=.*", "host=elsewhere", marker))
        (folder / OWNER_FILE).write_text(owner.replace(platform.node(), "elsewhere"))
        tomorrow = time.time() + 86_400
        os.utime(path, (tomorrow, tomorrow))
        return path

    def test_what_a_host_left_that_is_gone_is_taken_over(self, tmp_path: Path) -> None:
        self.leave(tmp_path)
        said: list[str] = []
        began = time.monotonic()
        with StudyLock(tmp_path, warn=said.append) as taken:
            assert time.monotonic() - began > 1.9
            taken.check()
        (sentence,) = said
        assert "on elsewhere since 20" in sentence
        assert sentence.endswith("waiting for a sign of it, 2 s at most.")

    def test_one_that_lives_is_left_alone(self, tmp_path: Path) -> None:
        path = self.leave(tmp_path)
        ended = threading.Event()

        def live() -> None:
            while not ended.wait(0.4):
                os.utime(path)

        other = threading.Thread(target=live)
        other.start()
        try:
            with pytest.raises(UserError, match=r"is in use by process .* on elsewhere since 20"):
                StudyLock(tmp_path).__enter__()
        finally:
            ended.set()
            other.join()

    def test_an_owner_that_slept_too_long_stops(self, tmp_path: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", NO_FLOCK + SLEEPER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            assert process.stdout.readline() == "held\n"
            process.send_signal(signal.SIGSTOP)
            path = tmp_path / SOFT_LOCK_FILE
            # Else it would be told from a dead one by its number, which is one of this host.
            path.write_text(re.sub("host=.*", "host=elsewhere", path.read_text()))
            with StudyLock(tmp_path) as taken:
                process.send_signal(signal.SIGCONT)
                process.stdin.write("go on\n")
                process.stdin.flush()
                line = process.stdout.readline()
                assert line.startswith(f"{tmp_path}: was taken over by process {os.getpid()} on ")
                assert process.wait(timeout=600) == 0
                taken.check()
                assert path.exists(), "it gives back what is its own alone"


def test_a_folder_made_anew_by_another_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StudyLock(tmp_path / "study"):
        shutil.rmtree(tmp_path / "study")
        monkeypatch.setattr(lock, "command", lambda: "another")
        other = StudyLock(tmp_path / "study").__enter__()
    with pytest.raises(UserError, match="is in use"):
        StudyLock(tmp_path / "study").__enter__()
    with pytest.raises(UserError, match="cannot be written"):
        StudyLock(tmp_path / "study" / OWNER_FILE / "x").__enter__()
    other.__exit__()
    assert list((tmp_path / "study").iterdir()) == []
