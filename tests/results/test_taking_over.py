"""A start that ends before it has what is below the URL: another driver's results stay."""

import json
import time
from contextlib import suppress
from unittest.mock import Mock

import pytest
from test_spool import FakeBucket
from test_spool_checkpoints import whole
from test_spool_checkpoints import write as write_checkpoint

from raybench.results import lock, storage
from raybench.results.bucket import BucketError
from raybench.results.lock import LEASE_KEY, Lease
from raybench.results.staging import fetch_logs
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.spec.errors import StudyError, UserError

URL = "s3://bucket/study"


@pytest.fixture
def bucket(monkeypatch):
    found = FakeBucket()
    found.url = URL
    monkeypatch.setattr(storage, "Bucket", lambda url, may_write=None: found)
    for name, value in {"LEASE_STALE_S": 0.6, "SETTLE_S": 0.0, "LEASE_LOOK_S": 0.1}.items():
        monkeypatch.setattr(lock, name, value)
    return found


@pytest.fixture
def on(monkeypatch, tmp_path):
    """Go to the machine of a name."""
    return lambda name: monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))


def opened(said=None):
    return storage.open_storage(URL, warn=[].append if said is None else said.append)


def append(folder, *lines):
    with (folder / RECORDS_FILE).open("a") as file:
        file.writelines(json.dumps({"line": line}) + "\n" for line in lines)


def write(lines, checkpoint=None):
    with opened() as place:
        (place.folder / STUDY_FILE).write_text("study: {}\n")
        append(place.folder, *lines)
        if checkpoint is not None:
            write_checkpoint(place.folder, f"0000/00000{checkpoint}", checkpoint)
    return place.folder


def there(bucket):
    records = fetch_logs(bucket, list(bucket.objects)).get(RECORDS_FILE, b"")
    return [json.loads(line)["line"] for line in records.splitlines()]


def interrupt_a_start(monkeypatch, at, fault, *, is_killed):
    with monkeypatch.context() as patch:
        patch.setattr(storage if at != "entries" else FakeBucket, at, Mock(side_effect=fault))
        if is_killed:
            patch.setattr(Lease, "release", lambda self: None)
        with suppress(BaseException):
            opened()


FAULTS = [
    ("entries", BucketError("no answer."), False),
    ("fetch_logs", KeyboardInterrupt(), False),
    ("fetch_checkpoints", BucketError("no answer."), True),
    ("fetch_files", KeyboardInterrupt(), True),
]


@pytest.mark.parametrize("has_more", [True, False])
@pytest.mark.parametrize(("at", "fault", "is_killed"), FAULTS)
def test_an_interrupted_start_deletes_nothing_there_and_brings_nothing_old_back(
    bucket, on, monkeypatch, at, fault, is_killed, has_more
):
    on("host B")
    folder = write(["b"], checkpoint=1)
    on("host A")
    with opened() as place:
        append(place.folder, "a")
        (place.folder / STUDY_FILE).write_text("study: {new: true}\n")
        write_checkpoint(place.folder, "0000/000003", 3)
    if has_more:
        append(folder, "not uploaded")
    on("host B")
    interrupt_a_start(monkeypatch, at, fault, is_killed=is_killed)
    assert json.loads(bucket.objects[LEASE_KEY])["released"] is not is_killed
    said = []
    with opened(said) as place:
        append(place.folder, "more")
    assert there(bucket) == ["b", "a", "more"]
    assert whole(bucket) == {"0000/000001": "1", "0000/000003": "3"}
    assert bucket.objects[STUDY_FILE] == b"study: {new: true}\n"
    aside = folder.with_name("study-not-uploaded-1")
    assert not said or str(aside) in said[0]
    assert aside.exists() == has_more
    assert not has_more or "not uploaded" in (aside / RECORDS_FILE).read_text()


def test_records_there_are_right_where_the_lease_is_not(bucket, on):
    """The lease names this spool as the last, another driver went on."""
    on("host B")
    folder = write(["b"], checkpoint=1)
    on("host A")
    write(["a"], checkpoint=2)
    found = json.loads(bucket.objects[LEASE_KEY])
    found["spool"] = found["last"] = (folder.parent / "id").read_text()
    bucket.objects[LEASE_KEY] = json.dumps(found).encode()
    append(folder, "not uploaded")
    on("host B")
    said = []
    with opened(said):
        pass
    assert there(bucket) == ["b", "a"]
    assert whole(bucket) == {"0000/000001": "1", "0000/000002": "2"}
    assert str(folder.with_name("study-not-uploaded-1")) in said[0]


def test_a_driver_that_was_taken_over_while_it_began_writes_nothing(bucket, on, monkeypatch):
    on("host A")
    write(["a"])
    on("host B")
    bring = storage.bring

    def slow(*rest, **more):
        bring(*rest, **more)
        monkeypatch.setattr(lock, "LEASE_STALE_S", 0.0)
        Lease(bucket, "host C").take()

    monkeypatch.setattr(storage, "bring", slow)
    with pytest.raises(UserError, match="was taken over by"):
        opened()
    assert json.loads(bucket.objects[LEASE_KEY])["spool"] == "host C"


def test_one_that_began_and_ended_while_another_waited_wrote_last(bucket, monkeypatch):
    monkeypatch.setattr(lock, "LEASE_STALE_S", 30.0)
    first = Lease(bucket, "one")
    first.take()

    def end(sentence):
        first.settle()
        first.release()

    assert Lease(bucket, "two", say=end).take() == "one"


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock that runs in a sleep")
def test_a_machine_that_slept_asks_for_its_lease_before_it_writes(bucket, on, monkeypatch):
    """Asleep, `time.monotonic` stands still; another driver has gone on meanwhile."""
    monkeypatch.setattr(lock, "LEASE_STALE_S", 60.0)
    on("host A")
    real = time.clock_gettime
    place = opened()
    append(place.folder, "too late")
    monkeypatch.setattr(lock, "LEASE_STALE_S", 0.0)
    Lease(bucket, "host B").take()
    monkeypatch.setattr(lock, "LEASE_STALE_S", 60.0)
    before = set(bucket.objects)
    slept = 600.0
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: real(clock) + slept * (clock == time.CLOCK_BOOTTIME)
    )
    with pytest.raises(StudyError, match="was taken over by"):
        place.close()
    assert set(bucket.objects) == before


def test_what_the_same_driver_forgot_is_gone_there_too(bucket, on):
    """Killed after it forgot the records and wrote others: the new ones are the study's."""
    on("host A")
    folder = write(["old", "older"])
    storage.cleared_mark(folder).touch()
    (folder / RECORDS_FILE).unlink()
    append(folder, "new")
    said = []
    with opened(said):
        pass
    assert there(bucket) == ["new"]
    assert said == []
    with opened():
        assert not storage.cleared_mark(folder).exists()
