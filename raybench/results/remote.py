"""A study below a URL, read: a copy in the user's cache, apart from what a driver writes there."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from raybench.core.errors import StudyError, UserError
from raybench.results.bucket import Bucket, BucketError, check_url
from raybench.results.files import StudyFiles
from raybench.results.lease import Lease
from raybench.results.log_parts import fetch_logs, log_of
from raybench.results.place import is_url, local_path
from raybench.results.spool import fetch_files, key_of
from raybench.results.store import RECORDS_FILE, STUDY_FILE


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


def publish(url: str, folder: Path, files: Sequence[Path]) -> str | None:
    """Upload `files`, which a report made of what `fetch` brought to its folder; nothing else.

    Returns a sentence where nothing is uploaded because somebody writes there, or has written
    since: what is there then is newer than the report. Raises StudyError.
    """
    bucket = Bucket(url)
    kept = f"so the report's files are in {folder} alone."
    try:
        owner = Lease(bucket, "a report").living_owner()
        if owner is not None:
            return f"{url}: is in use by {owner}, {kept}"
        entries = bucket.entries().items()
        there = sum(entry.size for key, entry in entries if log_of(key) == RECORDS_FILE)
        if there != (folder / RECORDS_FILE).stat().st_size:
            return f"{url}: has other records since they were read, {kept}"
        for path in files:
            bucket.put_file(key_of(path.relative_to(folder).as_posix()), path)
    except BucketError as error:
        raise StudyError(f"{error} The report's files are in {folder}.") from None
    return None


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
