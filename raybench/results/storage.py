"""Storage of a study: a folder, or a URL with a local folder in front of it.

All reading and writing is done in `StudyStorage.folder`. For a local path or `file://`, that is the
place that the user named. For an object store it is a folder in the user's cache, which is copied
below the URL every `COPY_S` seconds and at the end (`Mirror`), and copied back when another
machine resumes the study. Only one driver (the process that runs a study) may write there at a
time: a driver that finds records of another driver below the URL stops.

Readers of a URL use a separate copy in the user's cache.
"""

import hashlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from raybench.results.bucket import Bucket, BucketError, check_url
from raybench.results.place import StudyLock, is_url, local_path
from raybench.results.store import RECORDS_FILE, STUDY_FILE
from raybench.spec.errors import ErrorCode, StudyError, UserError
from raybench.stats.checkpoint import STATE_FILE


def study_file(place: str) -> Path | None:
    """Return the path of the `study.yaml` at a place, for a URL that of a local copy; None if there
    is none."""
    folder = _read_copy(place, [STUDY_FILE]) if is_url(place) else local_path(place)
    return folder / STUDY_FILE if (folder / STUDY_FILE).is_file() else None


def fetch(url: str, files: Sequence[str] = ()) -> Path:
    """Copy a study from a URL into a folder that only readers use; return the folder.

    Args:
        url: URL of the study.
        files: Further files to copy if they exist, in addition to the study and its records.

    Raises:
        UserError: The URL holds no study, or cannot be read.
    """
    folder = _read_copy(url, [STUDY_FILE, RECORDS_FILE, *files])
    if not all((folder / name).is_file() for name in (STUDY_FILE, RECORDS_FILE)):
        raise UserError(f"{url}: holds no study; name the URL of one.", ErrorCode.NOT_FOUND)
    return folder


def _read_copy(url: str, names: Sequence[str]) -> Path:
    """Return the readers' folder of a URL, with new copies of the files that exist there."""
    check_url(url)
    bucket, folder = Bucket(url), cache_folder("read", url)
    try:
        for name in names:
            (folder / name).unlink(missing_ok=True)
            bucket.get_file(name, folder / name)
    except BucketError as error:
        raise UserError(str(error), ErrorCode.UNREACHABLE) from None
    return folder


def cache_folder(kind: str, url: str) -> Path:
    """Return the folder in the user's cache for a URL; `kind` is its use, `read` or `spool`."""
    import pooch  # late import: slow, and not needed for local folders

    readable = re.sub(r"[^\w.-]+", "-", check_url(url), flags=re.ASCII).strip("-.")[-60:]
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:10]
    folder = Path(pooch.os_cache("raybench")) / kind / f"{readable}-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be made ({error.strerror}); set XDG_CACHE_HOME to another.",
            ErrorCode.NOT_WRITABLE,
        ) from None
    return folder


def unused_url(url: str) -> str:
    """Return a URL without objects below it: the given URL, or that URL with a number appended."""
    path, mark, query = url.partition("?")
    path, number, unused = path.rstrip("/"), 2, url
    try:
        while Bucket(unused).list_keys():
            unused = f"{path}-{number}{mark}{query}"
            number += 1
    except BucketError as error:
        raise UserError(f"--out {error}", ErrorCode.UNREACHABLE) from None
    return unused


JOURNAL = "optuna.log"
LOCAL_NAMES = ("study.lock", "optuna.log.lock", "optuna.log.damaged")
"""Prefixes of the names of files that are not copied, in addition to hidden and partial files."""
FETCHERS = 16
"""Number of objects that are fetched at the same time."""
Stamp = tuple[int, int]
"""Modification time in ns and size in bytes; an unchanged file keeps both."""


