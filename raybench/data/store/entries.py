"""What the store holds: listed, and removed where nobody uses it."""

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.data.store.lock import EntryLock
from raybench.data.store.source import Source

ABOUT = "about.json"
PART = ".part-"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A dataset of the store, as it lies there."""

    folder: Path
    about: dict[str, Any]
    """Keys: layout, source, path, options, bytes, samples, created, description."""
    last_used: float
    """Seconds since 1970."""

    @property
    def key(self) -> str:
        """Its name in the store."""
        return self.folder.name


def list_entries(store: Path) -> list[Entry]:
    """Return all that is whole, the last used first."""
    found = []
    for file in store.glob(f"*/{ABOUT}"):
        if PART in file.parent.name:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process removes it
            about = json.loads(file.read_text())
            found.append(Entry(folder=file.parent, about=about, last_used=file.stat().st_mtime))
    return sorted(found, key=lambda entry: entry.last_used, reverse=True)


def entries_of(store: Path, source: Source) -> list[Path]:
    """Return the entries made of the same path with the same options, of whatever content."""
    wanted = (
        source.name,
        str(source.path.absolute()),
        json.loads(json.dumps(source.shown_options)),
    )
    return [
        entry.folder
        for entry in list_entries(store)
        if (entry.about["source"], entry.about["path"], entry.about["options"]) == wanted
    ]


def remove_entry(folder: Path) -> bool:
    """Remove an entry that nobody uses; return whether it is gone."""
    lock = EntryLock(folder)
    if not lock.try_alone():
        return False
    with contextlib.suppress(FileNotFoundError):  # two were asked to remove it
        shutil.rmtree(folder)
    lock.remove()
    return True


def remove_unfinished(store: Path, *, locked: Path | None = None) -> int:
    """Remove what killed builders have left, and return its bytes.

    Only of entries whose lock is free, or held here (`locked`).
    """
    freed = 0
    for part in store.glob(f"*{PART}*"):
        folder = store / part.name.partition(PART)[0]
        with contextlib.ExitStack() as held:
            if folder != locked:
                lock = EntryLock(folder)
                if not lock.try_alone():
                    continue
                held.callback(lock.release)
            freed += sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
            shutil.rmtree(part)
    return freed
