"""Logs as parts: what a crash between any two uploads leaves below the URL."""

import contextlib

import pytest

from raybench.results import staging
from raybench.results.staging import (
    Upload,
    cleared_mark,
    fetch_files,
    fetch_logs,
    key_of,
    log_of,
    name_of,
    part_key,
)
from raybench.spec.errors import StudyError, UserError

RECORDS, JOURNAL = staging.LOGS


class CrashError(Exception):
    pass


class FakeBucket:
    """Objects in memory; after `puts` of them the driver is dead."""

    def __init__(self, puts=10**9):
        self.url, self.objects, self.left, self.before = "s3://fake/study", {}, puts, lambda: None

    def _begin(self):
        self.before()
        if not self.left:
            raise CrashError
        self.left -= 1

    def put(self, key, content):
        self._begin()
        self.objects[key] = bytes(content)

    def put_file(self, key, path):
        self._begin()
        self.objects[key] = path.read_bytes()

    def get(self, key):
        return self.objects.get(key)

    def get_file(self, key, path):
        if key in self.objects:
            path.write_bytes(self.objects[key])

    def modified(self, key):
        return 0.0 if key in self.objects else None

    def delete(self, key):
        self._begin()
        self.objects.pop(key, None)

    def entries(self):
        return dict(self.objects)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(staging, "PART_BYTES", 50)


def append(folder, name, lines):
    with (folder / name).open("a") as file:
        file.writelines(f'{{"line": {line}}}\n' for line in lines)


def test_every_crash_leaves_a_beginning_of_whole_lines(tmp_path):
    append(tmp_path, RECORDS, range(40))
    whole = (tmp_path / RECORDS).read_bytes()
    lengths = set()
    for puts in range(12):
        bucket = FakeBucket(puts)
        with contextlib.suppress(CrashError):
            Upload(tmp_path, bucket).run()
        found = fetch_logs(bucket, list(bucket.objects)).get(RECORDS, b"")
        assert whole.startswith(found)
        assert not found or found.endswith(b"\n")
        lengths.add(len(found))
    assert len(lengths) > 8
    assert max(lengths) == len(whole)


def test_every_crash_in_a_rewrite_leaves_the_old_or_the_new(tmp_path):
    append(tmp_path, RECORDS, range(20))
    old = (tmp_path / RECORDS).read_bytes()
    for puts in range(14):
        bucket = FakeBucket()
        (tmp_path / RECORDS).write_bytes(old)
        one = Upload(tmp_path, bucket)
        one.run()
        cleared_mark(tmp_path).touch()
        (tmp_path / RECORDS).write_text('{"line": "new"}\n')
        bucket.left = puts
        with contextlib.suppress(CrashError):
            one.run()
        found = fetch_logs(bucket, list(bucket.objects)).get(RECORDS, b"")
        assert old.startswith(found) or found == b'{"line": "new"}\n'
    assert found == b'{"line": "new"}\n'
    assert not cleared_mark(tmp_path).exists()


@pytest.mark.parametrize("rest", [None, [], range(3), range(100, 200)])
def test_records_that_nobody_forgot_are_never_deleted(tmp_path, rest):
    """A spool that is deleted or written by others in mid-study deletes nothing below the URL."""
    bucket = FakeBucket()
    append(tmp_path, RECORDS, range(20))
    one = Upload(tmp_path, bucket)
    one.run()
    before = dict(bucket.objects)
    (tmp_path / RECORDS).unlink()
    if rest is not None:
        append(tmp_path, RECORDS, rest)
    for driver in (one, Upload(tmp_path, bucket)):
        driver is one or driver.resume(list(bucket.objects))
        with pytest.raises(StudyError, match="so nothing is deleted there"):
            driver.run()
    assert bucket.objects == before


def test_a_journal_that_was_written_anew_takes_the_place_of_the_old(tmp_path):
    bucket = FakeBucket()
    append(tmp_path, JOURNAL, range(20))
    one = Upload(tmp_path, bucket)
    one.run()
    (tmp_path / JOURNAL).unlink()
    append(tmp_path, JOURNAL, range(3))
    one.run()
    assert fetch_logs(bucket, list(bucket.objects))[JOURNAL].count(b"\n") == 3


def test_a_torn_last_line_waits_until_it_is_whole(tmp_path):
    bucket = FakeBucket()
    one = Upload(tmp_path, bucket)
    (tmp_path / RECORDS).write_bytes(b'{"a": 1}\n{"b"')
    one.run()
    assert fetch_logs(bucket, list(bucket.objects))[RECORDS] == b'{"a": 1}\n'


def test_the_journal_never_knows_of_a_run_that_the_records_lack(tmp_path):
    bucket, number = FakeBucket(), 0

    def go_on():
        nonlocal number
        append(tmp_path, RECORDS, [number])  # first, as the search does
        append(tmp_path, JOURNAL, [number])
        number += 1

    bucket.before = go_on
    go_on()
    one = Upload(tmp_path, bucket)
    for _ in range(20):
        one.run()
        logs = fetch_logs(bucket, list(bucket.objects))
        assert logs[RECORDS].startswith(logs[JOURNAL])
    assert logs[JOURNAL].count(b"\n") > 15


def test_another_driver_goes_on_in_the_middle_of_a_part(tmp_path):
    bucket = FakeBucket()
    append(tmp_path, RECORDS, range(7))
    Upload(tmp_path, bucket).run()
    append(tmp_path, RECORDS, range(7, 30))
    other = Upload(tmp_path, bucket)
    other.resume(list(bucket.objects))
    written, put = [], bucket.put
    bucket.put = lambda key, content: (written.append(key), put(key, content))
    other.run()
    assert part_key(RECORDS, 0) not in written, "a full part is not written again"
    assert fetch_logs(bucket, list(bucket.objects))[RECORDS] == (tmp_path / RECORDS).read_bytes()


def test_a_missing_part_is_said(tmp_path):
    bucket = FakeBucket()
    append(tmp_path, RECORDS, range(20))
    Upload(tmp_path, bucket).run()
    del bucket.objects[sorted(bucket.objects)[1]]
    with pytest.raises(UserError, match="does not follow what is before it"):
        fetch_logs(bucket, list(bucket.objects))


def test_what_stays_on_this_machine(tmp_path):
    bucket = FakeBucket()
    (tmp_path / "errors").mkdir()
    for name in ("best.yaml", "errors/0001.txt", "study.lock", ".x.partial"):
        (tmp_path / name).write_text(name)
    one = Upload(tmp_path, bucket)
    one.run()
    (tmp_path / "best.yaml").unlink()
    one.run()
    assert sorted(bucket.objects) == ["best.yaml", "errors/0001.txt"]
    (tmp_path / "study.yaml").write_text("a: 1")
    one.run()
    assert sorted(bucket.objects) == ["errors/0001.txt", "study.yaml"], "the study names nobody"


def test_names_come_back_and_bad_keys_do_not(tmp_path):
    for name in ("trials.csv", "errors/a=b.txt", "errors/ä ü%.txt", "records-1.jsonl"):
        assert "=" not in key_of(name)
        assert name_of(key_of(name)) == name
    for key in ("../x", "a/%2e%2e/x", "%2Fetc", "a/b%2Fc", "", ".hidden", "study.lock", "a//b"):
        assert name_of(key) is None
    assert log_of("records-1.jsonl") is None
    assert log_of(part_key(JOURNAL, 5)) == JOURNAL
    bucket = FakeBucket()
    bucket.objects = {"../x": b"", "a/y": b"1"}
    fetch_files(bucket, list(bucket.objects), tmp_path / "here", keep=False)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["y"]
