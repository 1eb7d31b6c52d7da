"""A study below a URL, on a local S3 server: killed drivers, lost servers, refused credentials."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from s3_server import FAST
from test_load import results_folder, run_line

import raybench
from raybench import report
from raybench.core.errors import StudyError, UserError
from raybench.results import lease, remote
from raybench.results.bucket import Bucket
from raybench.results.lease import Lease
from raybench.results.load import load
from raybench.results.records import read_records
from raybench.results.storage import open_storage
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store

WRITER = """
import sys, time
sys.path.insert(0, {tests!r})
from raybench.results import lease, sync
for name, value in {fast!r}.items():
    setattr(lease, name, value)
sync.BEAT_S, sync.SYNC_S = 0.5, 0.5
from raybench.results.storage import open_storage
from raybench.results.store import Store
from test_load import run_line
with open_storage(sys.argv[1]) as place, Store(place.folder) as store:
    store.write_text("study.yaml", {study!r})
    print("open", flush=True)
    for number in range(100_000):
        store.append(run_line(f"{{number:05d}}", 1.0, learning_rate=0.01))
        print(number, time.time(), flush=True)
        time.sleep(0.005)
"""


@pytest.fixture
def study(tmp_path):
    results_folder(tmp_path / "sample", [])
    return (tmp_path / "sample" / STUDY_FILE).read_text()


def write(url, study, numbers, said):
    with open_storage(url, warn=said.append) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        for number in numbers:
            store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
    return place.folder


def on_another_machine(monkeypatch, tmp_path, name="another machine"):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))


def names(place):
    return list(load(place).runs)


def wanted(count):
    return [f"{number:05d}" for number in range(count)]


def uploaded(url):
    """How many lines of records are below the URL."""
    bucket = Bucket(url)
    return sum(bucket.get(key).count(b"\n") for key in bucket.entries() if "records-" in key)


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_study_is_below_its_url_when_it_ends(url, study, said):
    folder = write(url, study, range(30), said)
    assert names(url) == wanted(30)
    assert list(raybench.load(url).trials["trial"]) == wanted(30)
    (content,) = [Bucket(url).get(key) for key in Bucket(url).entries() if "records-" in key]
    assert content == (folder / RECORDS_FILE).read_bytes()
    assert said == []


def test_another_machine_continues(url, study, said, monkeypatch, tmp_path):
    write(url, study, range(10), said)
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


@pytest.mark.all
def test_a_killed_driver_loses_seconds_and_another_goes_on(url, study, said, monkeypatch, tmp_path):
    code = WRITER.format(tests=os.path.dirname(__file__), fast=FAST, study=study)  # noqa: PTH120
    process = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
    with process.stdout:
        assert process.stdout.readline() == "open\n"
        began, written = time.monotonic(), []
        while time.monotonic() - began < 5.0:
            number, at = process.stdout.readline().split()
            written.append((int(number), float(at)))
        on_another_machine(monkeypatch, tmp_path, "a third")
        with pytest.raises(UserError, match=r"is in use by .* since 20"):
            open_storage(url)
        process.send_signal(signal.SIGKILL)
        killed = time.time()
        process.wait()
        written += [tuple(map(float, line.split())) for line in process.stdout if line.count(".")]
    on_another_machine(monkeypatch, tmp_path)
    began = time.monotonic()
    with open_storage(url, warn=said.append) as place, Store(place.folder) as store:
        waited = time.monotonic() - began
        kept = names(place.folder)
        old = [number for number, at in written if at < killed - 3.0]
        assert len(old) > 50
        assert kept[: len(old)] == wanted(len(old)), "nothing older than seconds is lost"
        assert kept == wanted(len(kept)), "nothing is doubled"
        for number in range(len(kept), len(kept) + 5):
            store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
    assert waited < FAST["STALE_S"] + 3
    assert names(url) == wanted(len(kept) + 5)


def test_the_same_machine_goes_on_at_once_with_what_was_not_uploaded(
    url, study, said, server, monkeypatch
):
    write(url, study, range(5), said)
    code = WRITER.format(tests=os.path.dirname(__file__), fast=FAST, study=study)  # noqa: PTH120
    process = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
    with process.stdout:
        assert process.stdout.readline() == "open\n"
        server.door.shut()
        try:
            while int(process.stdout.readline().split()[0]) < 300:
                pass
        finally:
            process.kill()
            process.wait()
            server.door.open()
    monkeypatch.setattr(lease, "STALE_S", 1e6)
    with open_storage(url, warn=said.append) as place:
        kept = list(read_records(place.folder).runs)
    assert len(kept) >= 300
    assert names(url) == kept


@pytest.mark.all
def test_a_server_that_is_gone_for_ten_seconds_costs_nothing(url, study, said, server, monkeypatch):
    monkeypatch.setattr(lease, "STALE_S", 60.0)
    with open_storage(url, warn=said.append) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        for number in range(300):
            if number == 50:
                server.door.shut()
            if number == 250:
                server.door.open()
            store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
            time.sleep(0.05)
        wait_for(lambda: "everything is uploaded" in said[-1])
        wait_for(lambda: uploaded(url) == 300)
        assert names(url) == wanted(300)
    assert len(said) == 2
    assert "cannot be reached" in said[0]
    assert str(place.folder) in said[0]


def test_refused_credentials_are_said_and_nothing_is_lost(url, study, said, server):
    place = open_storage(url, warn=said.append)
    with Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        for number in range(20):
            if number == 10:
                wait_for(lambda: uploaded(url) == 10)
                server.refuse(True)
            store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
    try:
        wait_for(lambda: said)
        with pytest.raises(StudyError) as end:
            place.close()
        with pytest.raises(UserError, match="credentials are refused"):
            open_storage(url)
    finally:
        server.refuse(False)
    assert "the credentials are refused" in said[0]
    assert "the credentials are refused" in str(end.value)
    assert f"Nothing is lost: 10 records and 0 files are in {place.folder} alone" in str(end.value)
    assert len(said) == 2, "said once, tried often"
    assert said[1].endswith("uploading what is left is tried for 3 s.")
    for text in (str(end.value), *said):
        assert "\n" not in text
        assert "fake-secret" not in text
    assert names(url) == wanted(10)
    with open_storage(url, warn=said.append):
        pass
    assert names(url) == wanted(20)


def test_expired_credentials_are_said_once_until_they_are_renewed(url, study, said, monkeypatch):
    connected, is_expired = Bucket._connected, threading.Event()

    class Expired:
        def __getattr__(self, name):
            raise OSError(
                "When completing multiple part upload: AWS Error UNKNOWN (HTTP status 400) during "
                "PutObject operation: Unable to parse ExceptionName: ExpiredToken Message: The "
                "provided token has expired."
            )

    monkeypatch.setattr(
        Bucket, "_connected", lambda self: Expired() if is_expired.is_set() else connected(self)
    )
    with open_storage(url, warn=said.append) as place, Store(place.folder, place.check) as store:
        store.write_text(STUDY_FILE, study)
        is_expired.set()
        for number in range(20):
            store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
            time.sleep(0.1)
        (sentence,) = said
        is_expired.clear()
        wait_for(lambda: "everything is uploaded" in said[-1])
        assert uploaded(url) == 20
    assert "the credentials have expired (" in sentence
    assert "); renew them; it is tried again, results are kept in" in sentence
    assert len(said) == 2


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


def test_credentials_renewed_in_mid_study_go_on_by_themselves(url, study, said, server):
    with open_storage(url, warn=said.append) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        server.refuse(True)
        try:
            store.append(run_line("00000", 1.0, learning_rate=0.01))
            wait_for(lambda: said)
        finally:
            server.refuse(False)
        wait_for(lambda: "everything is uploaded" in said[-1])
        assert names(url) == wanted(1)


def test_an_owner_that_was_taken_for_dead_stops_writing(url, study, said, monkeypatch):
    place = open_storage(url, warn=said.append)
    with Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        store.append(run_line("00000", 1.0, learning_rate=0.01))
        wait_for(lambda: uploaded(url) == 1)
        monkeypatch.setattr(lease, "STALE_S", 0.0)
        Lease(Bucket(url), "another spool").take()
        store.append(run_line("00001", 1.0, learning_rate=0.01))
        wait_for(lambda: said)
    with pytest.raises(StudyError, match="was taken over by"):
        place.check()
    with pytest.raises(StudyError, match=f"did not upload is in {place.folder}"):
        place.close()
    assert names(url) == wanted(1)
    assert names(place.folder) == wanted(2)


def test_what_another_driver_went_on_without_is_put_aside(url, study, said, monkeypatch, tmp_path):
    folder = write(url, study, range(5), said)
    on_another_machine(monkeypatch, tmp_path)
    write(url, study, range(5, 8), said)
    with Store(folder) as store:
        store.append(run_line("never uploaded", 1.0, learning_rate=0.01))
    on_another_machine(monkeypatch, tmp_path, "this machine")
    write(url, study, range(8, 9), said)
    assert names(url) == wanted(9)
    (sentence,) = said
    aside = folder.with_name("study-not-uploaded-1")
    assert str(aside) in sentence
    assert "never uploaded" in read_records(aside).runs


def test_a_spool_that_lost_records_gets_them_back(url, study, said):
    folder = write(url, study, range(5), said)
    lines = (folder / RECORDS_FILE).read_text().splitlines(keepends=True)
    (folder / RECORDS_FILE).write_text("".join(lines[:2]) + lines[2][:20])
    write(url, study, range(5, 6), said)
    assert names(url) == wanted(6)


def test_records_that_are_forgotten_are_forgotten_there(url, study, said):
    with open_storage(url, warn=said.append) as place:
        store = Store(place.folder, place.check, place.forget)
        store.write_text(STUDY_FILE, study)
        for number in range(500):
            store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
        wait_for(lambda: sum("records-" in key for key in Bucket(url).entries()) > 1)
        store.clear()
        store.append(run_line("00000", 2.0, learning_rate=0.01))
        store.close()
    assert names(url) == ["00000"]
    assert sum("records-" in key for key in Bucket(url).entries()) == 1


def test_a_report_is_written_below_the_url(url, study, said, capsys):
    write(url, study, range(3), said)
    assert report.main([url]) == 0
    assert "00000" in capsys.readouterr().out
    assert Bucket(url).get("trials.csv").count(b"\n") == 4
    assert any(key.endswith(".png") for key in Bucket(url).entries())


def test_a_report_uploads_what_it_made_and_nothing_else(url, study, said):
    write(url, study, range(3), said)
    Bucket(url).put("model.pt", b"old")
    folder = load(url, files=("model.pt",)).folder
    assert (folder / "model.pt").read_bytes() == b"old"
    (folder / "best.yaml").write_text("of an earlier time")
    Bucket(url).put("model.pt", b"trained again")
    before = set(Bucket(url).entries())
    assert report.main([url]) == 0
    assert Bucket(url).get("model.pt") == b"trained again"
    made = {f"{name}.png" for name in ("curves", "pareto", "ledger")} | {"trials.csv", "curves.csv"}
    assert set(Bucket(url).entries()) <= before | made | {"best.yaml", "cheapest.yaml"}
    assert Bucket(url).get("best.yaml") != b"of an earlier time"


def test_a_report_beside_a_driver_leaves_its_files_alone(url, study, said, capsys):
    with open_storage(url, warn=said.append) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        store.append(run_line("00000", 1.0, learning_rate=0.01))
        wait_for(lambda: uploaded(url) == 1)
        assert report.main([url]) == 0
        assert f"{url}: is in use by " in capsys.readouterr().out
        assert "trials.csv" not in Bucket(url).entries()


def test_a_report_of_records_that_went_on_is_not_uploaded(url, study, said, capsys, monkeypatch):
    """A driver that ends between a report's reading and its uploading has the last word."""
    write(url, study, range(3), said)

    def slow(*rest, **more):
        write(url, study, range(3, 4), said)
        Bucket(url).put("trials.csv", b"the driver's")

    monkeypatch.setattr(report, "show", slow)
    assert report.main([url]) == 0
    assert "has other records since they were read" in capsys.readouterr().out
    assert Bucket(url).get("trials.csv") == b"the driver's"


