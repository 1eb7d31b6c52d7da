"""Reading and writing of whole objects in an object store by URL (`s3://`, `gs://`, ...).

Credentials are found in the same places as by the store's own tools: environment variables, a
profile, or the machine.
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
"""Number of bytes that are copied at a time."""


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
        """Context manager: yield the store's file system (`pyarrow.fs.FileSystem`), and turn an
        OSError into a BucketError."""
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
