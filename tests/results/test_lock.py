"""The lock of a results folder: one command at a time, taken over from killed commands."""

import errno
import fcntl
import platform
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from raybench.results import place
from raybench.results.place import LOCK_FILE, OWNER_FILE, PATIENCE_S, StudyLock
from raybench.spec.errors import ErrorCode, UserError
from tests.factories import start_python
from tests.refusals import refused

HOLD = """
import time
from pathlib import Path
from raybench.results.place import StudyLock
with StudyLock(Path({folder!r})):
    print("held", flush=True)
    time.sleep(60)
"""
NO_FLOCK = """
import errno, fcntl
def flock(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")
fcntl.flock = flock
"""


def no_flock(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.fixture(params=["flock", "file"])
def kind(request, monkeypatch):
    """File system with or without flock."""
    if request.param == "file":
        monkeypatch.setattr(fcntl, "flock", no_flock)
    return str(request.param)


@pytest.fixture
def holder(tmp_path, kind):
    """Another process that holds the lock."""
    hold = HOLD.format(folder=str(tmp_path))
    with start_python(NO_FLOCK if kind == "file" else "", hold) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_locked_folder_is_refused_with_its_owner(tmp_path, holder, kind):
    owner = tmp_path, f"process {holder.pid}", platform.node(), "-c"
    with refused(ErrorCode.STUDY_IN_USE, *owner) as refusal, StudyLock(tmp_path):
        pass
    assert "\n" not in str(refusal.value)


def test_the_lock_of_a_killed_owner_is_taken_over(tmp_path, holder, kind):
    holder.kill()
    holder.wait()
    with StudyLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_is_released_after_an_error(tmp_path, kind):
    folder = tmp_path / "new" / "study"
    with pytest.raises(KeyboardInterrupt), StudyLock(folder):
        raise KeyboardInterrupt
    with StudyLock(folder):
        pass
    assert list(folder.iterdir()) == []


def test_a_folder_deleted_while_locked_is_ignored(tmp_path, kind):
    folder = tmp_path / "study"
    with StudyLock(folder):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert not folder.exists()


def test_one_of_many_concurrent_lockers_succeeds(tmp_path, kind):
    """The others give up after `PATIENCE_S`, while the first still holds it."""

    def attempt(number):
        try:
            with StudyLock(tmp_path):
                time.sleep(5 * PATIENCE_S)
                return True
        except UserError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


def test_a_lock_of_another_host_names_the_host_and_the_file_to_delete(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_flock)
    path, owner = tmp_path / LOCK_FILE, tmp_path / OWNER_FILE
    with StudyLock(tmp_path):
        lock = {
            path: re.sub("host=.*", "host=elsewhere", path.read_text()),
            owner: owner.read_text().replace(platform.node(), "elsewhere"),
        }
    for file, content in lock.items():
        file.write_text(content)
    with refused(ErrorCode.STUDY_IN_USE, "elsewhere", path):
        StudyLock(tmp_path).__enter__()
    path.unlink()
    with StudyLock(tmp_path):
        pass


def test_a_folder_recreated_by_another_process_keeps_its_lock(tmp_path, monkeypatch):
    with StudyLock(tmp_path / "study"):
        shutil.rmtree(tmp_path / "study")
        monkeypatch.setattr(place, "command", lambda: "another")
        other = StudyLock(tmp_path / "study").__enter__()
    with refused(ErrorCode.STUDY_IN_USE, "another"):
        StudyLock(tmp_path / "study").__enter__()
    with refused(ErrorCode.NOT_WRITABLE, "--out"):
        StudyLock(tmp_path / "study" / OWNER_FILE / "x").__enter__()
    other.__exit__()
    assert list((tmp_path / "study").iterdir()) == []