def test_a_report_without_the_right_to_write_is_printed_and_kept(
    url, study, said, capsys, monkeypatch
):
    write(url, study, range(3), said)

    def refuse(self, key, path):
        raise remote.BucketError("the credentials are refused.")

    monkeypatch.setattr(Bucket, "put_file", refuse)
    assert report.main([url]) == 1
    seen = capsys.readouterr()
    assert "00000" in seen.out
    assert "The report's files are in" in seen.err


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


def test_keys_hold_no_equals_sign_and_files_come_back(url, study, said, monkeypatch, tmp_path):
    with open_storage(url, warn=said.append) as place:
        place.folder.joinpath("errors").mkdir()
        place.folder.joinpath("errors", "a=b c.txt").write_text("text")
        place.folder.joinpath(".hidden").write_text("")
    assert [key for key in Bucket(url).entries() if "=" in key or "hidden" in key] == []
    on_another_machine(monkeypatch, tmp_path)
    with open_storage(url, warn=said.append) as place:
        assert (place.folder / "errors" / "a=b c.txt").read_text() == "text"


def test_no_object_is_written_outside_of_the_folder(url, study, said, tmp_path):
    Bucket(url).put("%2e%2e%2Foutside", b"x")
    Bucket(url).put("errors/..%2F..%2F..%2Foutside", b"x")
    with open_storage(url, warn=said.append) as place:
        found = [path.name for path in place.folder.rglob("*") if path.is_file()]
    assert found == []
    assert list(tmp_path.rglob("outside")) == []