class Mirror:
    """Mirrors a study's folder to a URL (object store). Not thread-safe.

    Object stores cannot append, so a file that grew is written again as a whole. What a reader or
    another driver finds below the URL is always usable:

    - A log (`records.jsonl`, or Optuna's journal `optuna.log`) ends with a complete line. The
      journal is read before the records and written after them, so it has no run that the records
      lack.
    - `state.json` of a checkpoint holds the digest of the weights, so an incomplete copy of a
      checkpoint is recognized as damaged, and the previous checkpoint is used.

    A driver that finds records of another driver below the URL changes nothing there, because the
    other driver has resumed the study.
    """

    def __init__(self, folder: Path, bucket: Bucket, keys: Sequence[str] = ()) -> None:
        """Prepare the mirror; `keys` are the objects that an earlier driver left below the URL."""
        self.folder, self._bucket = folder, bucket
        self._copied: dict[str, Stamp | None] = dict.fromkeys(filter(is_copied, keys))
        """Stamps of the files that are copied below the URL, by relative path; None if unknown."""
        self._may_shrink = False

    def forget(self) -> None:
        """Allow the records to become fewer, since they are about to be deleted."""
        self._may_shrink = True

    def run(self) -> None:
        """Copy files that have changed, and delete copies of files that are gone.

        Raises:
            BucketError: The store did not answer; the next call continues the copying.
            StudyError: Another driver (process that runs the study) has written below the URL, or
                records have disappeared without a call of `forget`.
        """
        if not (self.folder / STUDY_FILE).is_file():
            return  # not started, or deleted by mistake; then the copy is all that is left
        journal = whole_lines(self.folder / JOURNAL)
        files = files_of(self.folder)
        if files == self._copied:
            return
        self._check_records_there()
        for name in [copied for copied in self._copied if copied not in files]:
            self._bucket.delete(name)
            del self._copied[name]
        for name in sorted(files, key=_order):
            if self._copied.get(name) != files[name]:
                self._put(name, journal)
                self._copied[name] = files[name]

    def _put(self, name: str, journal: bytes) -> None:
        if name == RECORDS_FILE:
            self._bucket.put(name, whole_lines(self.folder / name))
            self._may_shrink = False
        elif name == JOURNAL:
            self._bucket.put(name, journal)
        else:
            with suppress(FileNotFoundError):  # deleted just now: the next call sees it
                self._bucket.put(name, self.folder / name)

    def _check_records_there(self) -> None:
        """Raise StudyError if the remote records are not a prefix of the local ones."""
        uploaded = b"" if self._may_shrink else self._bucket.get(RECORDS_FILE) or b""
        if not whole_lines(self.folder / RECORDS_FILE).startswith(uploaded):
            raise StudyError(
                f"{self._bucket.url}: the study was taken over by another driver, whose records "
                f"stay there; what this driver measured and did not upload is in {self.folder}."
            )


def fetch_all(bucket: Bucket, keys: Sequence[str], folder: Path) -> None:
    """Replace the content of a folder with the objects below a URL."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)

    def fetch_one(name: str) -> None:
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        bucket.get_file(name, partial / name)

    with ThreadPoolExecutor(FETCHERS) as pool:
        list(pool.map(fetch_one, filter(is_copied, keys)))
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def files_of(folder: Path) -> dict[str, Stamp]:
    """Return the stamp (modification time, size) of each file to copy, by relative path."""
    stamps: dict[str, Stamp] = {}
    for top, _, files in os.walk(folder):
        for path in (Path(top) / file for file in files):
            name = path.relative_to(folder).as_posix()
            if is_copied(name):
                with suppress(FileNotFoundError):  # deleted just now
                    status = path.stat()
                    stamps[name] = status.st_mtime_ns, status.st_size
    return stamps


def is_copied(name: str) -> bool:
    """Return whether the file with a relative path is copied.

    Other keys are not fetched either, since a path such as `../x` would lie outside the folder.
    """
    is_odd = any(not part or part.startswith(".") for part in name.split("/"))
    return not is_odd and "\0" not in name and not name.startswith(LOCAL_NAMES)


def whole_lines(path: Path) -> bytes:
    """Return the complete lines of a log; empty if there are none, or if there is no file."""
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def _order(name: str) -> int:
    """Return the sort key for the order of copying: `study.yaml` is first, since without it there
    is no study; the weights of a checkpoint precede its state."""
    if name in (STUDY_FILE, RECORDS_FILE, JOURNAL):
        return (STUDY_FILE, RECORDS_FILE, JOURNAL).index(name)
    return 4 if name.endswith(STATE_FILE) else 3


COPY_S = 30.0
"""Seconds between two copies below the URL."""
PROBE = ".raybench"
"""Object that is written and deleted at the start, so that a missing bucket or refused credentials
are found before anything trains."""


Warn = Callable[[str], None]


class StudyStorage:
    """Context manager of a study's folder, which this process has locked."""

    def __init__(self, place: str, folder: Path, lock: StudyLock) -> None:
        self.place = place
        """Folder or URL that the user named."""
        self.folder = folder
        """Folder in which everything is read and written."""
        self._lock = lock

    def check(self) -> None:
        """Raise StudyError if another process that runs the study has taken it over."""

    def forget(self) -> None:
        """Allow records to disappear, since they are about to be deleted."""

    def close(self) -> None:
        """Release the folder; for a URL, first upload what is left.

        Raises:
            StudyError: Files could not be uploaded; the message names the folder that has them.
        """
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
                warn_on_screen(str(problem))  # the command prints only the first error


