"""A dataset of the store: built once on this machine, then mapped by every process of it.

Its key is of the files it was made of, and of the options that its arrays depend on. A session
keeps which one it reads, from its first worker on a machine to its last: a file that changes
meanwhile would give later trials other data than earlier ones.
"""

import contextlib
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Array, Dataset, about_dataset, all_arrays, dataset_of
from raybench.data.memory import map_array
from raybench.data.store import entries
from raybench.spec.errors import UserError

LAYOUT = 6  # version of how datasets are read and stored; another one is another key
MOST_READ = 64  # files, evenly chosen, of whose content some is read for the key
READ_BYTES = 2**15  # of each of three places


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was found; it is another one when size or time of its last change are others."""

    name: str
    """From `Source.root`, with / between folders."""
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """Source that is read, and how."""

    name: str
    """Name of the loader: `image_folder`."""
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
        digest = hashlib.sha256(json.dumps([LAYOUT, self.name, self.shown["options"]]).encode())
        for file in self.files:
            digest.update(f"{file.name}\0{file.size}\0{file.mtime_ns}\n".encode(errors="replace"))
        for file in self.files[:: max(1, -(-len(self.files) // MOST_READ))]:
            digest.update(_some_of(self.root / file.name, file.size))
        return f"{self.name}-{digest.hexdigest()[:16]}"

    @property
    def shown(self) -> dict[str, Any]:
        """Description in the entries of the store, whatever its content was."""
        options = {key: self.options[key] for key in sorted(self.options)}
        return {"source": self.name, "path": str(self.path.absolute()), "options": options}

    def require_unchanged(self) -> None:
        """Raise UserError if a file is another one than it was when it was listed."""
        for file in self.files:
            path = self.root / file.name
            if not path.is_file() or file_at(path, name=file.name) != file:
                raise UserError(
                    f"{path} was changed while dataset {self.name} was read; run the same command "
                    "again when nothing writes to it any more."
                )


def _some_of(path: Path, size: int) -> bytes:
    """Return begin, middle and end of a file: two of one size may have one time, unpacked from
    archives that know seconds alone, or none."""
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
    with os.scandir(folder) as found_here:
        for entry in found_here:
            name = f"{prefix}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(Path(entry.path), f"{name}/", above | {here})
                continue
            if not entry.is_file():
                raise UserError(
                    f"{entry.path} is no file, or a link that leads nowhere; remove or mend it."
                )
            yield file_at(Path(entry.path), name=name)


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
    """Return the key that the session has read `source` by first (`pinning`); else its own."""
    folder = _folder.get()
    if folder is None:
        return source.key
    content = json.dumps(source.shown)
    file = folder / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.pin"
    if not file.is_file():
        part = file.with_suffix(f".{os.getpid()}")  # two that begin at once find the same
        part.write_text(source.key)
        part.replace(file)
    return file.read_text()


class Writer:
    """Writer of a loader's arrays, which are kept as a whole or not."""

    def __init__(self, folder: Path, what: str) -> None:
        """`folder`: for what is not finished yet; `what` begins sentences: 'dataset csv'."""
        self._folder, self.what = folder, what

    def array(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> "np.memmap[Any, Any]":
        """Return a new array of zeros that is a file, to be written to in any order.

        It may be larger than memory. Its room on the disk is taken at once (UserError where there
        is none), so that no write can fail later.
        """
        shape = tuple(int(size) for size in shape)
        entries.require_room(math.prod(shape) * np.dtype(dtype).itemsize, self.what)
        file = self.file(name)
        made = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with file.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        return made

    def save(self, name: str, array: Array) -> None:
        """Write an array that is in memory; one that `array` has made is there already."""
        if isinstance(array, np.memmap) and Path(str(array.filename)) == self.file(name).resolve():
            return
        entries.require_room(array.nbytes, self.what)
        np.save(self.file(name), np.ascontiguousarray(array), allow_pickle=False)

    def file(self, name: str) -> Path:
        """Return the file of an array."""
        return self._folder / f"{name}.npy"

    @contextlib.contextmanager
    def progress(self, doing: str, total: int) -> Iterator[Callable[[int], None]]:
        """Say what is done ("decoding 50,000 images"), and on a terminal how far it is.

        Yields what counts what is done, from any thread.
        """
        # Imported here: most processes build nothing, and rich takes a tenth of a second.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        entries.tell(f"{self.what}: {doing} once, kept in {self._folder.parent}.")
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console, is_hidden = Console(stderr=True), not sys.stderr.isatty()
        with Progress(*columns, console=console, transient=True, disable=is_hidden) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)


