"""Temporary folders of a session: one per host, gone with it, and swept up after a killed one."""

import fcntl
import shutil
import tempfile
from pathlib import Path
from typing import TextIO

PREFIX = "raybench-"
DATA = "data"
"""Folder below a host's scratch folder that all its workers map their data from."""
ALIVE = "alive"
"""File that is locked for as long as somebody uses the folder; the system drops the lock of a
process that ends, however it ends."""


class Scratch:
    """The driver's own folder; what killed sessions have left on this host is removed first."""

    def __init__(self) -> None:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = _hold(self.folder)

    def remove(self) -> None:
        """Remove the folder."""
        self._lock.close()
        shutil.rmtree(self.folder, ignore_errors=True)


_held: dict[Path, TextIO] = {}


def on_this_host(scratch: str) -> Path:
    """Return the session's folder on this host: the driver's own, or one beside those of others.

    The latter is kept while a worker that has asked for it lives.
    """
    own = Path(scratch)
    if own.is_dir():
        return own
    folder = Path(tempfile.gettempdir()) / own.name
    if folder not in _held:
        sweep()
        folder.mkdir(exist_ok=True)
        _held[folder] = _hold(folder)
    return folder


def sweep() -> None:
    """Remove the folders that nobody uses any more."""
    for alive in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{ALIVE}"):
        try:
            with alive.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(alive.parent, ignore_errors=True)
        except OSError:
            continue  # in use, or another user's


def _hold(folder: Path) -> TextIO:
    file = (folder / ALIVE).open("w")
    fcntl.flock(file, fcntl.LOCK_SH)
    return file
