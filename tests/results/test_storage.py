"""A study below a URL, on a local S3 server: written, continued, read; bad URLs."""

import json
import os
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from raybench.report.study import load
from raybench.results import lock
from raybench.results.bucket import Bucket
from raybench.results.lock import Lease, LeaseLostError
from raybench.results.storage import open_storage
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store
from raybench.spec.errors import UserError
from tests.below_url import names, on_another_machine, wait_for, wanted, write
from tests.made_results import results_folder, run_line
from tests.s3_server import FAST


def test_another_machine_continues(url, study, said, monkeypatch, tmp_path):
    first = write(url, study, range(10), said)
    (content,) = [Bucket(url).get(key) for key in Bucket(url).entries() if "records-" in key]
    assert content == (first / RECORDS_FILE).read_bytes()
    on_another_machine(monkeypatch, tmp_path)
    folder = write(url, study, range(10, 20), said)
    assert str(folder).startswith(str(tmp_path / "another machine"))
    assert names(folder) == names(url) == wanted(20)
    # And the first machine again: its spool is behind.
    on_another_machine(monkeypatch, tmp_path, "this machine")
    write(url, study, range(20, 25), said)
    assert names(url) == wanted(25)
    assert said == []


def test_many_records_are_few_objects_each_written_a_few_times(url, study, said, server):
    with open_storage(url, warn=said.append) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        line = run_line("x", 1.0, learning_rate=0.01)
        for number in range(3_000):
            store.append(line | {"trial": f"{number:05d}"})
            time.sleep(0.0005)
    entries = sorted(Bucket(url).entries().items())
    parts = [entry.size for key, entry in entries if key.startswith("records-")]
    assert len(parts) > 5
    assert all(2**18 <= size < 2**18 + 5_000 for size in parts[:-1])
    assert sum(parts) == (place.folder / RECORDS_FILE).stat().st_size
    key = url.rpartition("/")[2]
    puts = [text for text in server.log.read_text().splitlines() if f"/{key}/records-" in text]
    assert all("uploadId" not in text for text in puts), "one request an object"
    assert len([text for text in puts if "PUT" in text]) < 2 * len(parts) + 20
    assert names(url) == wanted(3_000)


def test_checkpoints_are_there_for_another_machine(url, study, said, monkeypatch, tmp_path):
    with open_storage(url, warn=said.append) as place:
        place.folder.joinpath(STUDY_FILE).write_text(study)
        folder = place.folder / "checkpoints" / "0003" / "000012"
        folder.mkdir(parents=True)
        (folder / "weights.pt").write_bytes(b"weights" * 10**6)
        (folder / "state.json").write_text("{}")
        wait_for(lambda: "checkpoints/0003/000012/state.json" in Bucket(url).entries())
        (folder.parent / "000011").mkdir()
        (folder.parent / "000011" / "weights.pt").write_bytes(b"more")
        (folder.parent / "000011" / "state.json").write_text("{}")
    on_another_machine(monkeypatch, tmp_path)
    with open_storage(url, warn=said.append) as place:
        folder = place.folder / "checkpoints" / "0003"
        assert (folder / "000012" / "weights.pt").read_bytes() == b"weights" * 10**6
        assert sorted(path.name for path in folder.iterdir()) == ["000011", "000012"]
        shutil.rmtree(folder)
    assert not any("checkpoints" in key for key in Bucket(url).entries())


def test_a_url_that_was_emptied_begins_anew(url, study, said):
    folder = write(url, study, range(5), said)
    for key in Bucket(url).entries():
        Bucket(url).delete(key)
    write(url, study, range(10, 12), said)
    assert names(url) == ["00010", "00011"]
    (sentence,) = said
    aside = folder.with_name("study-not-uploaded-1")
    assert sentence.endswith(f"they are kept in {aside}.")
    assert names(aside) == wanted(5)


def test_two_drivers_of_one_machine_are_one_too_many(url, said):
    refusal = pytest.raises(UserError, match=f"is in use by process {os.getpid()}")
    with open_storage(url, warn=said.append), refusal:
        open_storage(url)


def test_no_such_bucket_and_no_study_are_one_sentence(url):
    with pytest.raises(UserError, match="there is no such bucket"):
        open_storage("s3://nobody/study")
    with pytest.raises(UserError, match="holds no study"):
        load(url)


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("s3://bucket", "names no folder"),
        ("s3://me:secret@bucket/a", "give them in the environment"),
        ("abfs://:secret@account/a/b", "give them in the environment"),
        ("s3://bucket/a?secret_key=secret", "give them in the environment"),
        ("s3://bucket/a?region=x&nonsense=y", "correct the URL"),
        ("ftp://host/a", "is no store that is known"),
        ("file://host/a", "is on another host"),
    ],
)
def test_a_bad_url_is_the_users_mistake(out, sentence):
    with pytest.raises(UserError, match=sentence) as refusal:
        open_storage(out)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_folder_is_itself(tmp_path, prefix):
    with open_storage(f"{prefix}{tmp_path}/study") as place:
        assert place.folder == tmp_path / "study"
        place.check()
    results_folder(tmp_path / "study", [run_line("0000", 1.0)])
    assert names(f"{prefix}{tmp_path}/study") == ["0000"]


def test_a_host_whose_clock_is_wrong_is_no_trouble(url, monkeypatch):
    first = Lease(Bucket(url), "one")
    first.take()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    began = time.monotonic()
    Lease(Bucket(url), "two").take()
    assert time.monotonic() - began > FAST["LEASE_STALE_S"] - 2
    with pytest.raises(lock.LeaseLostError, match="taken over by"):
        first.beat()


def test_a_lease_that_cannot_be_read_ages(url):
    Bucket(url).put(lock.LEASE_KEY, b"nonsense")
    Lease(Bucket(url), "two").take()


def test_one_that_brought_nothing_did_not_write_last(url, monkeypatch):
    first = Lease(Bucket(url), "one")
    assert first.take() is None
    assert json.loads(Bucket(url).get(lock.LEASE_KEY))["who"], "for people"
    first.settle()
    first.release()
    monkeypatch.setattr(lock, "LEASE_LOOK_S", None)  # given back, it is taken at once
    killed = Lease(Bucket(url), "two")
    assert killed.take() == "one"
    assert Lease(Bucket(url), "two").take() == "one", "its next start"
    killed.release()
    assert not json.loads(Bucket(url).get(lock.LEASE_KEY))["released"], "another's by now"


def test_of_two_that_take_it_at_once_one_gets_it(url, monkeypatch):
    monkeypatch.setattr(lock, "SETTLE_S", 1.0)  # a busy machine may hold one of them up
    for number in range(3):
        bucket, together = Bucket(f"{url}/{number}"), threading.Barrier(2)

        def take(name, bucket=bucket, together=together):
            one = Lease(bucket, name)
            together.wait()
            try:
                one.take()
                one.beat()
            except (UserError, LeaseLostError) as error:
                return str(error)
            return name

        with ThreadPoolExecutor(2) as pool:
            got = list(pool.map(take, ["one", "two"]))
        assert sorted(len(one) > 3 for one in got) == [False, True], got
        assert re.search("is in use by|was taken over by", max(got, key=len))
