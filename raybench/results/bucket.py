"""Access to an object store by URL (`s3://`, `gs://`, ...): whole objects, one-sentence errors.

Credentials come from where each store's own tools take them (environment, profile, machine).
"""

import importlib
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import clean, redact_text, shorten

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
CHUNK = 2**20


class BucketError(Exception):
    """A request to the store failed and may be tried again; the message is one sentence."""


class Bucket:
    """The objects below a URL; keys are relative to the URL. All methods may raise BucketError."""

    def __init__(self, url: str) -> None:
        self.url, self._where = url.rstrip("/"), check_url(url)
        self._system: Any = None

    def put(self, key: str, content: bytes | Path) -> None:
        """Write an object from bytes or, in chunks, from a file; readers see either the whole new
        object or the earlier one. OSError if the file cannot be opened."""
        with (
            io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file,
            self._file_system() as system,
            system.open_output_stream(self._path(key)) as stream,
        ):
            shutil.copyfileobj(file, stream, CHUNK)

    def get(self, key: str) -> bytes | None:
        """Return an object's content; None if there is none."""
        with self._file_system() as system:
            try:
                with system.open_input_stream(self._path(key)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def get_file(self, key: str, path: Path) -> None:
        """Write an object's content to a file, in chunks; the file appears only when complete.

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
        """Yield the store's file system; an OSError in the context becomes a BucketError."""
        try:
            if self._system is None:
                self._system, self._where = _connect(self.url)
            yield self._system
        except OSError as error:
            self._system = None  # the next request reads the credentials again
            place = urlsplit(self.url)._replace(query="").geturl()
            raise BucketError(in_words(place, error)) from None


def check_url(url: str) -> str:
    """Return the `bucket/path` in a URL; UserError if the URL is invalid. The store is not
    contacted.

    Arrow resolves the URL on connecting: `abfs://CONTAINER@HOST/x` becomes `CONTAINER/x`.
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
            f"--out {parts.scheme}://***: holds credentials; give them in the environment, as "
            "for the store's own tools.",
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
    """Return the store of a URL, and the path in it that the URL names."""
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
    """Return `pyarrow.fs`, imported late (few commands need it), and as Any: it has no types."""
    return importlib.import_module("pyarrow.fs")


def in_words(url: str, error: OSError) -> str:
    """Return an error of a store as a sentence that says what to do."""
    reason = shorten(redact_text(clean(str(error)), os.environ), 200)
    return f"{url}: cannot be used ({reason}); check that the bucket exists, and the credentials."
