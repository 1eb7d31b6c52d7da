"""A dataset of the store: built once on this machine, then mapped by every process of it."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from raybench.data.dataset import (
    SPLITS,
    Array,
    Dataset,
    about_dataset,
    dataset_of,
    named_arrays,
    split_of_arrays,
)
from raybench.data.memory import map_array
from raybench.data.store.entries import (
    ABOUT,
    EntryLock,
    entries_of,
    remove_entry,
    remove_unfinished,
    written_whole,
)
from raybench.data.store.place import NO_ROOM, Writer, make_store_folder, no_room, tell
from raybench.data.store.source import LAYOUT, Source, key_for
from raybench.spec.errors import UserError

POLL_S = 0.05
"""How often is looked whether another has built an entry."""
_in_use: dict[Path, EntryLock] = {}
"""By its folder, the lock of every dataset that this process has opened: it ends with it."""


@dataclass(frozen=True)
class Stored:
    """A dataset of the store, opened."""

    folder: Path
    arrays: Mapping[str, Array]
    """By the names they were written by: views of files, whose pages all processes share."""
    about: Mapping[str, Any]
    """What `build` returned."""


def stored(source: Source, build: Callable[[Writer], Mapping[str, Any]]) -> Stored:
    """Return the dataset of `source`; `build` writes its arrays if they are not there.

    `build` returns what is to be known of them besides (JSON: names of classes). It is called
    by one process of the machine at a time, the others wait and say so. What one left that was
    killed is removed by the next. A changed file is another key: its dataset is built anew, and
    what was stored of its old content is removed, which is said. UserError where the disk has
    no room, and where a session goes on (`pin`) whose dataset is not there any more and whose
    file has changed.
    """
    key = key_for(source)
    folder = make_store_folder() / key
    while True:
        found = _open(folder, source)
        if found is not None:
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
        lock = EntryLock(folder)
        lock.use(on_wait=lambda: _tell_waiting(source))
        if not (folder / ABOUT).is_file():
            lock.release()
            return None
        _in_use[folder] = lock
    elif not (folder / ABOUT).is_file():  # removed by hand, under the lock
        _in_use.pop(folder).release()
        return None
    os.utime(folder / ABOUT)  # when it was last used
    about = json.loads((folder / ABOUT).read_text())
    arrays = {file.stem: map_array(file) for file in sorted(folder.glob("*.npy"))}
    return Stored(folder, arrays, about["description"])


def _build(folder: Path, source: Source, build: Callable[[Writer], Mapping[str, Any]]) -> None:
    """Build the entry if it is still not there."""
    lock, is_waiting = EntryLock(folder), False
    while not lock.try_alone():
        # Not a wait for the lock: who has built the entry goes on to use it, and holds it then
        # together with others until its process ends.
        if (folder / ABOUT).is_file():
            return
        if not is_waiting:
            _tell_waiting(source)
            is_waiting = True
        time.sleep(POLL_S)
    try:
        if (folder / ABOUT).is_file():
            return
        remove_unfinished(folder.parent, locked=folder)
        old = entries_of(folder.parent, source)
        if old:
            is_ours = any(one.about["layout"] == LAYOUT for one in old)
            why = "has changed since it was stored" if is_ours else "was stored by another version"
            tell(f"{source.path} {why}, so it is read anew.")
        with written_whole(folder) as part:
            _write(part, source, build)
            source.require_unchanged()
        for entry in old:
            remove_entry(entry.folder)
    finally:
        lock.release()


def _write(part: Path, source: Source, build: Callable[[Writer], Mapping[str, Any]]) -> None:
    writer = Writer(part, f"dataset {source.name}")
    try:
        description = build(writer)
        labels = [np.load(file, mmap_mode="r") for file in part.glob("*labels.npy")]
        about = {
            "layout": LAYOUT,
            "source": source.name,
            "path": str(source.path.absolute()),
            "options": source.shown_options,
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


def _tell_waiting(source: Source) -> None:
    tell(f"dataset {source.name} is being stored by another process; waiting for it.")


def write_dataset(writer: Writer, dataset: Dataset) -> dict[str, Any]:
    """Write a dataset's arrays; return what `read_dataset` needs besides, as `build` does."""
    for part in SPLITS:
        for name, array in named_arrays(getattr(dataset, part), part).items():
            assert isinstance(array, np.ndarray)
            writer.save(name, array)
    return about_dataset(dataset)


def read_dataset(stored: Stored) -> Dataset:
    """Return the dataset that `write_dataset` wrote, its arrays mapped."""
    splits = {part: split_of_arrays(stored.arrays, part) for part in SPLITS}
    return dataset_of(stored.about, splits)
