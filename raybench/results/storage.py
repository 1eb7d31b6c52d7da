"""Storage of a study: a folder, or a URL with a folder of this machine in front of it.

All writing and reading is done in `StudyStorage.folder`. Of a local path or `file://` (a shared
folder, too: it can append) that is the place itself. Of an object store it is a folder in the
user's cache, which is copied below the URL every `COPY_S` and at the end (`mirror.py`), and copied
back where another machine goes on.

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
from raybench.results.lease import BEAT_S, Lease, LeaseLostError
from raybench.results.lock import StudyLock
from raybench.results.mirror import Mirror, whole_lines
from raybench.results.mirror import fetch as fetch_all
from raybench.results.place import is_url, local_path
from raybench.results.store import RECORDS_FILE, STUDY_FILE, StudyFiles
from raybench.spec.errors import ErrorCode, StudyError, UserError


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
        raise UserError(f"--out {error}", ErrorCode.UNREACHABLE) from None
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
        wanted = (STUDY_FILE, RECORDS_FILE, *files)
        for name in wanted:
            (folder / name).unlink(missing_ok=True)  # of an earlier time
        for name in wanted:
            bucket.get_file(name, folder / name)
        if not all((folder / name).is_file() for name in (STUDY_FILE, RECORDS_FILE)):
            raise UserError(f"{url}: holds no study; name the URL of one.", ErrorCode.NOT_FOUND)
    except BucketError as error:
        raise UserError(str(error), ErrorCode.UNREACHABLE) from None
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
            f"{folder}: cannot be made ({error.strerror}); set XDG_CACHE_HOME to another.",
            ErrorCode.NOT_WRITABLE,
        ) from None
    return folder


def unused_url(url: str) -> str:
    """Return the URL, or one beside it with a number, that nothing is below."""
    path, mark, query = url.partition("?")
    path, number, found = path.rstrip("/"), 2, url
    try:
        while Bucket(found).list_keys():
            found = f"{path}-{number}{mark}{query}"
            number += 1
    except BucketError as error:
        raise UserError(f"--out {error}", ErrorCode.UNREACHABLE) from None
    return found


COPY_S = 30.0
"""Seconds between two copies below the URL."""
CLOSE_S = 30.0
"""Seconds for which a store that does not answer is asked at the end."""
RETRY_S = 5.0


class Copying:
    """A thread that copies a folder below a URL until it is closed."""

    def __init__(self, url: str, mirror: Mirror, lease: Lease, warn: Callable[[str], None]) -> None:
        self.mirror, self._url, self._lease, self._warn = mirror, url, lease, warn
        self._end = threading.Event()
        self._trouble = ""
        """What the last copy met with; said once."""
        self._fault: BaseException | None = None
        """Error that ended the thread before its time."""
        self._thread = threading.Thread(target=self._until_end, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise StudyError if the study was taken over; what else ended the copying is raised."""
        if isinstance(self._fault, LeaseLostError):
            kept = f"what this driver measured and did not upload is in {self.mirror.folder}"
            raise StudyError(f"{self._fault}; {kept}.")
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Copy what is left, trying for CLOSE_S, and give the lease back."""
        self._end.set()
        self._thread.join()
        self.check()
        ends, is_last = time.monotonic() + CLOSE_S, False
        while not is_last:
            is_last = time.monotonic() > ends
            try:
                self._copy()
                self._lease.release()
                return
            except LeaseLostError as lost:
                self._fault = lost
                self.check()
            except BucketError as error:
                if is_last:
                    raise StudyError(
                        f"{error} Nothing is lost: what is not uploaded is in "
                        f"{self.mirror.folder}, and the same command on this machine uploads it."
                    ) from None
                self._say(error, f"uploading what is left is tried for {CLOSE_S:g} s")
                time.sleep(min(RETRY_S, CLOSE_S / 3))

    def _copy(self) -> None:
        self._lease.beat()
        self.mirror.run()

    def _until_end(self) -> None:
        try:
            due = time.monotonic() + COPY_S
            while not self._end.wait(min(BEAT_S, COPY_S)):
                try:
                    self._lease.beat()
                    if self._trouble or time.monotonic() >= due:
                        self.mirror.run()
                        due = time.monotonic() + COPY_S
                except BucketError as error:
                    self._say(error, f"it is tried again, results are kept in {self.mirror.folder}")
                else:
                    if self._trouble:
                        self._warn(f"{self._url}: takes results again.")
                    self._trouble = ""
        except BaseException as error:  # noqa: BLE001 (a thread's: `check` raises it)
            self._fault = error
            is_said = isinstance(error, LeaseLostError | StudyError)
            reason = str(error).rstrip(".") if is_said else f"{error!r} ended the upload"
            self._warn(f"{reason}; results are kept in {self.mirror.folder} alone.")

    def _say(self, error: BucketError, what: str) -> None:
        """Say a trouble once, not of each attempt: an id in it may differ."""
        begin = str(error).rstrip(".")
        if (kind := begin.partition("(")[0] + what) != self._trouble:
            self._trouble = kind
            self._warn(f"{begin}; {what}.")


Warn = Callable[[str], None]


class StudyStorage:
    """A study's place, held by this process; `with` it, so that all is uploaded in the end."""

    def __init__(
        self, place: str, folder: Path, lock: StudyLock, copying: Copying | None = None
    ) -> None:
        self.place = place
        """Folder or URL that the user named."""
        self.folder = folder
        """Folder in which everything is written and read."""
        self._lock, self._copying = lock, copying

    def check(self) -> None:
        """Raise StudyError if another driver has taken the place over."""
        if self._copying is not None:
            self._copying.check()

    def forget(self) -> None:
        """Let the records below a URL become fewer: the folder's are about to be cleared."""
        if self._copying is not None:
            self._copying.mirror.forget()

    def close(self) -> None:
        """Upload what is left; StudyError names the folder that keeps what could not be."""
        try:
            if self._copying is not None:
                self._copying.close()
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
        raise UserError(f"--out {error}", ErrorCode.UNREACHABLE) from None


