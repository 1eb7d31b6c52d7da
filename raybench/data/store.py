"""Decoded datasets of this machine: each is built once, then mapped by every process.

An entry of the store is a folder of `.npy` files and `about.json`. Its name, the key, is a digest
of the source files and of the options that the arrays depend on. Until a process ends it holds a
shared lock on the `about.json` of each entry that it has opened, so no entry in use is removed. A
session keeps the key of each source from its first worker on a machine to its last (`pinning`): a
file that changes meanwhile would give later trials other data than earlier ones.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import sys
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
LEFT_FREE = 64 * 2**20  # bytes of the disk that are left to others
ABOUT = "about.json"
PART = ".part"
"""End of the name of an unfinished folder."""

size_in_words = decimal
"""(bytes) -> text with a decimal unit: 1.5 GB."""


def store_folder() -> Path:
    """Return the folder of all stored datasets: `$RAYBENCH_CACHE`, else in the user's cache."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    return Path(pooch.os_cache("raybench")) / "datasets"


def make_store_folder() -> Path:
    """Create the folder of all stored datasets and return it.

    Raises:
        UserError: It cannot be created or written to.
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


def require_room(num_bytes: int, what: str) -> None:
    """Raise UserError unless the store's disk has room for `num_bytes` of `what`."""
    make_store_folder()
    if num_bytes + LEFT_FREE > free_bytes():
        raise no_room(what, size_in_words(num_bytes))


def free_bytes() -> int:
    """Return the free bytes of the store's disk."""
    return shutil.disk_usage(store_folder()).free


def no_room(what: str, needed: str = "more room") -> UserError:
    """Return the error for a full disk."""
    return UserError(
        f"{what} needs {needed} in {store_folder()}, and its disk has "
        f"{size_in_words(free_bytes())} left; remove stored datasets (`raybench data` lists them), "
        f"or set {VARIABLE} to a folder on another disk.",
        ErrorCode.NO_ROOM,
    )