POLL_S = 0.05  # how often is looked whether another has built an entry
_in_use: dict[Path, entries.EntryLock] = {}
"""Locks of the datasets that this process has opened, by folder; they end with the process."""


@dataclass(frozen=True)
class Stored:
    """A dataset of the store, opened."""

    folder: Path
    arrays: Mapping[str, Array]
    """Arrays by the names they were written by: views of files, whose pages all processes share."""
    about: Mapping[str, Any]
    """Result of `build`."""


def stored(source: Source, build: Callable[[Writer], Mapping[str, Any]]) -> Stored:
    """Return the dataset of `source`; `build` writes its arrays if they are not there.

    `build` returns what is to be known of them besides (JSON: names of classes). It is called
    by one process of the machine at a time, the others wait and say so. What one left that was
    killed is removed by the next, and what was stored of a file's old content. UserError where the
    disk has no room, and where the dataset that a session began with is gone (`pinning`).
    """
    key = key_for(source)
    folder = entries.make_store_folder() / key
    while True:
        if found := _open(folder, source):
            return found
        if key != source.key:
            raise UserError(
                f"{source.path} has changed since this command began, and what was stored of it "
                "then is gone; restore the file, or start anew with --fresh."
            )
        _build(folder, source, build)


def _open(folder: Path, source: Source) -> Stored | None:
    """Return what is in `folder`, locked for use; None if nothing is."""
    lock = _in_use.get(folder)
    if lock is None:
        lock = entries.EntryLock(folder)
        waiting = f"dataset {source.name} is being stored by another process; waiting for it."
        lock.use(on_wait=lambda: entries.tell(waiting))
        if not (folder / entries.ABOUT).is_file():
            lock.release()
            return None
        _in_use[folder] = lock
    elif not (folder / entries.ABOUT).is_file():  # removed by hand, under the lock
        _in_use.pop(folder).release()
        return None
    os.utime(folder / entries.ABOUT)  # when it was last used
    about = json.loads((folder / entries.ABOUT).read_text())
    arrays = {file.stem: map_array(file) for file in sorted(folder.glob("*.npy"))}
    return Stored(folder, arrays, about["description"])


def _build(folder: Path, source: Source, build: Callable[[Writer], Mapping[str, Any]]) -> None:
    """Build the entry if it is still not there, and no other process has it."""
    lock = entries.EntryLock(folder)
    if not lock.try_alone():
        # Not waited for here: who has built the entry goes on to use it until its process ends.
        time.sleep(POLL_S)
        return
    try:
        if (folder / entries.ABOUT).is_file():
            return
        entries.remove_unfinished(folder.parent, locked=folder)
        shown = json.loads(json.dumps(source.shown))
        old = [one for one in entries.list_entries(folder.parent) if one.about | shown == one.about]
        if old:
            is_ours = any(one.about["layout"] == LAYOUT for one in old)
            why = "has changed since it was stored" if is_ours else "was stored by another version"
            entries.tell(f"{source.path} {why}, so it is read anew.")
        with entries.written_whole(folder) as part:
            _write(part, source, build)
            source.require_unchanged()
        for entry in old:
            entries.remove_entry(entry.folder)
    finally:
        lock.release()


def _write(part: Path, source: Source, build: Callable[[Writer], Mapping[str, Any]]) -> None:
    writer = Writer(part, f"dataset {source.name}")
    try:
        description = build(writer)
        labels = [np.load(file, mmap_mode="r") for file in part.glob("*labels.npy")]
        about = {
            "layout": LAYOUT,
            **source.shown,
            "bytes": sum(file.stat().st_size for file in part.glob("*.npy")),
            "samples": sum(len(array) for array in labels),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "description": description,
        }
        (part / entries.ABOUT).write_text(json.dumps(about, indent=1))
    except OSError as error:
        if error.errno not in entries.NO_ROOM:
            raise
        raise entries.no_room(writer.what) from error


def stored_dataset(source: Source, build: Callable[[Writer], Dataset]) -> Dataset:
    """Return the dataset of `source` as `build` makes it, its arrays mapped: see `stored`."""

    def write(writer: Writer) -> dict[str, Any]:
        dataset = build(writer)
        for name, array in all_arrays(dataset).items():
            assert isinstance(array, np.ndarray)
            writer.save(name, array)
        return about_dataset(dataset)

    found = stored(source, write)
    return dataset_of(found.about, found.arrays)
