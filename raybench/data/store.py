"""Store of decoded datasets on this machine: built once, then memory-mapped by every process.

An entry of the store is a folder that holds `.npy` files and `about.json`. The name of the folder,
the key, is a digest of the source files and of the options that the arrays depend on. Arrays that a
process has opened stay valid if their entry is removed. On each machine, all workers of a session
(one raybench command) use the key that the first of them computed (`pinning`). Otherwise, if a file
changed during a search, later trials would train on different data than earlier ones.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pooch
from filelock import FileLock, Timeout
from rich.filesize import decimal

from raybench.data.dataset import Array, Dataset, about_dataset, all_arrays, dataset_of
from raybench.data.memory import map_array
from raybench.spec.errors import ErrorCode, UserError

VARIABLE = "RAYBENCH_CACHE"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
ABOUT = "about.json"
PART = ".part"
"""Suffix of the name of an unfinished folder."""


def store_folder() -> Path:
    """Return the folder of the store: `$RAYBENCH_CACHE`, or by default one in the user's cache."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    return Path(pooch.os_cache("raybench")) / "datasets"


def make_store_folder() -> Path:
    """Create the folder of the store and return its path.

    Raises:
        UserError: The folder cannot be created or written to.
    """
    folder, why = store_folder(), "it is not writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder} cannot be used ({why}); set {VARIABLE} to a writable folder.",
            ErrorCode.NOT_WRITABLE,
        )
    return folder


def free_bytes() -> int:
    """Return the free bytes on the store's disk."""
    return shutil.disk_usage(store_folder()).free


def _no_room(what: str) -> UserError:
    """Return the error for a disk that is too full to store `what`."""
    return UserError(
        f"{what} needs more space in {store_folder()}, but its disk has only "
        f"{decimal(free_bytes())} left; remove stored datasets (`raybench data` lists them), or "
        f"set {VARIABLE} to a folder on another disk.",
        ErrorCode.NO_ROOM,
    )


def print_note(sentence: str) -> None:
    """Print a sentence to stderr, apart from the command's output."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def built_once(file: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[Path | None]:
    """Context manager: let one process of this machine at a time build a folder.

    The operating system releases the lock when the process ends, even if it is killed. The next
    builder removes what a killed process has left.

    Args:
        file: A file that exists only in a complete folder.
        on_wait: Called before waiting for another process that builds the folder.

    Yields:
        None if the folder is already complete; otherwise, a temporary folder to fill. At the end,
        it replaces the folder of `file`; on an error, it is removed.
    """
    folder = file.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        on_wait()
        lock.acquire()
    part = folder.with_name(f"{folder.name}{PART}")
    try:
        if file.is_file():
            yield None
            return
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        yield part
        # The folder may still exist, if a user has removed some of its files.
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        lock.release()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A complete dataset in the store."""

    folder: Path
    about: dict[str, Any]
    """Keys: source, path, options, bytes, samples, created, description."""
    last_used: float
    """Seconds since 1970."""

    @property
    def key(self) -> str:
        """Name of the folder."""
        return self.folder.name


def list_entries(store: Path) -> list[Entry]:
    """Return all complete entries, most recently used first."""
    entries = []
    for file in store.glob(f"*/{ABOUT}"):
        if file.parent.suffix == PART:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process removes it
            about = json.loads(file.read_text())
            entries.append(Entry(folder=file.parent, about=about, last_used=file.stat().st_mtime))
    return sorted(entries, key=lambda entry: entry.last_used, reverse=True)


def remove_entry(folder: Path) -> None:
    """Remove an entry; processes that have opened its arrays keep them."""
    trash = tempfile.mkdtemp(suffix=PART, dir=folder.parent)
    with contextlib.suppress(FileNotFoundError):
        folder.replace(trash)  # in one step, so that no process finds a part of it
    shutil.rmtree(trash)


def remove_unfinished(store: Path) -> int:
    """Remove the unfinished folders of killed processes; return the number of bytes freed."""
    freed = 0
    for part in store.glob(f"*{PART}"):
        with contextlib.suppress(Timeout), FileLock(part.with_suffix(".lock"), blocking=False):
            freed += sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
            shutil.rmtree(part)
    return freed


