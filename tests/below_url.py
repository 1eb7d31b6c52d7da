"""Helpers that write and read a study at a URL, and a fake bucket."""

from raybench.report.study import load
from raybench.results.storage import Bucket, open_storage
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store
from tests.made_results import run_line

WRITER = """
import time
from raybench.results import storage
storage.COPY_S = 0.5
from raybench.results.storage import open_storage
from raybench.results.store import Store
from tests.made_results import run_line
with open_storage({url!r}) as place, Store(place.folder) as store:
    store.write_text("study.yaml", {study!r})
    print("open", flush=True)
    for number in range(100_000):
        store.append(run_line(f"{{number:05d}}", 1.0, learning_rate=0.01))
        print(number, flush=True)
        time.sleep(0.005)
"""


def write(url, study, numbers, said):
    with open_storage(url, warn=said.append) as place, Store(place.folder) as store:
        store.write_text(STUDY_FILE, study)
        for number in numbers:
            store.append(run_line(f"{number:05d}", 1.0, learning_rate=0.01))
    return place.folder


def names(place):
    return list(load(place).runs)


def trial_names(count):
    return [f"{number:05d}" for number in range(count)]


def uploaded(url):
    """Return the number of record lines at a URL."""
    return (Bucket(url).get(RECORDS_FILE) or b"").count(b"\n")


class CrashError(Exception):
    """A simulated crash of the driver."""


class FakeBucket:
    """Bucket in memory that raises CrashError after `writes` writes."""

    def __init__(self, writes=10**9):
        self.url, self.objects, self.left = "s3://fake/study", {}, writes
        self.before = lambda: None

    def _begin(self):
        self.before()
        if not self.left:
            raise CrashError
        self.left -= 1

    def put(self, key, content):
        self._begin()
        self.objects[key] = content if isinstance(content, bytes) else content.read_bytes()

    def get(self, key):
        return self.objects.get(key)

    def get_file(self, key, path):
        if key in self.objects:
            path.write_bytes(self.objects[key])

    def delete(self, key):
        self._begin()
        self.objects.pop(key, None)

    def list_keys(self):
        return list(self.objects)
