"""Storage of a study: a local folder, or the URL of an object store (`s3://`, `gs://`, ...).

A study always reads and writes its files in the local folder `StudyStorage.folder`. For a local
path or a `file://` URL, it is the folder that the user named. For an object store, it is a folder
in the user's cache: `Mirror` copies it to the URL every `COPY_S` seconds and at the end, and it is
copied back when another machine resumes the study. Only one driver (the process that runs a study)
may write to a URL at a time; a driver that finds records of another driver there stops.

Commands that only read a study at a URL use a separate copy in the user's cache. Credentials are
found in the same places as by the store's own tools: environment variables, a profile, or the
machine.
"""

import hashlib
import importlib
import io
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from raybench.results.place import StudyLock, check_folder, is_url, local_path
from raybench.results.store import DIAGNOSIS, RECORDS_FILE, STUDY_FILE
from raybench.spec.errors import ErrorCode, StudyError, UserError
from raybench.spec.text import clean, redact_text, shorten
from raybench.stats.checkpoint import STATE_FILE

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
CHUNK = 2**20
"""Number of bytes per read and write when a file is copied."""


class BucketError(Exception):
    """Raised if a request to the object store fails; it may be repeated. The message is a
    sentence."""


class Bucket:
    """The objects below a URL of an object store; keys are relative to the URL.

    All methods raise BucketError if a request to the store fails.
    """

    def __init__(self, url: str) -> None:
        """Set up access to the object store, without connecting yet.

        Raises:
            UserError: The URL is invalid.
        """
        self.url, self._where = url.rstrip("/"), check_url(url)
        self._system: Any = None

    def put(self, key: str, content: bytes | Path) -> None:
        """Write an object; readers see either the complete new object or the previous one.

        Args:
            key: Key of the object.
            content: Content of the object, or the path of a file with the content.

        Raises:
            OSError: The file cannot be opened.
        """
        with (
            io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file,
            self._file_system() as system,
            system.open_output_stream(self._path(key)) as stream,
        ):
            shutil.copyfileobj(file, stream, CHUNK)

    def get(self, key: str) -> bytes | None:
        """Return the content of an object; None if there is no such object."""
        with self._file_system() as system:
            try:
                with system.open_input_stream(self._path(key)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to the file `path`, which is created only when the copy is complete.

        Nothing is written if there is no such object.
        """
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with self._file_system() as system, suppress(FileNotFoundError):
            with system.open_input_stream(self._path(key)) as stream, partial.open("wb") as file:
                shutil.copyfileobj(stream, file, CHUNK)
            partial.replace(path)

    def list_keys(self) -> list[str]:
        """Return the keys of all objects."""
        fs = _filesystems()
        with self._file_system() as system:
            selector = fs.FileSelector(self._where, recursive=True, allow_not_found=True)
            infos = system.get_file_info(selector)
        files = (info.path for info in infos if info.type == fs.FileType.File)
        return [path.removeprefix(self._path("")) for path in files]

    def delete(self, key: str) -> None:
        """Delete an object, if there is one."""
        with self._file_system() as system, suppress(FileNotFoundError):
            system.delete_file(self._path(key))

    def _path(self, key: str) -> str:
        return f"{self._where}/{key}"

    @contextmanager
    def _file_system(self) -> Iterator[Any]:
        """Context manager that yields the store's file system (`pyarrow.fs.FileSystem`), and turns
        an OSError into a BucketError."""
        try:
            if self._system is None:
                self._system, self._where = _connect(self.url)
            yield self._system
        except OSError as error:
            self._system = None  # the next request reads the credentials again
            place = urlsplit(self.url)._replace(query="").geturl()
            raise BucketError(_error_message(place, error)) from None


def check_url(url: str) -> str:
    """Check the URL of a results folder without contacting the store, and return its `bucket/path`.

    The path is preliminary, because pyarrow resolves the URL when it connects: for example,
    `abfs://CONTAINER@HOST/x` becomes `CONTAINER/x`.

    Raises:
        UserError: The URL has an unknown scheme, contains credentials, or names no folder.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise UserError(
            f"--out {parts.scheme}://: is not a known store; write a folder, file://, "
            f"{', '.join(f'{scheme}://' for scheme in SCHEMES)}.",
            ErrorCode.UNKNOWN_NAME,
        )
    host, _, path = f"{parts.netloc}{unquote(parts.path)}".rstrip("/").partition("/")
    is_user = "@" in host and parts.scheme not in ("abfs", "abfss")
    if is_user or parts.password is not None or redact_text(parts.query, {}) != parts.query:
        raise UserError(
            f"--out {parts.scheme}://***: contains credentials; set them in environment variables, "
            "as for the store's own tools.",
            ErrorCode.INVALID_VALUE,
        )
    if not host or not path:
        raise UserError(
            f"--out {url}: names no folder; write {parts.scheme}://BUCKET/FOLDER.",
            ErrorCode.INVALID_VALUE,
        )
    # Ray and Hive read `key=value` in a path as a partition (ray#29845).
    if "=" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise UserError(
            f"--out {url}: '=', '//' and '..' are not allowed; name another folder.",
            ErrorCode.INVALID_VALUE,
        )
    return f"{host}/{path}"


def _connect(url: str) -> tuple[Any, str]:
    """Return the file system of a URL (`pyarrow.fs.FileSystem`), and the path of the URL in it."""
    if url.startswith("s3:"):
        # A small object takes one request, a multipart upload three.
        url += f"{'&' if '?' in url else '?'}allow_delayed_open=true"
    try:
        system, path = _filesystems().FileSystem.from_uri(url)
    except (ValueError, NotImplementedError) as error:  # probably an invalid option in the URL
        raise UserError(
            f"--out {url}: {shorten(clean(str(error)), 200)}; correct the URL.",
            ErrorCode.INVALID_VALUE,
        ) from None
    where = str(path).strip("/")
    if "/" not in where:  # such as from abfs://HOST/CONTAINER
        raise UserError(
            f"--out {url}: names no folder; write one below it.", ErrorCode.INVALID_VALUE
        )
    return system, where


def _filesystems() -> Any:
    """Import and return `pyarrow.fs`.

    It is imported late because few commands need it, and its type is Any because it has no type
    annotations.
    """
    return importlib.import_module("pyarrow.fs")


def _error_message(url: str, error: OSError) -> str:
    """Return the message for an error of an object store, without secrets."""
    reason = shorten(redact_text(clean(str(error)), os.environ), 200)
    return f"{url}: cannot be used ({reason}); check that the bucket exists, and the credentials."


def check_place(place: str) -> str:
    """Check that results can be written to a place; an object store is not contacted.

    Returns:
        The URL of an object store unchanged; the local path of a folder or `file://` URL.

    Raises:
        UserError: Results cannot be written there.
    """
    if is_url(place):
        check_url(place)
        return place
    folder = local_path(place)
    check_folder(folder)
    return str(folder)


def study_file(place: str) -> Path | None:
    """Return the local path of the `study.yaml` at a place; None if there is no such file.

    If the place is a URL, the file is copied to a local folder first.
    """
    folder = _read_copy(place, [STUDY_FILE]) if is_url(place) else local_path(place)
    return folder / STUDY_FILE if (folder / STUDY_FILE).is_file() else None


def fetch(url: str, files: Sequence[str]) -> Path:
    """Copy a study from a URL into a local folder; return the folder.

    The copy is only for reading: changes to it are never uploaded.

    Args:
        url: URL of the study.
        files: Further files to copy if they exist, in addition to the study and its records.

    Raises:
        UserError: There is no study at the URL, or it cannot be read.
    """
    folder = _read_copy(url, [STUDY_FILE, RECORDS_FILE, DIAGNOSIS, *files])
    if not all((folder / name).is_file() for name in (STUDY_FILE, RECORDS_FILE)):
        raise UserError(f"{url}: contains no study; name the URL of a study.", ErrorCode.NOT_FOUND)
    return folder


def _read_copy(url: str, names: Sequence[str]) -> Path:
    """Copy the files `names` that exist at a URL into the local folder in which they are read;
    return the folder."""
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
    """Create and return the folder in the user's cache for a URL.

    Args:
        kind: Use of the folder: `read` for commands that only read the study, `spool` for the
            process that runs it.
        url: URL of the study.
    """
    import pooch  # late import: slow, and not needed for local folders

    readable = re.sub(r"[^\w.-]+", "-", check_url(url), flags=re.ASCII).strip("-.")[-60:]
    digest = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:10]
    folder = Path(pooch.os_cache("raybench")) / kind / f"{readable}-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be created ({error.strerror}); set XDG_CACHE_HOME to another "
            "folder.",
            ErrorCode.NOT_WRITABLE,
        ) from None
    return folder


