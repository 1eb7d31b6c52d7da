"""Storage of a study: a folder, or a URL with a folder of this machine in front of it.

All writing and reading is done in `StudyStorage.folder`. Of a local path or `file://` (a shared
folder, too: it can append) that is the place itself. Of an object store it is a spool in the
user's cache, which `Sync` brings below the URL in the background.

Readers of a URL have a copy of their own in the user's cache.
"""

import hashlib
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from raybench.results.bucket import Bucket, BucketError, check_url
from raybench.results.lock import LEASE_BEAT_S, Lease, LeaseLostError, StudyLock
from raybench.results.place import is_url, local_path
from raybench.results.staging import (
    LOGS,
    CheckpointUpload,
    Upload,
    cleared_mark,
    fetch_checkpoints,
    fetch_files,
    fetch_logs,
    log_of,
)
from raybench.results.store import RECORDS_FILE, STUDY_FILE, StudyFiles
from raybench.spec.errors import StudyError, UserError


def study_file(place: str) -> Path | None:
    """Return the `study.yaml` of a place, or a copy of it, to read; None where there is none."""
    if not is_url(place):
        file = local_path(place) / STUDY_FILE
        return file if file.is_file() else None
    check_url(place)
    folder = cache_folder("read", place)
    try:
        content = Bucket(place).get(STUDY_FILE)
    except BucketError as error:
        raise UserError(f"--out {error}") from None
    if content is None:
        return None
    StudyFiles(folder).write_bytes(STUDY_FILE, content)
    return folder / STUDY_FILE


def fetch(url: str, files: Sequence[str] = ()) -> Path:
    """Return a folder with the study and its records as they are below a URL now; writes nothing.

    With those of `files` that are there. The folder is of readers alone, so a driver on this
    machine is not disturbed. UserError if the URL holds no study, or cannot be read.
    """
    check_url(url)
    bucket, folder = Bucket(url), cache_folder("read", url)
    try:
        keys = list(bucket.entries())
        logs = fetch_logs(bucket, [key for key in keys if log_of(key) == RECORDS_FILE])
        if STUDY_FILE not in keys or RECORDS_FILE not in logs:
            raise UserError(f"{url}: holds no study; name the URL of one.")
        for name in files:
            (folder / name).unlink(missing_ok=True)  # of an earlier time
        wanted = [STUDY_FILE, *(name for name in files if name in keys)]
        fetch_files(bucket, wanted, folder, keep=False)
    except BucketError as error:
        raise UserError(str(error)) from None
    StudyFiles(folder).write_bytes(RECORDS_FILE, logs[RECORDS_FILE])
    return folder


def cache_folder(kind: str, url: str) -> Path:
    """Return this machine's folder for a URL; the same one every time."""
    import pooch  # slow: not for local folders

    words = re.sub(r"[^\w.-]+", "-", check_url(url), flags=re.ASCII).strip("-.")[-60:]
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:10]
    folder = Path(pooch.os_cache("raybench")) / kind / f"{words}-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder that can."
        ) from None
    return folder


def unused_url(url: str) -> str:
    """Return the URL, or one beside it with a number, that nothing is below."""
    path, mark, query = url.partition("?")
    path, number, found = path.rstrip("/"), 2, url
    try:
        while Bucket(found).entries():
            found = f"{path}-{number}{mark}{query}"
            number += 1
    except BucketError as error:
        raise UserError(f"--out {error}") from None
    return found


SYNC_S = 2.0
"""Seconds after which a change is uploaded, or on its way."""
RETRY_S = 5.0
CLOSE_S = 30.0
"""Seconds for which a store that does not answer is asked at the end."""