class CopiedStorage(StudyStorage):
    """Storage below a URL: until it is closed, a thread copies the local folder there."""

    def __init__(
        self, url: str, folder: Path, lock: StudyLock, *, mirror: Mirror, warn: Warn
    ) -> None:
        super().__init__(url, folder, lock)
        self._mirror, self._warn = mirror, warn
        self._end = threading.Event()
        self._is_failing = False
        """Whether the last attempt to copy failed, which has been reported."""
        self._fault: BaseException | None = None
        """Error that ended the thread."""
        self._thread = threading.Thread(target=self._copy_until_end, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if any: StudyError if another process that runs
        the study has taken it over."""
        if self._fault is not None:
            raise self._fault

    def forget(self) -> None:
        """Allow records below the URL to disappear."""
        self._mirror.forget()

    def close(self) -> None:
        """Upload what is left and release the folder."""
        self._end.set()
        self._thread.join()
        try:
            self.check()
            self._mirror.run()
        except BucketError as error:
            raise StudyError(
                f"{error} Nothing is lost: what is not uploaded is in {self.folder}, and the same "
                "command on this machine uploads it."
            ) from None
        finally:
            super().close()

    def _copy_until_end(self) -> None:
        try:
            while not self._end.wait(COPY_S):
                try:
                    self._mirror.run()
                except BucketError as error:
                    if not self._is_failing:
                        self._warn(f"{error} It is tried again; results are kept in {self.folder}.")
                    self._is_failing = True
                else:
                    if self._is_failing:
                        self._warn(f"{self.place}: takes results again.")
                    self._is_failing = False
        except BaseException as error:  # noqa: BLE001 (in a thread; `check` raises it)
            self._fault = error
            reason = f"{error!r} ended the upload"
            if isinstance(error, StudyError):
                reason = str(error).rstrip(".")
            self._warn(f"{reason}; results are kept only in {self.folder}.")


def warn_on_screen(sentence: str) -> None:
    """Print a sentence on standard error."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


def open_storage(place: str | Path, *, warn: Warn = warn_on_screen) -> StudyStorage:
    """Open a place for writing, and for a URL, fetch the results that are already there.

    Args:
        place: Folder or URL.
        warn: Called with each warning (a sentence), possibly from another thread.

    Raises:
        UserError: The place cannot be used: credentials are refused, the bucket is missing, or
            another process is writing there.
    """
    if not is_url(place):
        folder = local_path(place)
        return StudyStorage(str(folder), folder, StudyLock(folder).__enter__())
    url = str(place)
    home, bucket = cache_folder("spool", url), Bucket(url)
    folder = home / "study"
    with ExitStack() as undo:
        lock = undo.enter_context(StudyLock(home))
        try:
            bucket.put(PROBE, b"")
            bucket.delete(PROBE)
            folder.mkdir(exist_ok=True)
            keys = bucket.list_keys()
            bring(bucket, keys, folder)
        except BucketError as error:
            raise UserError(f"--out {error}", ErrorCode.UNREACHABLE) from None
        undo.pop_all()
    return CopiedStorage(url, folder, lock, mirror=Mirror(folder, bucket, keys), warn=warn)


def bring(bucket: Bucket, keys: Sequence[str], folder: Path) -> None:
    """Copy a URL's objects into a folder, unless the folder has more records of the same study.

    Raises:
        UserError: The folder has records that the URL lacks, because another driver (process that
            runs a study) resumed the study.
    """
    uploaded = (bucket.get(RECORDS_FILE) or b"") if RECORDS_FILE in keys else b""
    local = whole_lines(folder / RECORDS_FILE)
    if len(local) > len(uploaded) and local.startswith(uploaded):
        return
    if not uploaded.startswith(local):
        raise UserError(
            f"--out {bucket.url}: another driver went on where this machine's last one had records "
            f"that were not uploaded; move {folder} away to go on with what is at the URL.",
            ErrorCode.CONFLICT,
        )
    fetch_all(bucket, keys, folder)