def unused_url(url: str) -> str:
    """Return a URL below which there are no objects yet: `url`, or `url` with a number appended."""
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
"""Name of Optuna's journal file, which contains the trials of the search."""
LOCAL_NAMES = ("study.lock", "optuna.log.lock", "optuna.log.damaged")
"""Prefixes of the names of files that are not copied to a URL, in addition to hidden files."""
FETCHERS = 16
"""Number of objects that are fetched at the same time."""
Stamp = tuple[int, int]
"""Modification time in nanoseconds and size in bytes, by which changed files are detected."""


class Mirror:
    """Mirrors the folder of a study to the URL of an object store; not thread-safe.

    Object stores cannot append to an object, so a file that has grown is written again as a whole.
    The copy at the URL can be read at any time:

    - The logs (`records.jsonl` and Optuna's journal `optuna.log`) end with a complete line. The
      journal is read before the records and written after them, so it never has a run that the
      records lack.
    - An incomplete copy of a checkpoint is recognized, because `state.json` contains the digest of
      the weights. The previous checkpoint is then used.

    If the records at the URL are from another driver, that driver has resumed the study, and
    nothing at the URL is changed.
    """

    def __init__(self, folder: Path, bucket: Bucket, keys: Sequence[str] = ()) -> None:
        """Prepare the mirror.

        Args:
            folder: Local folder of the study.
            bucket: The URL to copy to.
            keys: Keys of the objects that an earlier driver has left at the URL.
        """
        self.folder, self._bucket = folder, bucket
        self._copied: dict[str, Stamp | None] = dict.fromkeys(filter(is_copied, keys))
        """Stamp of each file when it was copied to the URL, keyed by relative path; None if
        unknown."""
        self._may_shrink = False

    def forget(self) -> None:
        """Allow the records at the URL to be replaced, because the local records are about to be
        deleted."""
        self._may_shrink = True

    def run(self) -> None:
        """Copy the files that have changed to the URL, and delete copies of deleted files.

        Raises:
            BucketError: A request to the store failed; the next call copies the remaining files.
            StudyError: Another driver (process that runs the study) has written to the URL, or
                local records have disappeared without a call of `forget`.
        """
        if not (self.folder / STUDY_FILE).is_file():
            # The study has not begun, or its files were deleted by mistake; copies are then kept.
            return
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
        """Raise StudyError if the records at the URL are not the beginning of the local records."""
        uploaded = b"" if self._may_shrink else self._bucket.get(RECORDS_FILE) or b""
        if not whole_lines(self.folder / RECORDS_FILE).startswith(uploaded):
            raise StudyError(
                f"{self._bucket.url}: another process has resumed the study, and its records are "
                f"kept; everything that this process has not uploaded is in {self.folder}."
            )