class Sync:
    """Three threads, because an upload may take minutes: records, checkpoints, the lease."""

    def __init__(self, folder: Path, url: str, lease: Lease, warn: Callable[[str], None]) -> None:
        self.folder, self._lease, self._warn = folder, lease, warn
        self._bucket = Bucket(url, self._may_write)
        self._upload = Upload(folder, self._bucket)
        self._checkpoints = CheckpointUpload(folder, self._bucket)
        self._end = threading.Event()
        self._troubles: dict[str, str] = {}
        """Trouble that the last round of a thread met, already said."""
        self._saying = threading.Lock()
        self._fault: BaseException | None = None
        """Error that ended the threads before their time."""
        self._threads = [
            threading.Thread(target=self._until_end, args=[name, work, pause], daemon=True)
            for name, work, pause in (
                ("records", self._upload.run, SYNC_S),
                ("checkpoints", self._checkpoints.run, SYNC_S),
                ("lease", lease.beat, LEASE_BEAT_S),
            )
        ]

    def start(self, keys: Sequence[str]) -> None:
        """Start; `keys` are the objects that are there."""
        self._upload.resume(keys)
        self._checkpoints.resume(keys)
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise StudyError if the study was taken over; what else ended a thread is raised, too."""
        if isinstance(self._fault, LeaseLostError):
            raise StudyError(
                f"{self._fault}; what this driver measured and did not upload is in {self.folder}."
            )
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Upload what is left, trying for CLOSE_S, and give the lease back."""
        self._end.set()
        for thread in self._threads:
            thread.join()
        self.check()
        deadline = time.monotonic() + CLOSE_S
        waiting = f"uploading what is left is tried for {CLOSE_S:g} s."
        has_said = bool(self._troubles)
        if has_said:
            self._warn(f"{self._bucket.url}: {waiting}")
        while True:
            try:
                self._may_write()
                self._upload.run()
                self._checkpoints.run()
                self._lease.release()
                return
            except LeaseLostError as lost:
                self._fault = lost
                self.check()
            except BucketError as error:
                if time.monotonic() > deadline:
                    raise StudyError(
                        f"{error} Nothing is lost: what is not uploaded is in {self.folder}, and "
                        "the same command on this machine uploads it."
                    ) from None
                if not has_said:
                    self._warn(f"{_begin(error)}; {waiting}")
                has_said = True
                time.sleep(min(RETRY_S, CLOSE_S / 3))

    def _until_end(self, name: str, work: Callable[[], None], pause: float) -> None:
        try:
            while not self._end.wait(pause):
                try:
                    if name in self._troubles:
                        self._lease.beat()  # a round without news asks the store for nothing
                    work()
                except BucketError as error:
                    self._say(name, error)
                    self._end.wait(RETRY_S - SYNC_S)
                else:
                    self._say_well(name)
        except BaseException as error:  # noqa: BLE001 (a thread's: `check` raises it)
            self._fault = self._fault or error
            self._end.set()
            is_said = isinstance(error, LeaseLostError | StudyError)
            reason = str(error).rstrip(".") if is_said else f"{error!r} ended the upload"
            with self._saying:
                if self._fault is error:
                    self._warn(f"{reason}; results are kept in {self.folder} alone.")

    def _may_write(self) -> None:
        """Ask the lease before each object, if it may have been taken over meanwhile."""
        if not self._lease.is_held:
            self._lease.beat()

    def _say(self, name: str, error: BucketError) -> None:
        """Say a trouble once, not of each attempt and thread: an id in it may differ."""
        kind = _begin(error).partition("(")[0]
        with self._saying:
            is_new = kind not in self._troubles.values()
            self._troubles[name] = kind
        if is_new:
            self._warn(f"{_begin(error)}; it is tried again, results are kept in {self.folder}.")

    def _say_well(self, name: str) -> None:
        with self._saying:
            had_trouble = self._troubles.pop(name, None) is not None
            is_well = had_trouble and not self._troubles
        if is_well:
            self._warn(f"{self._bucket.url}: takes results again; everything is uploaded.")


def _begin(error: BucketError) -> str:
    """Return the sentence of an error, to be gone on with."""
    return str(error).rstrip(".")


Warn = Callable[[str], None]


class StudyStorage:
    """A study's place, held by this process; `with` it, so that all is uploaded in the end."""

    def __init__(self, place: str, folder: Path, lock: StudyLock, sync: Sync | None = None) -> None:
        self.place = place
        """Folder or URL that the user named."""
        self.folder = folder
        """Folder in which everything is written and read."""
        self._lock, self._sync = lock, sync

    def check(self) -> None:
        """Raise StudyError if another driver has taken the place over."""
        if self._sync is not None:
            self._sync.check()

    def forget(self) -> None:
        """Let the records below a URL be deleted: the folder's are about to be (`Store.clear`)."""
        if self._sync is not None:
            cleared_mark(self.folder).touch()

    def close(self) -> None:
        """Upload what is left; StudyError names the folder that keeps what could not be."""
        try:
            if self._sync is not None:
                self._sync.close()
        finally:
            self._lock.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except StudyError as problem:
            if error is None:
                raise
            if str(problem) != str(error):
                warn_on_screen(str(problem))  # the command prints the first error alone


