"""Copies of a study folder in a bucket, which are consistent even if copying is interrupted."""

import contextlib
import shutil

import pytest

from raybench.results.storage import JOURNAL, Mirror, fetch_all, is_copied
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.spec.errors import StudyError
from raybench.stats.checkpoint import STATE_FILE
from tests.below_url import CrashError, FakeBucket

WEIGHTS = "weights.pt"


@pytest.fixture
def folder(tmp_path):
    return study_in(tmp_path / "study")


@pytest.fixture
def bucket():
    return FakeBucket()


@pytest.fixture
def mirror(folder, bucket):
    """A mirror that has copied three records to the bucket."""
    append(folder, RECORDS_FILE, range(3))
    mirror = Mirror(folder, bucket)
    mirror.run()
    return mirror


def study_in(folder):
    folder.mkdir()
    (folder / STUDY_FILE).write_text("study: {}\n")
    return folder


def append(folder, name, lines):
    with (folder / name).open("a") as file:
        file.writelines(f'{{"line": {line}}}\n' for line in lines)


def checkpoint(folder, name, content):
    """Write a checkpoint as a run does: under a hidden name, then renamed."""
    target = folder / "checkpoints" / name
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir(parents=True)
    (partial / WEIGHTS).write_text(f"weights {content}")
    (partial / STATE_FILE).write_text(f"state {content}")
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)


def checkpoints_in(bucket):
    """Return the checkpoints in the bucket by name; each must have its own weights."""
    checkpoints = {}
    for key, content in bucket.objects.items():
        name, _, file = key.rpartition("/")
        if file == STATE_FILE:
            state = content.decode().split()[1]
            assert bucket.objects[f"{name}/{WEIGHTS}"].decode() == f"weights {state}"
            checkpoints[name.removeprefix("checkpoints/")] = state
    return checkpoints


def test_unchanged_files_are_not_copied_again(folder, bucket, mirror):
    written = []
    bucket.before = lambda: written.append(1)
    mirror.run()
    assert written == []
    append(folder, RECORDS_FILE, [3])
    mirror.run()
    assert len(written) == 1


@pytest.mark.parametrize("is_another_driver", [False, True])
def test_copied_records_are_kept_unless_forgotten(folder, bucket, mirror, is_another_driver):
    if is_another_driver:
        bucket.objects[RECORDS_FILE] += b'{"line": "of another driver"}\n'
        (folder / "best.yaml").write_text("a: 1")
    else:
        (folder / RECORDS_FILE).unlink()
    append(folder, RECORDS_FILE, range(3, 9))
    before = dict(bucket.objects)
    with pytest.raises(StudyError):
        mirror.run()
    assert bucket.objects == before
    mirror.forget()
    mirror.run()
    assert bucket.objects[RECORDS_FILE] == (folder / RECORDS_FILE).read_bytes()


def test_a_copy_with_a_lost_response_belongs_to_this_driver(folder, bucket, mirror):
    append(folder, RECORDS_FILE, range(3, 5))
    bucket.objects[RECORDS_FILE] = (folder / RECORDS_FILE).read_bytes()
    append(folder, RECORDS_FILE, range(5, 6))
    mirror.run()
    assert bucket.objects[RECORDS_FILE] == (folder / RECORDS_FILE).read_bytes()


def test_a_study_not_yet_begun_or_deleted_changes_nothing(tmp_path, bucket):
    (tmp_path / "best.yaml").write_text("a: 1")
    mirror = Mirror(tmp_path, bucket)
    mirror.run()
    assert bucket.objects == {}
    folder = study_in(tmp_path / "study")
    checkpoint(folder, "0000/000001", "a")
    mirror = Mirror(folder, bucket)
    mirror.run()
    shutil.rmtree(folder)
    mirror.run()
    assert checkpoints_in(bucket) == {"0000/000001": "a"}


def test_an_incomplete_last_line_is_not_copied(folder, bucket):
    (folder / RECORDS_FILE).write_bytes(b'{"a": 1}\n{"b"')
    Mirror(folder, bucket).run()
    assert bucket.objects[RECORDS_FILE] == b'{"a": 1}\n'


def test_the_journal_is_never_ahead_of_the_records(folder, bucket):
    number = 0

    def go_on():
        nonlocal number
        append(folder, RECORDS_FILE, [number])  # before the journal, as in a search
        append(folder, JOURNAL, [number])
        number += 1

    bucket.before = go_on
    go_on()
    mirror = Mirror(folder, bucket)
    for _ in range(20):
        mirror.run()
        assert bucket.objects[RECORDS_FILE].startswith(bucket.objects[JOURNAL])
    assert bucket.objects[JOURNAL].count(b"\n") > 15


def test_locks_and_hidden_files_are_not_copied(folder, bucket):
    (folder / "errors").mkdir()
    for name in ("best.yaml", "errors/0001.txt", "study.lock", ".x.partial", "optuna.log.lock"):
        (folder / name).write_text(name)
    mirror = Mirror(folder, bucket)
    mirror.run()
    assert sorted(bucket.objects) == ["best.yaml", "errors/0001.txt", STUDY_FILE]
    (folder / "best.yaml").unlink()
    mirror.run()
    assert sorted(bucket.objects) == ["errors/0001.txt", STUDY_FILE]


def test_checkpoints_are_synchronized_after_a_crash(tmp_path):
    """Checkpoints are added, replaced and deleted; the crash may come after any operation."""
    for number in range(6):
        folder, bucket = study_in(tmp_path / str(number)), FakeBucket()
        checkpoint(folder, "0000/000001", "old")
        checkpoint(folder, "0000/000002", "gone")
        Mirror(folder, bucket).run()
        bucket.left = number
        checkpoint(folder, "0000/000001", "new")
        checkpoint(folder, "0000/000003", "next")
        shutil.rmtree(folder / "checkpoints/0000/000002")
        mirror = Mirror(folder, bucket, bucket.list_keys())
        with contextlib.suppress(CrashError):
            mirror.run()
        bucket.left = 99
        mirror.run()
        assert checkpoints_in(bucket) == {"0000/000001": "new", "0000/000003": "next"}
        assert len(bucket.objects) == 5


def test_a_checkpoint_deleted_while_it_is_copied_is_dropped(folder, bucket, mirror):
    path = folder / "checkpoints/0000/000001"
    checkpoint(folder, "0000/000001", "a")
    bucket.before = lambda: shutil.rmtree(path, ignore_errors=True)
    mirror.run()
    mirror.run()
    assert bucket.list_keys() == [STUDY_FILE, RECORDS_FILE]


def test_another_machine_fetches_the_whole_study(folder, bucket, tmp_path):
    other = tmp_path / "other"
    append(folder, RECORDS_FILE, range(3))
    checkpoint(folder, "0000/000001", "a")
    Mirror(folder, bucket).run()
    study_in(other)
    checkpoint(other, "0007/000001", "of an earlier time")
    fetch_all(bucket, bucket.list_keys(), other)
    files = {path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file()}
    names = ("checkpoints/0000/000001/weights.pt", "checkpoints/0000/000001/state.json")
    assert files == {STUDY_FILE, RECORDS_FILE, *names}


def test_unsafe_keys_are_not_fetched(bucket, tmp_path):
    for key in ("../x", "a/../x", "/etc", "", ".hidden", "study.lock", "a//b"):
        assert not is_copied(key)
    bucket.objects = {"../x": b"", "a/y": b"1"}
    fetch_all(bucket, bucket.list_keys(), tmp_path / "here")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["y"]