def fetch_all(bucket: Bucket, keys: Sequence[str], folder: Path) -> None:
    """Replace the content of a local folder by copies of the objects `keys` at a URL."""
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
    """Return the stamp (modification time and size) of each file to copy.

    Stamps are keyed by the path of the file relative to `folder`.
    """
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
    """Return whether a file is copied between the folder and the URL, given its relative path.

    Hidden files are not copied. Neither are paths such as `../x`, which lie outside the folder.
    """
    is_hidden = any(not part or part.startswith(".") for part in name.split("/"))
    return not is_hidden and "\0" not in name and not name.startswith(LOCAL_NAMES)


def whole_lines(path: Path) -> bytes:
    """Return the content of a log, without an incomplete last line; b"" if the file is missing."""
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def _order(name: str) -> int:
    """Return the position of a file in the order of copying.

    `study.yaml` comes first, since readers require it, and then the two logs. The weights of a
    checkpoint precede its state.
    """
    if name in (STUDY_FILE, RECORDS_FILE, JOURNAL):
        return (STUDY_FILE, RECORDS_FILE, JOURNAL).index(name)
    return 4 if name.endswith(STATE_FILE) else 3


COPY_S = 30.0
"""Seconds between two copies to the URL."""
PROBE = ".raybench"
"""Key of an object that is written and deleted at the start, so that a missing bucket or invalid
credentials are detected before a run starts."""