def warn_on_screen(sentence: str) -> None:
    """Print a sentence on standard error."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


def open_storage(place: str | Path, *, warn: Warn = warn_on_screen) -> StudyStorage:
    """Take a place for writing, with what an earlier driver left there, on whatever machine.

    `warn` gets sentences, from other threads, too. UserError says why the place cannot be used:
    refused credentials, no bucket, another driver.
    """
    if not is_url(place):
        folder = local_path(place)
        return StudyStorage(str(folder), folder, StudyLock(folder).__enter__())
    url = str(place)
    check_url(url)
    try:
        return _open_url(url, warn)
    except BucketError as error:
        raise UserError(f"--out {error}") from None


def _open_url(url: str, warn: Warn) -> StudyStorage:
    home = cache_folder("spool", url)
    lock = StudyLock(home).__enter__()
    try:
        bucket = Bucket(url)
        lease = Lease(bucket, _identity(home), say=warn)
        last = lease.take()
        try:
            folder = home / "study"
            folder.mkdir(exist_ok=True)
            sync = Sync(folder, url, lease, warn)
            keys = list(bucket.entries())
            bring(bucket, keys, folder, last=last, own=_identity(home), warn=warn)
            lease.settle()
            sync.start(keys)
        except LeaseLostError as lost:
            raise UserError(f"{lost}; wait for it, or name another place with --out.") from None
        except BaseException:
            # The lease still says who wrote last. If it cannot be given back, it ages.
            with suppress(BucketError):
                lease.release()
            raise
    except BaseException:
        lock.__exit__()
        raise
    return StudyStorage(url, folder, lock, sync)


def bring(
    bucket: Bucket, keys: list[str], folder: Path, *, last: str | None, own: str, warn: Warn
) -> None:
    """Bring what is below a URL into a folder, where the folder does not know better.

    Where `last`, who wrote there last, is the folder's `own` driver, the folder is ahead, unless
    its records say otherwise. Else what an earlier driver here did not upload stays if it follows
    on what is there; if not, because another driver went on meanwhile or the URL was emptied, it is
    put aside and its place is said.
    """
    there, cleared = fetch_logs(bucket, keys), cleared_mark(folder)
    follows = _whole_lines(folder / RECORDS_FILE).startswith(there.get(RECORDS_FILE, b""))
    is_ahead = last == own and (follows or cleared.exists())
    why = ""
    if last is None and not there and any(_whole_lines(folder / name) for name in LOGS):
        why = "holds no study any more; records of one are on this machine"
    elif not is_ahead and not all(_fits(folder / name, there.get(name, b"")) for name in LOGS):
        why = "another driver went on where this machine's last one had records that were not "
        why += "uploaded"
    if why:
        _put_aside(folder, f"{bucket.url}: {why}", warn)
    if not is_ahead or not (folder / STUDY_FILE).is_file():
        fetch_checkpoints(bucket, keys, folder)
    for name, content in there.items():
        here = _whole_lines(folder / name)
        if len(content) > len(here) and content.startswith(here):
            StudyFiles(folder).write_bytes(name, content)
    fetch_files(bucket, keys, folder, keep=is_ahead)
    if _fits(folder / RECORDS_FILE, there.get(RECORDS_FILE, b"")):
        cleared.unlink(missing_ok=True)  # nothing there is to be deleted any more


def _put_aside(folder: Path, why: str, warn: Warn) -> None:
    number = 1
    while (aside := folder.with_name(f"{folder.name}-not-uploaded-{number}")).exists():
        number += 1
    folder.replace(aside)
    folder.mkdir()
    warn(f"{why}; they are kept in {aside}.")


def _fits(path: Path, there: bytes) -> bool:
    """Return whether one of the two logs, here and there, is a beginning of the other."""
    here = _whole_lines(path)
    return here.startswith(there) or there.startswith(here)


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def _identity(home: Path) -> str:
    """Return a name of this machine's spool that no other has."""
    path = home / "id"
    if not path.is_file():
        StudyFiles(home).write_text(path.name, uuid.uuid4().hex)
    return path.read_text()
