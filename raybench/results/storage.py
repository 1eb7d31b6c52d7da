"""Where a study is kept: a folder, or a URL with a folder of this machine in front of it.

All writing and reading is done in `StudyStorage.folder`. Of a local path or `file://` (a shared
folder, too: it can append) that is the place itself. Of an object store it is a spool in the
user's cache, which `sync.Sync` brings below the URL in the background.
"""

import hashlib
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from raybench.core.errors import StudyError, UserError
from raybench.results.bucket import Bucket, BucketError, check_url
from raybench.results.files import StudyFiles
from raybench.results.lease import Lease
from raybench.results.lock import StudyLock
from raybench.results.spool import LOGS, fetch_files, fetch_logs, key_of, log_of, names_of
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.results.sync import Sync

Warn = Callable[[str], None]


class StudyStorage:
    """A study's place; `with` it, so that all is uploaded in the end."""

    def __init__(
        self, folder: Path, sync: Sync | None = None, lock: StudyLock | None = None
    ) -> None:
        self.folder = folder
        """Where everything is written and read."""
        self._sync, self._lock = sync, lock

    @property
    def is_local(self) -> bool:
        """Whether the folder is the place itself."""
        return self._sync is None

    def check(self) -> None:
        """Raise StudyError if another driver has taken the URL over."""
        if self._sync is not None:
            self._sync.check()

    def close(self) -> None:
        """Upload what is left; StudyError names the folder that keeps what could not be."""
        try:
            if self._sync is not None:
                self._sync.close()
        finally:
            if self._lock is not None:
                self._lock.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except StudyError as problem:
            if error is None:
                raise
            error.add_note(str(problem))
            warn_on_screen(str(problem))  # the command prints the first error alone


def warn_on_screen(sentence: str) -> None:
    """Print a sentence on standard error."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


def is_url(out: str | Path) -> bool:
    """Return whether this is the URL of an object store, not a folder."""
    return "://" in str(out) and urlsplit(str(out)).scheme != "file"


def local_path(out: str | Path) -> Path:
    """Return the folder of a path or of `file://`."""
    if not str(out).startswith("file://"):
        return Path(out)
    parts = urlsplit(str(out))
    if parts.netloc not in ("", "localhost"):
        raise UserError(f"--out {out}: is on another host; write file:///FOLDER of this one.")
    return Path(unquote(parts.path))


def open_storage(
    out: str | Path, *, fresh: bool = False, warn: Warn = warn_on_screen
) -> StudyStorage:
    """Take a place for writing, with what an earlier driver left there, on whatever machine.

    `fresh`: a URL gets a number where a study is below it already (`choose_folder` does it for
    folders). `warn` gets sentences, from other threads, too. UserError says why a URL cannot be
    used: refused credentials, no bucket, another driver.
    """
    if not is_url(out):
        return StudyStorage(local_path(out))
    url = str(out)
    check_url(url)
    try:
        if fresh:
            url = _unused(url)
        return _open_url(url, warn)
    except BucketError as error:
        raise UserError(f"--out {error}") from None


def _open_url(url: str, warn: Warn) -> StudyStorage:
    home = cache_folder("spool", url)
    lock = StudyLock(home).__enter__()
    try:
        bucket, lease = Bucket(url), Lease(Bucket(url), _identity(home))
        last = lease.take()
        folder = home / "study"
        folder.mkdir(exist_ok=True)
        sync = Sync(folder, bucket, lease, warn)
        keys = list(bucket.entries())
        is_ours = last == _identity(home)
        bring(bucket, keys, folder, is_ours=is_ours, warn=warn)
        sync.start(keys)
    except BaseException:
        lock.__exit__()
        raise
    return StudyStorage(folder, sync, lock)


def bring(bucket: Bucket, keys: list[str], folder: Path, *, is_ours: bool, warn: Warn) -> None:
    """Bring what is below a URL into a folder, where the folder does not know better.

    `is_ours`: the folder's own driver wrote last, so the folder is ahead. Else what an earlier
    driver here did not upload stays if it follows on what is there; if not, because another driver
    went on meanwhile, it is put aside and its place is said.
    """
    there = fetch_logs(bucket, keys)
    if not is_ours and not all(_fits(folder / name, there.get(name, b"")) for name in LOGS):
        number = 1
        while (aside := folder.with_name(f"{folder.name}-not-uploaded-{number}")).exists():
            number += 1
        folder.replace(aside)
        folder.mkdir()
        warn(
            f"{bucket.url}: another driver went on where this machine's last one had records that "
            f"were not uploaded; they are kept in {aside}."
        )
    for name, content in there.items():
        here = _whole_lines(folder / name)
        if len(content) > len(here) and content.startswith(here):
            StudyFiles(folder).write_bytes(name, content)
    fetch_files(bucket, keys, folder, keep=is_ours)


def fetch(url: str) -> Path:
    """Return a folder with the study and its records as they are below a URL now; writes nothing.

    The folder is of readers alone, so a driver on this machine is not disturbed.
    """
    check_url(url)
    bucket, folder = Bucket(url), cache_folder("read", url)
    try:
        keys = list(bucket.entries())
        logs = fetch_logs(bucket, [key for key in keys if log_of(key) == RECORDS_FILE])
        if STUDY_FILE not in keys or RECORDS_FILE not in logs:
            raise UserError(f"{url}: holds no study; name the URL of one.")
        fetch_files(bucket, [STUDY_FILE], folder, keep=False)
    except BucketError as error:
        raise UserError(str(error)) from None
    StudyFiles(folder).write_bytes(RECORDS_FILE, logs[RECORDS_FILE])
    return folder


def publish(url: str, folder: Path) -> None:
    """Upload the files that a report made of `fetch`'s folder. Raises StudyError."""
    bucket = Bucket(url)
    try:
        for name in names_of(folder):
            if name != STUDY_FILE:
                bucket.put_file(key_of(name), folder / name)
    except BucketError as error:
        raise StudyError(f"{error} The report's files are in {folder}.") from None


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


def _unused(url: str) -> str:
    """Return the URL, or one beside it with a number, that no study is below."""
    path, mark, query = url.partition("?")
    path, number, found = path.rstrip("/"), 2, url
    while Bucket(found).entries():
        found = f"{path}-{number}{mark}{query}"
        number += 1
    return found
