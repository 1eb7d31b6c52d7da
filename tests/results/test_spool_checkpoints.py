"""Checkpoints below a URL: a reader never sees a state without its weights, however it ends."""

import contextlib
import shutil

import pytest
from test_spool import CrashError, FakeBucket

from raybench.results.staging import CheckpointUpload, fetch_checkpoints, names_of
from raybench.results.store import STUDY_FILE
from raybench.stats.checkpoint import STATE_FILE

WEIGHTS = "weights.pt"


def write(folder, name, content):
    """As `core.checkpoint` does: under a hidden name, renamed."""
    target = folder / "checkpoints" / name
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir(parents=True)
    (partial / WEIGHTS).write_text(f"weights {content}")
    (partial / STATE_FILE).write_text(f"state {content}")
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)


def upload(folder, bucket):
    one = CheckpointUpload(folder, bucket)
    one.resume(list(bucket.objects))
    return one


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


def test_they_come_and_go_as_they_do_here(tmp_path):
    bucket = FakeBucket()
    one = upload(tmp_path, bucket)
    write(tmp_path, "0000/000001", "a")
    (tmp_path / "checkpoints/0000/.000002.7.partial").mkdir()
    (tmp_path / "checkpoints/0000/.000002.7.partial/weights.pt").write_text("half")
    one.run()
    assert whole(bucket) == {"0000/000001": "a"}
    write(tmp_path, "0000/000002", "b")
    write(tmp_path, "0001/000001", "c")
    shutil.rmtree(tmp_path / "checkpoints/0000/000001")
    one.run()
    assert whole(bucket) == {"0000/000002": "b", "0001/000001": "c"}
    shutil.rmtree(tmp_path / "checkpoints")
    one.run()
    assert bucket.objects == {}
    assert names_of(tmp_path) == []


def test_every_crash_leaves_states_with_their_weights(tmp_path):
    """New, replaced and deleted at once; each of them may be the last thing that is done."""
    for number in range(12):
        folder, bucket = tmp_path / str(number), FakeBucket()
        write(folder, "0000/000001", "old")
        write(folder, "0000/000002", "gone")
        one = upload(folder, bucket)
        one.run()
        bucket.left = number
        write(folder, "0000/000001", "new")
        write(folder, "0000/000003", "next")
        shutil.rmtree(folder / "checkpoints/0000/000002")
        with contextlib.suppress(CrashError):
            one.run()
        found = whole(bucket)
        bucket.left = 99
        # And whoever goes on ends with all of it.
        upload(folder, bucket).run()
        assert whole(bucket) == {"0000/000001": "new", "0000/000003": "next"}
        assert len(bucket.objects) == 4
    assert found == {"0000/000001": "new", "0000/000003": "next"}


def test_one_that_is_deleted_while_it_is_uploaded(tmp_path):
    path = tmp_path / "checkpoints/0000/000001" / WEIGHTS
    for number, found in enumerate([{}, {"0000/000001": "a"}]):
        bucket = FakeBucket()
        write(tmp_path, "0000/000001", "a")
        puts = []

        def delete(number=number, puts=puts):
            puts.append(1)
            if len(puts) > number:
                path.unlink(missing_ok=True)

        bucket.before = delete
        one = CheckpointUpload(tmp_path, bucket)
        one.run()
        assert whole(bucket) == found
        one.run()
        assert bucket.objects == {}, "a state whose weights are gone is not uploaded"


def test_another_machine_gets_them_and_uploads_none_again(tmp_path):
    bucket = FakeBucket()
    write(tmp_path / "one", "0000/000001", "a")
    write(tmp_path / "one", "0001/000004", "b")
    upload(tmp_path / "one", bucket).run()
    other = tmp_path / "other"
    write(other, "0000/000001", "a")
    write(other, "0007/000001", "of an earlier time")
    kept = (other / "checkpoints/0000/000001" / WEIGHTS).stat().st_ino
    fetch_checkpoints(bucket, list(bucket.objects), other)
    assert (other / "checkpoints/0000/000001" / WEIGHTS).stat().st_ino == kept, "equal: not fetched"
    found = sorted(path.relative_to(other).as_posix() for path in other.rglob("weights.pt"))
    assert found == ["checkpoints/0000/000001/weights.pt", "checkpoints/0001/000004/weights.pt"]
    bucket.before = pytest.fail
    upload(other, bucket).run()


def test_a_checkpoint_without_a_state_is_not_brought_and_goes(tmp_path):
    bucket = FakeBucket()
    bucket.objects = {f"checkpoints/0000/000001/{WEIGHTS}": b"weights a", STUDY_FILE: b""}
    fetch_checkpoints(bucket, list(bucket.objects), tmp_path)
    assert list(tmp_path.iterdir()) == []
    upload(tmp_path, bucket).run()
    assert list(bucket.objects) == [STUDY_FILE]


def test_a_folder_that_is_gone_deletes_nothing(tmp_path):
    bucket = FakeBucket()
    write(tmp_path / "study", "0000/000001", "a")
    one = upload(tmp_path / "study", bucket)
    one.run()
    shutil.rmtree(tmp_path / "study")
    one.run()
    assert whole(bucket) == {"0000/000001": "a"}