LAYOUT = 7  # version of the code that reads and stores datasets; part of the key
WEEK = 7 * 86400  # seconds


@dataclass(frozen=True, slots=True)
class File:
    """A file as listed. With another size or modification time, it counts as a different file."""

    name: str
    """Path, or path relative to the folder of a source, with / between folders."""
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """The files of a dataset, and the options for reading them."""

    name: str
    """Name of the loader, such as `image_folder`."""
    path: Path
    """File or folder that the user named."""
    files: Sequence[File] = field(repr=False)
    """All files that the dataset depends on, sorted by name."""
    options: Mapping[str, Any]
    """Keys of `dataset` that the stored arrays depend on, as JSON values. Other keys, such as
    `limit`, are left out, so that changing them does not store the same arrays again."""

    @property
    def key(self) -> str:
        """Name of the folder in the store."""
        digest = hashlib.sha256(json.dumps([LAYOUT, self.shown]).encode())
        for file in self.files:
            digest.update(f"{file.name}\0{file.size}\0{file.mtime_ns}\n".encode(errors="replace"))
        return f"{self.name}-{digest.hexdigest()[:16]}"

    @property
    def shown(self) -> dict[str, Any]:
        """Description of the source in `about.json`, independent of the content of the files."""
        options = {key: self.options[key] for key in sorted(self.options)}
        return {"source": self.name, "path": str(self.path.absolute()), "options": options}


def file_at(path: Path, *, name: str | None = None) -> File:
    """Return the current size and time of a file, named `name` (by default, its own name)."""
    status = path.stat()
    return File(path.name if name is None else name, status.st_size, status.st_mtime_ns)


def list_files(folder: Path) -> list[File]:
    """Return all files below a folder, sorted by name, without hidden files and folders.

    Raises:
        UserError: A symbolic link is broken, or points to one of the folders that contain it.
    """
    files, root = [], folder.resolve()
    for place, folders, names in os.walk(root, followlinks=True):
        here = Path(place)
        if here.resolve() in here.parents:
            raise UserError(
                f"{here} is a link to a folder that contains it; remove the link.",
                ErrorCode.INVALID_DATA,
            )
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = here / name
            if name.startswith("."):
                continue
            if not file.is_file():
                raise UserError(
                    f"{file} is a broken link or not a regular file; repair or remove it.",
                    ErrorCode.NOT_FOUND,
                )
            files.append(file_at(file, name=file.relative_to(root).as_posix()))
    return sorted(files, key=lambda one: one.name)


_folder: ContextVar[Path | None] = ContextVar("_folder", default=None)


@contextlib.contextmanager
def pinning(folder: Path) -> Iterator[None]:
    """Context manager: keep the keys of loaded datasets in `folder`, shared by all workers of a
    session (one command), so that they read the same data even if a file changes."""
    folder.mkdir(parents=True, exist_ok=True)
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def _pinned_key(source: Source) -> str:
    """Return the key with which the session first read `source`; outside `pinning`, the key of
    the current files."""
    folder = _folder.get()
    if folder is None:
        return source.key
    digest = hashlib.sha256(json.dumps(source.shown).encode()).hexdigest()[:16]
    file = folder / f"{digest}.pin"
    if not file.is_file():
        # Replaced in one step: another process that starts at the same time sees a complete file.
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(source.key)
        part.replace(file)
    return file.read_text()