def test_fresh_starts_beside_it(url, study, said):
    write(url, study, range(3), said)
    fresh = remote.unused_url(url)
    assert fresh == f"{url}-2"
    with open_storage(fresh, warn=said.append) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
    assert STUDY_FILE in Bucket(f"{url}-2").entries()
    assert names(url) == wanted(3)


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
        ("s3://bucket/a=b", "no good keys"),
        ("s3://bucket/a/../b", "no good keys"),
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
        assert place.is_local
        place.check()
    results_folder(tmp_path / "study", [run_line("0000", 1.0)])
    assert names(f"{prefix}{tmp_path}/study") == ["0000"]


class TestLease:
    """On the server's clock, which no host shares."""

    def test_what_a_lease_says_is_for_people_too(self, url):
        Lease(Bucket(url), "spool").take()
        found = json.loads(Bucket(url).get(lease.LEASE_KEY))
        assert found["spool"] == "spool"
        assert found["who"]

    def test_a_host_whose_clock_is_wrong_is_no_trouble(self, url, monkeypatch):
        first = Lease(Bucket(url), "one")
        first.take()
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 86_400)
        began = time.monotonic()
        Lease(Bucket(url), "two").take()
        assert time.monotonic() - began > FAST["STALE_S"] - 2
        with pytest.raises(lease.LeaseLostError, match="taken over by"):
            first.beat()

    def test_a_lease_that_cannot_be_read_ages(self, url):
        Bucket(url).put(lease.LEASE_KEY, b"nonsense")
        Lease(Bucket(url), "two").take()

    def test_one_given_back_is_taken_at_once_and_says_who_wrote_last(self, url):
        first = Lease(Bucket(url), "one")
        assert first.take() is None
        first.settle()
        first.release()
        began = time.monotonic()
        assert Lease(Bucket(url), "two").take() == "one"
        assert time.monotonic() - began < 2

    def test_one_that_brought_nothing_did_not_write_last(self, url):
        first = Lease(Bucket(url), "one")
        first.take()
        first.settle()
        first.release()
        killed = Lease(Bucket(url), "two")
        assert killed.take() == "one"
        assert Lease(Bucket(url), "two").take() == "one", "its next start"
        killed.release()
        assert not json.loads(Bucket(url).get(lease.LEASE_KEY))["released"], "another's by now"

    def test_of_two_that_take_it_at_once_one_gets_it(self, url):
        for number in range(5):
            bucket, together = Bucket(f"{url}/{number}"), threading.Barrier(2)

            def take(name, bucket=bucket, together=together):
                one = Lease(bucket, name)
                together.wait()
                try:
                    one.take()
                except UserError as error:
                    return str(error)
                one.beat()
                return name

            with ThreadPoolExecutor(2) as pool:
                got = list(pool.map(take, ["one", "two"]))
            assert sorted(len(one) > 3 for one in got) == [False, True], got
            assert "is in use by" in max(got, key=len)
