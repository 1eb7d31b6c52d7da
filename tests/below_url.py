"""A study below a URL, as the tests of its storage write, continue and read it."""

import time

from raybench.report.study import load
from raybench.results.bucket import Bucket
from raybench.results.storage import open_storage
from raybench.results.store import STUDY_FILE, Store
from tests.made_results import run_line

WRITER = """
import time
from raybench.results import lock, storage
for name, value in {fast!r}.items():
    setattr(lock, name, value)
storage.LEASE_BEAT_S, storage.SYNC_S = 0.5, 0.5
from raybench.results.storage import open_storage
from raybench.results.store import Store
from tests.made_results import run_line
with open_storage({url!r}) as place, Store(place.folder) as store:
    store.write_text("study.yaml", {study!r})
    print("open", flush=True)
    for number in range(100_000):
        store.append(run_line(f"{{number:05d}}", 1.0, learning_rate=0.01))
        print(number, time.time(), flush=True)
        time.sleep(0.005)
"""


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


def wait_for(condition, seconds=120.0):
    """Return what is true in the end."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
