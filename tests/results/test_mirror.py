"""Copies of a study's folder: what a reader finds below the URL, however the copying ends."""

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
    return begun(tmp_path / "study")


def begun(folder):
    folder.mkdir()
    (folder / STUDY_FILE).write_text("study: {}\n")
    return folder


def append(folder, name, lines):
    with (folder / name).open("a") as file:
        file.writelines(f'{{"line": {line}}}\n' for line in lines)


def checkpoint(folder, name, content):
    """Write one as a run does: under a hidden name, renamed."""
    target = folder / "checkpoints" / name
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir(parents=True)
    (partial / WEIGHTS).write_text(f"weights {content}")
    (partial / STATE_FILE).write_text(f"state {content}")
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)


def whole(bucket):
    """The checkpoints that a reader finds, by name; each with its own weights."""
    found = {}
    for key, content in bucket.objects.items():
        name, _, file = key.rpartition("/")
        if file == STATE_FILE:
            state = content.decode().split()[1]
            assert bucket.objects[f"{name}/{WEIGHTS}"].decode() == f"weights {state}"
            found[name.removeprefix("checkpoints/")] = state
    return found


def test_what_did_not_change_is_not_copied_again(folder):
    bucket, written = FakeBucket(), []
    append(folder, RECORDS_FILE, range(3))
    bucket.before = lambda: written.append(1)
    one = Mirror(folder, bucket)
    one.run()
    assert len(written) == 2
    one.run()
    assert len(written) == 2
    append(folder, RECORDS_FILE, [3])
    one.run()
    assert len(written) == 3


def test_records_that_nobody_forgot_stay(folder):
    bucket = FakeBucket()
    append(folder, RECORDS_FILE, range(9))
    one = Mirror(folder, bucket)
    one.run()
    before = dict(bucket.objects)
    (folder / RECORDS_FILE).unlink()
    append(folder, RECORDS_FILE, range(2))
    with pytest.raises(StudyError):
        one.run()
    assert bucket.objects == before
    one.forget()
    one.run()
    assert bucket.objects[RECORDS_FILE].count(b"\n") == 2


def test_records_of_another_driver_stay(folder):
    bucket = FakeBucket()
    append(folder, RECORDS_FILE, range(3))
    one = Mirror(folder, bucket)
    one.run()
    bucket.objects[RECORDS_FILE] += b'{"line": "of another driver"}\n'
    before = dict(bucket.objects)
    append(folder, RECORDS_FILE, range(3, 9))
    (folder / "best.yaml").write_text("a: 1")
    with pytest.raises(StudyError):
        one.run()
    assert bucket.objects == before


def test_a_copy_whose_answer_was_lost_is_of_this_driver(folder):
    bucket = FakeBucket()
    append(folder, RECORDS_FILE, range(3))
    one = Mirror(folder, bucket)
    one.run()
    append(folder, RECORDS_FILE, range(3, 5))
    bucket.objects[RECORDS_FILE] = (folder / RECORDS_FILE).read_bytes()
    append(folder, RECORDS_FILE, range(5, 6))
    one.run()
    assert bucket.objects[RECORDS_FILE].count(b"\n") == 6


def test_a_study_that_is_not_begun_or_is_deleted_by_mistake_changes_nothing(tmp_path):
    bucket = FakeBucket()
    (tmp_path / "best.yaml").write_text("a: 1")
    one = Mirror(tmp_path, bucket)
    one.run()
    assert bucket.objects == {}
    folder = begun(tmp_path / "study")
    checkpoint(folder, "0000/000001", "a")
    one = Mirror(folder, bucket)
    one.run()
    shutil.rmtree(folder)
    one.run()
    assert whole(bucket) == {"0000/000001": "a"}


def test_a_torn_last_line_waits_until_it_is_whole(folder):
    bucket = FakeBucket()
    (folder / RECORDS_FILE).write_bytes(b'{"a": 1}\n{"b"')
    Mirror(folder, bucket).run()
    assert bucket.objects[RECORDS_FILE] == b'{"a": 1}\n'


def test_the_journal_never_knows_of_a_run_that_the_records_lack(folder):
    bucket, number = FakeBucket(), 0

    def go_on():
        nonlocal number
        append(folder, RECORDS_FILE, [number])  # first, as the search does
        append(folder, JOURNAL, [number])
        number += 1

    bucket.before = go_on
    go_on()
    one = Mirror(folder, bucket)
    for _ in range(20):
        one.run()
        assert bucket.objects[RECORDS_FILE].startswith(bucket.objects[JOURNAL])
    assert bucket.objects[JOURNAL].count(b"\n") > 15


def test_what_stays_on_this_machine_and_what_goes(folder):
    bucket = FakeBucket()
    (folder / "errors").mkdir()
    for name in ("best.yaml", "errors/0001.txt", "study.lock", ".x.partial", "optuna.log.lock"):
        (folder / name).write_text(name)
    one = Mirror(folder, bucket)
    one.run()
    assert sorted(bucket.objects) == ["best.yaml", "errors/0001.txt", STUDY_FILE]
    (folder / "best.yaml").unlink()
    one.run()
    assert sorted(bucket.objects) == ["errors/0001.txt", STUDY_FILE]


def test_after_a_crash_checkpoints_become_as_they_are_here(tmp_path):
    """New, replaced and deleted at once; each of them may be the last thing that is done."""
    for number in range(6):
        folder, bucket = begun(tmp_path / str(number)), FakeBucket()
        checkpoint(folder, "0000/000001", "old")
        checkpoint(folder, "0000/000002", "gone")
        Mirror(folder, bucket).run()
        bucket.left = number
        checkpoint(folder, "0000/000001", "new")
        checkpoint(folder, "0000/000003", "next")
        shutil.rmtree(folder / "checkpoints/0000/000002")
        one = Mirror(folder, bucket, bucket.list_keys())
        with contextlib.suppress(CrashError):
            one.run()
        bucket.left = 99
        one.run()
        assert whole(bucket) == {"0000/000001": "new", "0000/000003": "next"}
        assert len(bucket.objects) == 5


def test_one_that_is_deleted_while_it_is_copied(folder):
    path = folder / "checkpoints/0000/000001"
    bucket = FakeBucket()
    one = Mirror(folder, bucket)
    one.run()
    checkpoint(folder, "0000/000001", "a")
    bucket.before = lambda: shutil.rmtree(path, ignore_errors=True)
    one.run()
    one.run()
    assert bucket.list_keys() == [STUDY_FILE]


def test_another_machine_gets_all(folder, tmp_path):
    bucket, other = FakeBucket(), tmp_path / "other"
    append(folder, RECORDS_FILE, range(3))
    checkpoint(folder, "0000/000001", "a")
    Mirror(folder, bucket).run()
    begun(other)
    checkpoint(other, "0007/000001", "of an earlier time")
    fetch_all(bucket, bucket.list_keys(), other)
    found = {path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file()}
    names = ("checkpoints/0000/000001/weights.pt", "checkpoints/0000/000001/state.json")
    assert found == {STUDY_FILE, RECORDS_FILE, *names}


def test_odd_keys_are_not_fetched(tmp_path):
    for key in ("../x", "a/../x", "/etc", "", ".hidden", "study.lock", "a//b"):
        assert not is_copied(key)
    bucket = FakeBucket()
    bucket.objects = {"../x": b"", "a/y": b"1"}
    fetch_all(bucket, bucket.list_keys(), tmp_path / "here")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["y"]