Warn = Callable[[str], None]


class StudyStorage:
    """Context manager for the folder of a study, which is locked by this process."""

    def __init__(self, place: str, folder: Path, lock: StudyLock) -> None:
        self.place = place
        """Folder or URL that the user named."""
        self.folder = folder
        """Folder in which everything is read and written."""
        self._lock = lock

    def check(self) -> None:
        """Raise StudyError if another process has resumed the study at the URL.

        For a local folder, do nothing, because it is locked.
        """

    def forget(self) -> None:
        """Allow the records at the URL to be deleted; for a local folder, do nothing."""

    def close(self) -> None:
        """Unlock the folder; for a URL, first upload the files that have changed.

        Raises:
            StudyError: Files could not be uploaded; the message names their folder.
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
    """Storage at a URL: until it is closed, a thread copies the local folder to the URL."""

    def __init__(
        self, url: str, folder: Path, lock: StudyLock, *, mirror: Mirror, warn: Warn
    ) -> None:
        super().__init__(url, folder, lock)
        self._mirror, self._warn = mirror, warn
        self._end = threading.Event()
        self._is_failing = False
        """Whether the last attempt to copy failed; a warning was then shown."""
        self._fault: BaseException | None = None
        """Error that ended the thread; None if there was none."""
        self._thread = threading.Thread(target=self._copy_until_end, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the copying thread, if any; it is a StudyError if another
        process has resumed the study."""
        if self._fault is not None:
            raise self._fault

    def forget(self) -> None:
        """Allow the records at the URL to be deleted."""
        self._mirror.forget()

    def close(self) -> None:
        """Upload the files that have changed, and unlock the folder."""
        self._end.set()
        self._thread.join()
        try:
            self.check()
            self._mirror.run()
        except BucketError as error:
            raise StudyError(
                f"{error} Nothing is lost: files that were not uploaded are in {self.folder}, and "
                "the same command on this machine uploads them."
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
                        self._warn(f"{error} Retrying; results are kept in {self.folder}.")
                    self._is_failing = True
                else:
                    if self._is_failing:
                        self._warn(f"{self.place}: the upload works again.")
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
    """Open the storage of a study for writing; for a URL, first fetch the results that exist there.

    Args:
        place: Folder or URL.
        warn: Function that shows a warning (a sentence); it may be called from another thread.

    Raises:
        UserError: The place cannot be used, for example because credentials are invalid, the bucket
            does not exist, or another process has locked the folder.
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
            fetch_results(bucket, keys, folder)
        except BucketError as error:
            raise UserError(f"--out {error}", ErrorCode.UNREACHABLE) from None
        undo.pop_all()
    return CopiedStorage(url, folder, lock, mirror=Mirror(folder, bucket, keys), warn=warn)


def fetch_results(bucket: Bucket, keys: Sequence[str], folder: Path) -> None:
    """Download a study's objects into a folder.

    Nothing is downloaded if the folder is ahead: its records are those in the bucket and more.

    Args:
        bucket: Bucket that holds the study.
        keys: Keys of the objects in the bucket.
        folder: Local folder of the study.

    Raises:
        UserError: The local and the uploaded records have diverged, because another driver (process
            that runs a study) has resumed the study.
    """
    uploaded = (bucket.get(RECORDS_FILE) or b"") if RECORDS_FILE in keys else b""
    local = whole_lines(folder / RECORDS_FILE)
    if len(local) > len(uploaded) and local.startswith(uploaded):
        return
    if not uploaded.startswith(local):
        raise UserError(
            f"--out {bucket.url}: another machine has resumed the study, but this machine has "
            f"records that were not uploaded before; move {folder} away to continue with the "
            "results at the URL.",
            ErrorCode.CONFLICT,
        )
    fetch_all(bucket, keys, folder)