def print_note(sentence: str) -> None:
    """Print a sentence on stderr, apart from a command's own output."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def built_once(file: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[Path | None]:
    """Build a folder in one process of this machine at a time.

    The system releases the lock when its process ends, however it ends; what a killed process has
    left is removed.

    Args:
        file: File that only a whole folder holds.
        on_wait: Called before the process waits for another one that builds the folder.

    Yields:
        A temporary folder that replaces the folder of `file` at the end and is removed on an error;
        None if the folder is whole.
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
        shutil.rmtree(folder, ignore_errors=True)  # a user has removed a part of it
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        lock.release()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A whole dataset of the store."""

    folder: Path
    about: dict[str, Any]
    """Keys: layout, source, path, options, bytes, samples, created, description."""
    last_used: float
    """Seconds since 1970."""

    @property
    def key(self) -> str:
        """Name of the folder."""
        return self.folder.name


def list_entries(store: Path) -> list[Entry]:
    """Return all complete entries, most recently used first."""
    found = []
    for file in store.glob(f"*/{ABOUT}"):
        if file.parent.suffix == PART:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process removes it
            about = json.loads(file.read_text())
            found.append(Entry(folder=file.parent, about=about, last_used=file.stat().st_mtime))
    return sorted(found, key=lambda entry: entry.last_used, reverse=True)


def remove_entry(folder: Path) -> bool:
    """Remove an entry unless a process uses it; return whether it is gone."""
    with contextlib.suppress(FileNotFoundError), (folder / ABOUT).open() as about:
        if not _lock(about.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        shutil.rmtree(folder)
    return True


def remove_unfinished(store: Path) -> int:
    """Remove what killed builders have left, and return its bytes."""
    freed = 0
    for part in store.glob(f"*{PART}"):
        with contextlib.suppress(Timeout), FileLock(part.with_suffix(".lock"), blocking=False):
            freed += sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
            shutil.rmtree(part)
    return freed


LAYOUT = 6  # version of how datasets are read and stored, part of the key
MAX_FILES_READ = 64  # files, evenly chosen, of whose content some is read for the key
READ_BYTES = 2**15  # of each of three places


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was listed; a changed size or time of modification makes it a different file."""

    name: str
    """Path below `Source.root`, with / between folders."""
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files that a dataset is made of, and how they are read."""

    name: str
    """Name of the loader: `image_folder`."""
    path: Path
    """File or folder that the user named."""
    files: Sequence[File] = field(repr=False)
    """Every file that counts, in the order of their names."""
    options: Mapping[str, Any]
    """Keys of the dataset that the arrays depend on (JSON), and no others: a set is not stored
    twice for another `limit`, or for other splits that are cut from the same arrays."""

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
        for file in self.files[:: max(1, -(-len(self.files) // MAX_FILES_READ))]:
            digest.update(_some_of(self.root / file.name, file.size))
        return f"{self.name}-{digest.hexdigest()[:16]}"

    @property
    def shown(self) -> dict[str, Any]:
        """Description in the entries of the store, the same for any content of the files."""
        options = {key: self.options[key] for key in sorted(self.options)}
        return {"source": self.name, "path": str(self.path.absolute()), "options": options}

    def require_unchanged(self) -> None:
        """Raise UserError if a file has changed since it was listed."""
        for file in self.files:
            path = self.root / file.name
            if not path.is_file() or file_at(path, name=file.name) != file:
                raise UserError(
                    f"{path} was changed while dataset {self.name} was read; rerun the command.",
                    ErrorCode.INVALID_DATA,
                )


def _some_of(path: Path, size: int) -> bytes:
    """Return the first, middle and last bytes of a file.

    Two files of equal size may have equal times: archives may store whole seconds, or no time.
    """
    found = b""
    try:
        with path.open("rb") as opened:
            for start in (0, size // 2, size - READ_BYTES):
                opened.seek(max(0, start))
                found += opened.read(READ_BYTES)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); repair or remove it.", ErrorCode.NOT_FOUND
        ) from error
    return found


def file_at(path: Path, *, name: str | None = None) -> File:
    """Return a file as it is now, under `name` (by default its own)."""
    found = path.stat()
    return File(path.name if name is None else name, found.st_size, found.st_mtime_ns)


def list_files(folder: Path) -> list[File]:
    """Return all files below a folder, sorted by name; hidden files and folders are left out.

    Raises:
        UserError: A link leads nowhere, or to a folder that it lies in.
    """
    return sorted(_walk(folder, "", frozenset()), key=lambda file: file.name)


def _walk(folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[File]:
    found = folder.stat()
    here = (found.st_dev, found.st_ino)
    if here in above:
        raise UserError(
            f"{folder} is a link to a folder that it lies in; remove the link.",
            ErrorCode.INVALID_DATA,
        )
    with os.scandir(folder) as listed:
        for entry in listed:
            name = f"{prefix}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(Path(entry.path), f"{name}/", above | {here})
            elif entry.is_file():
                yield file_at(Path(entry.path), name=name)
            else:
                raise UserError(
                    f"{entry.path} is no file, or a link that leads nowhere; repair or remove it.",
                    ErrorCode.NOT_FOUND,
                )


_folder: ContextVar[Path | None] = ContextVar("_folder", default=None)


@contextlib.contextmanager
def pinning(folder: Path) -> Iterator[None]:
    """Keep the keys of all datasets that are loaded inside in `folder`, for a whole session."""
    folder.mkdir(parents=True, exist_ok=True)
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def _pinned_key(source: Source) -> str:
    """Return the key by which the session first read `source` (`pinning`); otherwise its own
    key."""
    folder = _folder.get()
    if folder is None:
        return source.key
    digest = hashlib.sha256(json.dumps(source.shown).encode()).hexdigest()[:16]
    file = folder / f"{digest}.pin"
    if not file.is_file():
        part = file.with_suffix(f".{os.getpid()}")  # two that begin at once find the same
        part.write_text(source.key)
        part.replace(file)
    return file.read_text()


class Writer:
    """Writer of the arrays of an entry that is being built."""

    def __init__(self, folder: Path, what: str) -> None:
        """`folder`: of the unfinished entry; `what` begins sentences: 'dataset csv'."""
        self._folder, self.what = folder, what

    def array(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> "np.memmap[Any, Any]":
        """Create an array of zeros in a file, to be written in any order.

        It may be larger than memory. Its disk space is reserved immediately, so that no write can
        fail later.

        Raises:
            UserError: The disk has no room for it.
        """
        shape = tuple(int(size) for size in shape)
        require_room(math.prod(shape) * np.dtype(dtype).itemsize, self.what)
        file = self._file(name)
        made = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with file.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        return made

    def save(self, name: str, array: Array) -> None:
        """Write an array that is in memory; do nothing for an array that `array` has created."""
        file = self._file(name)
        if isinstance(array, np.memmap) and Path(str(array.filename)) == file.resolve():
            return
        require_room(array.nbytes, self.what)
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    @contextlib.contextmanager
    def progress(self, doing: str, total: int) -> Iterator[Callable[[int], None]]:
        """Print what is being done ("decoding 50,000 images"), with a progress bar on a terminal.

        Yields:
            A function that adds a number to the progress, from any thread.
        """
        # Imported here: most processes build nothing, and rich takes a tenth of a second.
        from rich.console import Console
        from rich.progress import Progress

        print_note(f"{self.what}: {doing} once, kept in {self._folder.parent}.")
        console, is_hidden = Console(stderr=True), not sys.stderr.isatty()
        with Progress(console=console, transient=True, disable=is_hidden) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)


Build = Callable[[Writer], Mapping[str, Any]]
"""Writes the arrays of a dataset; returns what describes them besides, as plain data for JSON."""
_in_use: dict[Path, int] = {}
"""File descriptors of the locks of all entries that this process has opened; the system releases
the locks when the process ends."""


@dataclass(frozen=True)
class Stored:
    """A dataset of the store, opened."""

    folder: Path
    arrays: Mapping[str, Array]
    """Arrays by the names they were written by: views of files, whose pages all processes share."""
    about: Mapping[str, Any]
    """Result of `build`."""


def stored(source: Source, build: Build) -> Stored:
    """Return the dataset of `source`; build it first if it is not stored.

    One process of the machine builds at a time; the others say that they wait. The builder removes
    what killed builders have left, and what was stored of the old content of changed files.

    Raises:
        UserError: The disk is full, a file changes meanwhile, or the dataset that a session began
            with is gone (`pinning`).
    """
    key = _pinned_key(source)
    about = make_store_folder() / key / ABOUT
    waiting = f"dataset {source.name} is being stored by another process; waiting for it."
    while (found := _open(about)) is None:
        with built_once(about, lambda: print_note(waiting)) as part:
            if part is not None and key != source.key:
                raise UserError(
                    f"{source.path} has changed since this command began, and what was stored of "
                    "it then is gone; restore the file or start over with --fresh.",
                    ErrorCode.STUDY_CHANGED,
                )
            if part is not None:
                _build(part, source, build)
    return found


def _open(about: Path) -> Stored | None:
    """Open an entry and keep it from removal until this process ends; None if there is none."""
    folder = about.parent
    if folder not in _in_use:
        try:
            _in_use[folder] = os.open(about, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
    _lock(_in_use[folder], fcntl.LOCK_SH)
    if not about.is_file():  # another process has removed it, or a user by hand
        os.close(_in_use.pop(folder))
        return None
    os.utime(about)  # when it was last used
    arrays = {file.stem: map_array(file) for file in sorted(folder.glob("*.npy"))}
    return Stored(folder, arrays, json.loads(about.read_text())["description"])


def _lock(file: int, kind: int) -> bool:
    """Lock an open file; return False if another process holds its lock."""
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(
            f"{store_folder()} has no locks ({error.strerror}); set {VARIABLE} to another disk.",
            ErrorCode.UNSUPPORTED,
        ) from error
    return True


def _build(part: Path, source: Source, build: Build) -> None:
    """Build an entry in a temporary folder, and remove entries of old content of its files."""
    store = part.parent
    remove_unfinished(store)
    shown = json.loads(json.dumps(source.shown))
    old = [one for one in list_entries(store) if one.about | shown == one.about]
    if old:
        is_ours = any(one.about["layout"] == LAYOUT for one in old)
        why = "has changed since it was stored" if is_ours else "was stored by another version"
        print_note(f"{source.path} {why}, so it is read anew.")
    _write(part, source, build)
    source.require_unchanged()
    for entry in old:
        remove_entry(entry.folder)


def _write(part: Path, source: Source, build: Build) -> None:
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
        (part / ABOUT).write_text(json.dumps(about, indent=1))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise no_room(writer.what) from error


def stored_dataset(source: Source, build: Callable[[Writer], Dataset]) -> Dataset:
    """Return the dataset of `source` with memory-mapped arrays; `build` makes it if it is not
    stored yet. See `stored`."""

    def write(writer: Writer) -> dict[str, Any]:
        dataset = build(writer)
        for name, array in all_arrays(dataset).items():
            assert isinstance(array, np.ndarray)
            writer.save(name, array)
        return about_dataset(dataset)

    found = stored(source, write)
    return dataset_of(found.about, found.arrays)
