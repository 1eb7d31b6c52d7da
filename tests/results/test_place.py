"""Places of results: refused folders and other studies, and the lock of a folder, which only one
command at a time holds, and which is taken over from a killed command."""

import errno
import fcntl
import inspect
import platform
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from raybench.results import place
from raybench.results.place import (
    LOCK_FILE,
    OWNER_FILE,
    PATIENCE_S,
    StudyLock,
    check_folder,
    refuse_other_kind,
    refuse_other_study,
    unused_folder,
)
from raybench.results.store import RECORDS_FILE, STUDY_FILE, StudyFiles, StudyKind
from raybench.spec.documents import to_yaml
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.study import build_study
from tests.factories import start_python
from tests.refusals import refused


def study(**changes):
    content = {
        "objective": {"target": 0.9},
        "space": {"optimizer": ["adam", "lamb"], "learning_rate": {"low": 1e-5, "high": 0.1}},
    }
    return build_study(content | changes, "s.yaml")[0]


@pytest.fixture
def study_folder(tmp_path):
    """A results folder with a study file."""
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / STUDY_FILE).write_text(to_yaml({"study": study().document(), "command": "x"}))
    return folder


@pytest.mark.parametrize(
    "changes", [{}, {"search": {"time_budget_s": 60.0, "concurrency": 2}}, {"confirm": {"race": 0}}]
)
def test_the_same_study_resumes_with_other_budgets(study_folder, changes):
    refuse_other_study("here", study_folder / STUDY_FILE, study(**changes))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"objective": {"target": 0.8}}, "objective.target was 0.9, is 0.8"),
        ({"workload": "cnn7"}, "workload was mnist_small"),
        ({"dataset": {"limit": 10}}, "dataset.limit"),
        ({"fixed": {"epochs": 3.0}}, "fixed.epochs"),
        (
            {"space": {"optimizer": ["adam", "lars"]}},
            "space.optimizer was [adam, lamb], is [adam, lars]",
        ),
        (
            {"space": {"optimizer": ["adam", "lamb"]}},
            "space.learning_rate was {low: 1.0e-05, high: 0.1}",
        ),
        ({"objective": {"target": "auto"}}, "(objective.target was 0.9, is auto)"),
        ({"space": {"optimizer": ["lamb", "adam"]}}, "space.optimizer was"),
    ],
)
def test_another_study_is_refused_with_the_difference(study_folder, changes, difference):
    names = "s3://a/b", difference, "--fresh", "--out"
    with refused(ErrorCode.STUDY_CHANGED, *names) as refusal:
        refuse_other_study("s3://a/b", study_folder / STUDY_FILE, study(**changes))
    assert "\n" not in str(refusal.value)
    # Scores of another task are not suggested.
    is_other_task = not {"workload", "dataset", "objective"}.isdisjoint(changes)
    assert ("--seed-from s3://a/b" in str(refusal.value)) != is_other_task


def test_fresh_uses_the_next_free_folder(study_folder):
    second = study_folder.with_name("results-2")
    assert unused_folder(study_folder) == second
    second.mkdir()
    assert unused_folder(study_folder) == study_folder.with_name("results-3")
    assert unused_folder(study_folder.with_name("free")) == study_folder.with_name("free")
    assert not study_folder.with_name("free").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with refused(ErrorCode.NOT_WRITABLE, f"--out {tmp_path / 'file'}"):
        check_folder(tmp_path / "file")
    with refused(ErrorCode.NOT_WRITABLE, f"--out {tmp_path / 'file' / 'below'}"):
        check_folder(tmp_path / "file" / "below")
    check_folder(tmp_path / "new" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_only_a_command_of_the_same_kind_continues_in_a_folder(tmp_path):
    refuse_other_kind("there", tmp_path, StudyKind.TRAINING)  # an empty folder
    (tmp_path / RECORDS_FILE).touch()
    refuse_other_kind("there", tmp_path, StudyKind.TRAINING)  # a command that was ended early
    StudyFiles(tmp_path).write_yaml(
        STUDY_FILE, {"study": {"objective": {"target": 0.95}, "run": True}}
    )
    refuse_other_kind("there", tmp_path, StudyKind.TRAINING)
    with refused(ErrorCode.STUDY_CHANGED, "there", "--out"):
        refuse_other_kind("there", tmp_path, StudyKind.SCALING)
    (tmp_path / STUDY_FILE).unlink()
    (tmp_path / RECORDS_FILE).write_text("{}\n")
    with refused(ErrorCode.STUDY_CHANGED, "there", "--out"):
        refuse_other_kind("there", tmp_path, StudyKind.TRAINING)


def no_flock(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")


HOLD = """
import errno, fcntl, time
from pathlib import Path
from raybench.results.place import StudyLock
{setup}
with StudyLock(Path({folder!r})):
    print("held", flush=True)
    time.sleep(60)
"""
NO_FLOCK = f"{inspect.getsource(no_flock)}fcntl.flock = no_flock"


@pytest.fixture(params=["flock", "file"])
def kind(request, monkeypatch):
    """File system with or without flock."""
    if request.param == "file":
        monkeypatch.setattr(fcntl, "flock", no_flock)
    return str(request.param)


@pytest.fixture
def holder(tmp_path, kind):
    """Another process that holds the lock."""
    setup = NO_FLOCK if kind == "file" else ""
    with start_python(HOLD.format(folder=str(tmp_path), setup=setup)) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_locked_folder_is_refused_until_its_owner_is_killed(tmp_path, holder):
    owner = tmp_path, f"process {holder.pid}", platform.node(), "-c"
    with refused(ErrorCode.STUDY_IN_USE, *owner) as refusal, StudyLock(tmp_path):
        pass
    assert "\n" not in str(refusal.value)
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
