"""Datasets on the disk of this machine: built once, then memory-mapped by every process.

The store keeps decoded datasets for later commands. An entry of the store is a folder with `.npy`
files and `about.json`. The name of the folder, the key, is a digest of the source files and of the
options on which the arrays depend. Arrays that a process has opened remain valid if their entry is
removed.

On each machine, all workers of a session (one raybench command) use the key that the first worker
computed (see `pinning`). Otherwise, if a source file changed during a search, later trials would
train on other data than earlier trials.

Other datasets, such as those that a user's code loads, are shared only by the processes of a
session (see `open_shared`), because nothing shows whether a later command would load the same data.
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
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pooch
from filelock import FileLock, Timeout
from rich.filesize import decimal

from raybench.data.dataset import NO_DATA, Array, Dataset, about_dataset, all_arrays, dataset_of
from raybench.data.memory import is_mapped, map_array
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import DatasetSpec

VARIABLE = "RAYBENCH_CACHE"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
ABOUT = "about.json"
PART = ".part"
"""Suffix of the name of a folder that is still being written."""


def store_folder() -> Path:
    """Return the folder of the store: `$RAYBENCH_CACHE`, or by default a folder in the user's
    cache."""
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
    """Return the number of free bytes on the disk of the store."""
    return shutil.disk_usage(store_folder()).free


def _no_room(what: str) -> UserError:
    """Return the error for a store whose disk is full; `what` names the data in the message."""
    return UserError(
        f"{what} needs more space in {store_folder()}, but its disk has only "
        f"{decimal(free_bytes())} left; remove stored datasets (`raybench data` lists them), or "
        f"set {VARIABLE} to a folder on another disk.",
        ErrorCode.NO_ROOM,
    )


def print_note(sentence: str) -> None:
    """Print a sentence to stderr, so that it is not part of the output of the command."""
    print(f"raybench: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def built_once(file: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[Path | None]:
    """Context manager in which only one process of this machine at a time builds a folder.

    The operating system releases the lock when a process ends, even if it is killed. The unfinished
    folder of a killed process is removed by the next process that builds the folder.

    Args:
        file: Path of a file that exists in the folder only when the folder is complete.
        on_wait: Function that is called before waiting for another process to build the folder.

    Yields:
        None if the folder is already complete. Otherwise, an empty temporary folder, to which the
        caller writes the files. The temporary folder replaces the folder of `file` at the end of
        the context, or is removed if an error occurs.
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
    """Content of `about.json`: source, path, options, bytes, samples, created, description."""
    last_used: float
    """Time of the last use, in seconds since 1970."""

    @property
    def key(self) -> str:
        """Key of the entry in the store, which is its folder name."""
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
    """Remove an entry of the store; its arrays remain valid in processes that have opened them."""
    trash = tempfile.mkdtemp(suffix=PART, dir=folder.parent)
    with contextlib.suppress(FileNotFoundError):
        folder.replace(trash)  # a single step, so that no process finds an incomplete entry
    shutil.rmtree(trash)


def remove_unfinished(store: Path) -> int:
    """Remove the unfinished folders of killed processes, and return the number of bytes freed."""
    freed = 0
    for part in store.glob(f"*{PART}"):
        with contextlib.suppress(Timeout), FileLock(part.with_suffix(".lock"), blocking=False):
            freed += sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
            shutil.rmtree(part)
    return freed


LAYOUT = 7  # version of the format of entries, which is part of the key
WEEK = 7 * 86400  # seconds


@dataclass(frozen=True, slots=True)
class File:
    """Name, size and modification time of a file, to detect when the file changes."""

    name: str
    """Name of the file: its absolute path, its path relative to the folder of a `Source` (with / as
    separator), or its name without folders."""
    size: int
    """Size in bytes."""
    mtime_ns: int
    """Modification time in nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The files of a dataset, and the options for reading them."""

    name: str
    """Name of the loader, such as `image_folder`."""
    path: Path
    """File or folder that the user named."""
    files: Sequence[File] = field(repr=False)
    """All files that the dataset depends on, in an order that is always the same."""
    options: Mapping[str, Any]
    """Keys of `dataset` on which the stored arrays depend, with JSON values. Other keys, such as
    `limit`, are left out, so that a change of the limit does not store the same arrays again."""

    @property
    def key(self) -> str:
        """Name of the entry's folder in the store; it contains a digest of files and options."""
        digest = hashlib.sha256(json.dumps([LAYOUT, self.shown]).encode())
        for file in self.files:
            digest.update(f"{file.name}\0{file.size}\0{file.mtime_ns}\n".encode(errors="replace"))
        return f"{self.name}-{digest.hexdigest()[:16]}"

    @property
    def shown(self) -> dict[str, Any]:
        """Description of the source for `about.json`, independent of the content of the files."""
        options = {key: self.options[key] for key in sorted(self.options)}
        return {"source": self.name, "path": str(self.path.absolute()), "options": options}


def file_at(path: Path, *, name: str | None = None) -> File:
    """Return the current size and modification time of a file.

    Args:
        path: Path of the file.
        name: Name of the file in the result; by default, the file name without folders.
    """
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
    return sorted(files, key=lambda file: file.name)


