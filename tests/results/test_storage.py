"""A study at a URL: writing, resuming, reading, killed drivers, lost servers, refused credentials
and invalid URLs on a local S3 server; objects at URLs of other stores as Arrow resolves them."""

import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from raybench.report.study import load
from raybench.results import storage
from raybench.results.records import read_records
from raybench.results.storage import Bucket, check_url, open_storage
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store
from raybench.spec.errors import ErrorCode, StudyError
from tests.below_url import WRITER, names, trial_names, uploaded, write
from tests.factories import start_python, wait_for
from tests.made_results import run_line
from tests.refusals import refused


def test_a_second_driver_on_the_same_machine_is_refused(url, said):
    refusal = refused(ErrorCode.STUDY_IN_USE, f"process {os.getpid()}")
    with open_storage(url, warn=said.append), refusal:
        open_storage(url)


def test_a_missing_bucket_and_a_missing_study_are_refused(url):
    with refused(ErrorCode.UNREACHABLE, "s3://nobody/study"):
        open_storage("s3://nobody/study")
    with refused(ErrorCode.NOT_FOUND, url):
        load(url)


@pytest.mark.parametrize(
    ("out", "code", "name"),
    [
        ("s3://bucket", ErrorCode.INVALID_VALUE, "s3://BUCKET/FOLDER"),
        ("s3://me:secret@bucket/a", ErrorCode.INVALID_VALUE, "s3://***"),
        ("abfs://:secret@account/a/b", ErrorCode.INVALID_VALUE, "abfs://***"),
        ("s3://bucket/a?secret_key=secret", ErrorCode.INVALID_VALUE, "s3://***"),
        ("s3://bucket/a?region=x&nonsense=y", ErrorCode.INVALID_VALUE, "nonsense"),
        ("ftp://host/a", ErrorCode.UNKNOWN_NAME, "ftp://"),
        *(
            (url, ErrorCode.INVALID_VALUE, url)
            for url in ("file://host/a", "s3://b/a%3Db", "gs://b/a/%2e%2e/b", "gs://b/a%2F/b")
        ),
    ],
)
def test_invalid_urls_are_refused_without_secrets(out, code, name):
    with refused(code, "--out", name) as refusal:
        open_storage(out)
    assert "secret" not in str(refusal.value)


def test_conflicting_records_of_two_drivers_are_refused_and_kept(url, study, said):
    folder = write(url, study, range(3), said)
    with (folder / RECORDS_FILE).open("a") as file:
        file.write("not uploaded\n")
    uploaded_records = Bucket(url).get(RECORDS_FILE) + b'{"line": "another driver"}\n'
    Bucket(url).put(RECORDS_FILE, uploaded_records)
    with refused(ErrorCode.CONFLICT, url, str(folder)):
        open_storage(url, warn=said.append)
    assert Bucket(url).get(RECORDS_FILE) == uploaded_records
    folder.rename(folder.with_name("aside"))
    with open_storage(url, warn=said.append) as place:
        assert (place.folder / RECORDS_FILE).read_bytes() == uploaded_records
    assert said == []


@contextmanager
def writer(url, study):
    """Run another process that writes to a URL, for tests that kill it."""
    with start_python(WRITER.format(url=url, study=study)) as process:
        assert process.stdout.readline() == "open\n"
        yield process


def test_the_same_machine_continues_with_records_not_yet_uploaded(url, study, said, server):
    write(url, study, range(5), said)
    with writer(url, study) as process:
        server.door.shut()
        try:
            while int(process.stdout.readline()) < 20:
                pass
        finally:
            process.kill()
            process.wait()
            server.door.open()
    with open_storage(url, warn=said.append) as place:
        trials = list(read_records(place.folder).runs)
    assert len(trials) >= 20
    assert names(url) == trials


def test_refused_credentials_are_reported_and_no_record_is_lost(url, study, said, server):
    place = open_storage(url, warn=said.append)
    store = Store(place.folder)
    store.write_text(STUDY_FILE, study)
    for number in range(20):
        if number == 10:
            wait_for(lambda: uploaded(url) == 10)
            server.refuse(True)
        store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
    try:
        wait_for(lambda: said)
        server.refuse(False)
        wait_for(lambda: uploaded(url) == 20)
        wait_for(lambda: len(said) == 2)
        server.refuse(True)
        store.append(run_line("00020", 1.0, learning_rate=0.01))
        store.close()
        with pytest.raises(StudyError) as end:
            place.close()
        with refused(ErrorCode.UNREACHABLE, url):
            open_storage(url)
    finally:
        server.refuse(False)
    assert str(place.folder) in str(end.value)
    assert str(place.folder) in said[0]
    assert 2 <= len(said) <= 3, "refusals and recovery are reported once each"
    for text in (str(end.value), *said):
        assert "\n" not in text
        assert "fake-secret" not in text
    assert names(url) == trial_names(20)
    with open_storage(url, warn=said.append):
        pass
    assert names(url) == trial_names(21)


def test_lost_local_records_are_restored_from_the_bucket(url, study, said):
    folder = write(url, study, range(5), said)
    lines = (folder / RECORDS_FILE).read_text().splitlines(keepends=True)
    (folder / RECORDS_FILE).write_text("".join(lines[:2]) + lines[2][:20])
    write(url, study, range(5, 6), said)
    assert names(url) == trial_names(6)


fs = pytest.importorskip("pyarrow.fs")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder that replaces all stores; Arrow still parses the URLs."""
    local = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    def from_uri(url):
        return local, fs.FileSystem.from_uri(url)[1]

    arrow = {"FileSelector": fs.FileSelector, "FileType": fs.FileType}
    filesystems = SimpleNamespace(FileSystem=SimpleNamespace(from_uri=from_uri), **arrow)
    monkeypatch.setattr(storage, "_filesystems", lambda: filesystems)
    return tmp_path


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("abfs://container@account.dfs.core.windows.net/x/y", "container/x/y"),
        ("abfss://account.blob.core.windows.net/container/x", "container/x"),
        ("gs://bucket/a%20b", "bucket/a b"),
        ("s3://bucket/a%20b/?region=x", "bucket/a b"),
    ],
)
def test_objects_are_stored_where_arrow_resolves_the_url(store, url, where):
    check_url(url)
    (store / where / "errors").mkdir(parents=True)
    bucket = Bucket(url)
    assert bucket.list_keys() == []
    for key in ("study.yaml", "errors/0.txt"):
        bucket.put(key, key.encode())
        assert (store / where / key).read_bytes() == bucket.get(key) == key.encode()
    assert set(bucket.list_keys()) == {"study.yaml", "errors/0.txt"}
    bucket.delete("study.yaml")
    assert bucket.list_keys() == ["errors/0.txt"]


def test_a_container_without_a_folder_is_refused(store):
    with refused(ErrorCode.INVALID_VALUE, "/container"):
        Bucket("abfs://account.dfs.core.windows.net/container").list_keys()
