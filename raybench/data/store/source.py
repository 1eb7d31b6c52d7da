"""What a stored dataset was made of: its files, and the options that its arrays depend on.

A session keeps which one it reads, from its first worker on a machine to its last: a file that
changes meanwhile would give later trials other data than earlier ones.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raybench.spec.errors import UserError

LAYOUT = 4
"""Version of how datasets are stored; another one is another key."""


MOST_READ = 64
"""Files, evenly chosen, of whose content some is read for the key."""
READ_BYTES = 2**15
"""Of each of three places."""


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was found; it is another one when size or time of its last change are others.

    Contents are not read whole: of 50,000 files that alone would take longer than to train begins.
    """

    name: str
    """From `Source.root`, with / between folders."""
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is read, and how."""

    name: str
    """Of the loader: `image_folder`."""
    path: Path
    """File or folder that the user named."""
    files: Sequence[File] = field(repr=False)
    """Every file that counts, in the order of their names."""
    options: Mapping[str, Any]
    """Keys of the dataset that the arrays depend on (JSON), and no others: of `limit`, or of
    what splits cut from the arrays afterwards, a set is not stored twice."""

    @property
    def root(self) -> Path:
        """The folder that names of files start from."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def key(self) -> str:
        """Name of its folder in the store: equal for equal files and options, wherever they lie."""
        digest = hashlib.sha256(json.dumps([LAYOUT, self.name, self.shown_options]).encode())
        for file in self.files:
            digest.update(f"{file.name}\0{file.size}\0{file.mtime_ns}\n".encode(errors="replace"))
        for file in self.files[:: max(1, -(-len(self.files) // MOST_READ))]:
            digest.update(_some_of(self.root / file.name, file.size))
        return f"{self.name}-{digest.hexdigest()[:16]}"

    @property
    def shown_options(self) -> dict[str, Any]:
        """The options in the order of their names."""
        return {key: self.options[key] for key in sorted(self.options)}

    def require_unchanged(self) -> None:
        """Raise UserError if a file is another one than it was when it was listed."""
        for file in self.files:
            try:
                now = file_at(self.root / file.name, name=file.name)
            except FileNotFoundError:
                now = None
            if now != file:
                raise UserError(
                    f"{self.root / file.name} was changed while dataset {self.name} was read; run "
                    "the same command again when nothing writes to it any more."
                )


def _some_of(path: Path, size: int) -> bytes:
    """Return begin, middle and end of a file.

    Two of one name and size may have one time: unpacked from archives that know seconds alone, or
    none (arrays of equal shape are equally large).
    """
    found = b""
    try:
        with path.open("rb") as opened:
            for start in (0, size // 2, size - READ_BYTES):
                opened.seek(max(0, start))
                found += opened.read(READ_BYTES)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); mend or remove it.") from error
    return found


def file_at(path: Path, *, name: str | None = None) -> File:
    """Return a file as it is now; `name` is its own where none is given."""
    found = path.stat()
    return File(path.name if name is None else name, found.st_size, found.st_mtime_ns)


def list_files(folder: Path) -> list[File]:
    """Return all files below a folder by their names, hidden ones and what is in hidden folders
    left out; links are followed, those that lead back up are a UserError."""
    return sorted(_walk(folder, "", frozenset()), key=lambda file: file.name)


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[File]:
    found = folder.stat()
    here = (found.st_dev, found.st_ino)
    if here in above:
        raise UserError(f"{folder} is a link to a folder that it lies in; remove the link.")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", above | {here})
                continue
            try:
                about = entry.stat()
            except FileNotFoundError as error:
                raise UserError(
                    f"{entry.path} is a link that leads nowhere; remove or mend it."
                ) from error
            yield File(f"{prefix}{entry.name}", about.st_size, about.st_mtime_ns)


_folder: ContextVar[Path | None] = ContextVar("_folder", default=None)


@contextlib.contextmanager
def pinning(folder: Path) -> Iterator[None]:
    """Keep keys in `folder`, which lives as long as a session, while datasets are loaded here."""
    folder.mkdir(parents=True, exist_ok=True)
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def key_for(source: Source) -> str:
    """Return the key that the session has read `source` by first: its own where nobody has.

    Outside of `pinning` it is always its own.
    """
    folder = _folder.get()
    if folder is None:
        return source.key
    content = json.dumps([source.name, str(source.path.absolute()), source.shown_options])
    file = folder / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.pin"
    if not file.is_file():
        handle, part = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        with os.fdopen(handle, "w") as opened:
            opened.write(source.key)
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(part, file)
        Path(part).unlink()
    return file.read_text()