def _open_url(url: str, warn: Warn) -> StudyStorage:
    home = cache_folder("spool", url)
    lock = StudyLock(home).__enter__()
    try:
        bucket = Bucket(url)
        lease = Lease(bucket, _machine(home), say=warn)
        is_last = lease.take()
        try:
            folder = home / "study"
            folder.mkdir(exist_ok=True)
            mirror, keys = Mirror(folder, bucket, lease.check), bucket.list_keys()
            is_fetched = bring(bucket, keys, folder, is_last=is_last, warn=warn)
            mirror.resume(keys, is_fetched=is_fetched)
        except BaseException:
            with suppress(BucketError):  # if it cannot be given back, it ages
                lease.release()
            raise
        return StudyStorage(url, folder, lock, Copying(url, mirror, lease, warn))
    except BaseException:
        lock.__exit__()
        raise


def bring(bucket: Bucket, keys: Sequence[str], folder: Path, *, is_last: bool, warn: Warn) -> bool:
    """Bring what is below a URL into a folder, unless the folder has more records of the same
    study; return whether it was brought.

    `is_last`: the last driver that wrote there had this folder. No records there then means that
    the driver died before its first upload, not that the URL was emptied.

    Records here that do not follow on those there are put aside, and their place is said: another
    driver went on meanwhile, or the URL was emptied.
    """
    there = (bucket.get(RECORDS_FILE) or b"") if RECORDS_FILE in keys else b""
    here = whole_lines(folder / RECORDS_FILE)
    if len(here) > len(there) and here.startswith(there) and (there or is_last):
        return False
    if not there.startswith(here):
        why = "another driver went on where this machine's last one had records that were not "
        why += "uploaded"
        if not there:
            why = "holds no study any more; records of one are on this machine"
        _put_aside(folder, f"{bucket.url}: {why}", warn)
    fetch_all(bucket, keys, folder)
    return True


def _put_aside(folder: Path, why: str, warn: Warn) -> None:
    number = 1
    while (aside := folder.with_name(f"{folder.name}-not-uploaded-{number}")).exists():
        number += 1
    folder.replace(aside)
    warn(f"{why}; they are kept in {aside}.")


def _machine(home: Path) -> str:
    """Return a name of this machine's folder that no other has."""
    path = home / "id"
    if not path.is_file():
        StudyFiles(home).write_text(path.name, uuid.uuid4().hex)
    return path.read_text()