_folder: ContextVar[Path | None] = ContextVar("_folder", default=None)


@contextlib.contextmanager
def pinning(folder: Path) -> Iterator[None]:
    """Context manager in which all workers of a session (one command) load the same version of a
    dataset, even if a source file changes.

    Args:
        folder: Folder of the session in which the keys of loaded datasets are recorded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def _pinned_key(source: Source) -> str:
    """Return the key with which this session first loaded a source.

    Outside the context `pinning`, it is the key of the current files.
    """
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
        """Create a writer.

        Args:
            folder: Folder of the unfinished entry.
            what: Start of messages, such as "dataset csv".
        """
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
        array = np.lib.format.open_memmap(file, mode="w+", dtype=np.dtype(dtype), shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with file.open("r+b") as opened:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        return array

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
        """Context manager that prints a message and, in a terminal, shows a progress bar.

        Args:
            doing: Description of the work, such as "decoding 50,000 images".
            total: Total number of steps.

        Yields:
            A function that advances the progress bar by a number of steps; it may be called from
            any thread.
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
"""Function that writes the arrays of a dataset, and returns all of its other fields as JSON
values."""


@dataclass(frozen=True)
class Stored:
    """A dataset of the store that this process has opened."""

    folder: Path
    arrays: Mapping[str, Array]
    """Memory-mapped arrays, keyed by the names under which the `Build` function wrote them."""
    about: Mapping[str, Any]
    """Other fields of the dataset, as returned by the `Build` function."""


def stored(source: Source, build: Build) -> Stored:
    """Return the dataset of a source from the store, after building it if it is not stored yet.

    Only one process of the machine builds the dataset, while the others print that they are
    waiting.

    Args:
        source: Files and options of the dataset.
        build: Function that writes the arrays of the dataset.

    Raises:
        UserError: The disk is full; or, in the context `pinning`, a file has changed since the
            command began, and the entry with the old content no longer exists.
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
    """Build an entry of the store in the temporary folder `part`, and remove outdated entries of
    the same source.

    An outdated entry, which was built from an earlier version of the files, is removed only if no
    command has opened it for a week.
    """
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
    """Return the dataset of a source with memory-mapped arrays, after building it if it is not
    stored yet (see `stored`).

    Args:
        source: Files and options of the dataset.
        build: Function that returns the dataset, whose arrays are then written.
    """

    def write(writer: Writer) -> dict[str, Any]:
        dataset = build(writer)
        for name, array in all_arrays(dataset).items():
            assert isinstance(array, np.ndarray)
            writer.save(name, array)
        return about_dataset(dataset)

    entry = stored(source, write)
    return dataset_of(entry.about, entry.arrays)


SHARED_ABOUT = "dataset.json"


def shared_key(
    workload: str, spec: DatasetSpec, data: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the name of the folder for a shared dataset, which is the same for equal arguments.

    The name does not depend on the content of the files that a workload's `load_dataset` reads, so
    the folder must not be used again by a later command.

    Args:
        workload: Name of the workload, used only if its `load_dataset` loads the data.
        spec: The dataset spec.
        data: Settings of the workload's `load_dataset`.
    """
    owner = [workload, *([dict(data)] if data else [])] if spec.name == "workload" else [""]
    content = json.dumps([*owner, spec.model_dump(mode="json")], sort_keys=True)
    return f"{spec.name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def share(dataset: Dataset, folder: Path) -> None:
    """Write the arrays of a dataset to `folder`, so that other processes can memory-map them; do
    nothing for `NO_DATA`."""
    if dataset is not NO_DATA:
        open_shared(folder, lambda: dataset)


def open_shared(folder: Path, build: Callable[[], Dataset]) -> Dataset:
    """Return the memory-mapped dataset in a folder, after building and writing it if necessary.

    Only one process builds the dataset, while the others wait. If the disk is full, the dataset is
    returned without being shared. A dataset whose inputs are read on demand or are already
    memory-mapped is not shared either: every process builds it.

    Args:
        folder: Folder of the shared dataset.
        build: Function that returns the dataset.
    """
    built: Dataset | None = None
    if not folder.is_dir():
        try:
            with built_once(folder / SHARED_ABOUT) as part:
                if part is not None:
                    built = build()
                    _write_shared(built, part)
        except OSError as error:
            if built is None or error.errno not in NO_ROOM:
                raise
            return built
    about = json.loads((folder / SHARED_ABOUT).read_text())
    if about is None:
        return built or build()
    return dataset_of(about, {file.stem: map_array(file) for file in folder.glob("*.npy")})


def _write_shared(dataset: Dataset, folder: Path) -> None:
    """Write the arrays of a dataset to a folder, and its other fields to the file SHARED_ABOUT.

    For a dataset that is not shared (see `open_shared`), only null is written to SHARED_ABOUT.
    """
    arrays = all_arrays(dataset)
    is_whole = all(
        isinstance(array, np.ndarray) and not is_mapped(array) for array in arrays.values()
    )
    for name, array in arrays.items() if is_whole else ():
        np.save(folder / f"{name}.npy", np.ascontiguousarray(array))
    (folder / SHARED_ABOUT).write_text(json.dumps(about_dataset(dataset) if is_whole else None))