class Writer:
    """Writes the arrays of a store entry that is being built."""

    def __init__(self, folder: Path, what: str) -> None:
        """Write to the unfinished entry `folder`; `what` begins messages, such as 'dataset csv'."""
        self._folder, self.what = folder, what

    def array(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> "np.memmap[Any, Any]":
        """Create a memory-mapped array of zeros, which the caller fills in any order.

        The array may be larger than memory. Its disk space is reserved immediately, so that no
        write can fail later.

        Raises:
            UserError: The disk has no room for the array.
        """
        shape = tuple(int(size) for size in shape)
        file = self._file(name)
        made = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with file.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        return made

    def save(self, name: str, array: Array) -> None:
        """Write an array to a file; do nothing for an array that the method `array` created."""
        file = self._file(name)
        if isinstance(array, np.memmap) and Path(str(array.filename)) == file.resolve():
            return
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    @contextlib.contextmanager
    def progress(self, doing: str, total: int) -> Iterator[Callable[[int], None]]:
        """Print what is being done ("decoding 50,000 images"), with a progress bar on a terminal.

        Yields:
            A function that advances the bar by a number of steps; callable from any thread.
        """
        # Imported here because most processes build nothing, and importing rich takes 0.1 s.
        from rich.console import Console
        from rich.progress import Progress

        print_note(f"{self.what}: {doing} once, kept in {self._folder.parent}.")
        console, is_hidden = Console(stderr=True), not sys.stderr.isatty()
        with Progress(console=console, transient=True, disable=is_hidden) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)


Build = Callable[[Writer], Mapping[str, Any]]
"""Function that writes the arrays of a dataset and returns all other fields as JSON values."""


@dataclass(frozen=True)
class Stored:
    """An opened dataset of the store."""

    folder: Path
    arrays: Mapping[str, Array]
    """Memory-mapped arrays by the names under which `build` wrote them."""
    about: Mapping[str, Any]
    """Result of `build`."""


def stored(source: Source, build: Build) -> Stored:
    """Return the stored dataset of `source`, after building it if it is not in the store.

    Only one process of the machine builds; the others print that they wait.

    Raises:
        UserError: The disk is full. Within `pinning`: a file has changed since the command began,
            and the entry with its old content is gone.
    """
    key = _pinned_key(source)
    about = make_store_folder() / key / ABOUT
    if not about.is_file():
        waiting = f"dataset {source.name} is being stored by another process; waiting for it."
        with built_once(about, lambda: print_note(waiting)) as part:
            if part is not None and key != source.key:
                raise UserError(
                    f"{source.path} has changed since this command began, and the copy stored then "
                    "is gone; restore the file, or start over with --fresh.",
                    ErrorCode.STUDY_CHANGED,
                )
            if part is not None:
                _build(part, source, build)
    try:
        os.utime(about)  # the modification time is the time of the last use
    except FileNotFoundError:  # another command has just removed it
        return stored(source, build)
    arrays = {file.stem: map_array(file) for file in sorted(about.parent.glob("*.npy"))}
    return Stored(about.parent, arrays, json.loads(about.read_text())["description"])


def _build(part: Path, source: Source, build: Build) -> None:
    """Build an entry in the folder `part`, and remove entries with old content of its files that no
    command has opened for a week."""
    shown = json.loads(json.dumps(source.shown))
    old = [entry for entry in list_entries(part.parent) if entry.about | shown == entry.about]
    if old:
        print_note(f"{source.path}: the stored copy is outdated; the data are read again.")
    writer = Writer(part, f"dataset {source.name}")
    try:
        description = build(writer)
        labels = [np.load(file, mmap_mode="r") for file in part.glob("*labels.npy")]
        about = {
            **source.shown,
            "bytes": sum(file.stat().st_size for file in part.glob("*.npy")),
            "samples": sum(len(array) for array in labels),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "description": description,
        }
        (part / ABOUT).write_text(json.dumps(about, indent=1))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise _no_room(writer.what) from error
    for entry in old:
        if entry.last_used < datetime.now(UTC).timestamp() - WEEK:
            remove_entry(entry.folder)


def stored_dataset(source: Source, build: Callable[[Writer], Dataset]) -> Dataset:
    """Return the dataset of `source` with memory-mapped arrays; call `build` if it is not stored
    yet (see `stored`)."""

    def write(writer: Writer) -> dict[str, Any]:
        dataset = build(writer)
        for name, array in all_arrays(dataset).items():
            assert isinstance(array, np.ndarray)
            writer.save(name, array)
        return about_dataset(dataset)

    found = stored(source, write)
    return dataset_of(found.about, found.arrays)
