"""Checkpoints below a URL: uploaded, deleted, brought to another machine.

A checkpoint is a folder, `checkpoints/RUN/000012`, with weights and a `state.json`. Below the URL
the state is the last object to come and the first to go, so a reader never sees one without its
weights. It holds the weights' digest: checkpoints of equal states are equal, and stay as they are.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from raybench.core.checkpoint_files import STATE_FILE
from raybench.results.bucket import Bucket
from raybench.results.log_parts import FETCHERS
from raybench.results.spool import CHECKPOINTS, Stamp, files_below, key_of, name_of, stamp_of

Files = dict[str, Stamp]
"""The files of a checkpoint by their names in its folder."""
UNKNOWN: Stamp = (0, -1)
"""What an earlier driver uploaded, where this machine has something else: no file has it."""


class CheckpointUpload:
    """Makes the checkpoints below a URL those of the folder; one thread calls it.

    A thread of its own, because weights may take minutes and records wait for nothing.
    """

    def __init__(self, folder: Path, bucket: Bucket, may_write: Callable[[], None]) -> None:
        """`may_write` raises where nothing may be written any more."""
        self.folder, self._bucket, self._may_write = folder, bucket, may_write
        self._there: dict[str, Files] = {}
        """What is below the URL, by the checkpoints' folders."""

    def resume(self, keys: Iterable[str]) -> None:
        """Learn what an earlier driver uploaded."""
        here, there = _found(self.folder), _keys(keys)
        equal = _equal(self._bucket, self.folder, there)
        for name, files in there.items():
            known = here.get(name, {}) if name in equal else {}
            self._there[name] = {file: known.get(file, UNKNOWN) for file in files}

    def run(self) -> None:
        """Upload and delete what has changed. Raises BucketError, LeaseLostError."""
        if not self.folder.is_dir():
            return  # deleted by mistake: what is below the URL is all there is
        here = _found(self.folder)
        for name in sorted({*here, *self._there}):
            if here.get(name) != self._there.get(name):
                self._change(name, here.get(name, {}))

    def num_left(self) -> int:
        """Return how many files are not uploaded."""
        return sum(
            self._there.get(name, {}).get(file) != stamp
            for name, files in _found(self.folder).items()
            for file, stamp in files.items()
        )

    def _change(self, name: str, wanted: Files) -> None:
        there = self._there.setdefault(name, {})
        # The state goes first and comes last.
        for file in sorted(there, key=_is_state, reverse=True):
            if _is_state(file) or file not in wanted:
                self._may_write()
                self._bucket.delete(key_of(f"{name}/{file}"))
                del there[file]
        for file in sorted(wanted, key=_is_state):
            if there.get(file) != wanted[file]:
                self._may_write()
                try:
                    self._bucket.put_file(key_of(f"{name}/{file}"), self.folder / name / file)
                except FileNotFoundError:
                    return  # deleted just now: the next round sees it
                there[file] = wanted[file]
        if not there:
            del self._there[name]


def fetch_checkpoints(bucket: Bucket, keys: Iterable[str], folder: Path) -> None:
    """Make the checkpoints of a folder those below a URL; each comes whole or not at all."""
    there = _keys(keys)
    for name in set(_found(folder)) - set(there):
        shutil.rmtree(folder / name)
    equal = _equal(bucket, folder, there)

    def fetch(name: str) -> None:
        target = folder / name
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for file, key in there[name].items():
            bucket.get_file(key, partial / file)
        shutil.rmtree(target, ignore_errors=True)
        partial.replace(target)

    whole = [name for name, files in there.items() if STATE_FILE in files and name not in equal]
    with ThreadPoolExecutor(FETCHERS) as pool:
        list(pool.map(fetch, whole))


def _found(folder: Path) -> dict[str, Files]:
    """Return the checkpoints of a study's folder."""
    found: dict[str, Files] = {}
    for name in files_below(folder / CHECKPOINTS):
        path = PurePosixPath(CHECKPOINTS, name)
        stamp = stamp_of(folder / path)
        if stamp is not None:
            found.setdefault(str(path.parent), {})[path.name] = stamp
    # One that is just being deleted may have no weights any more.
    return {name: files for name, files in found.items() if set(files) != {STATE_FILE}}


def _keys(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the keys of the checkpoints' files, by their folders and names."""
    found: dict[str, dict[str, str]] = {}
    for key in keys:
        path = PurePosixPath(name_of(key) or "")
        if len(path.parts) > 2 and path.parts[0] == CHECKPOINTS:
            found.setdefault(str(path.parent), {})[path.name] = key
    return found


def _equal(bucket: Bucket, folder: Path, there: dict[str, dict[str, str]]) -> set[str]:
    """Return the checkpoints that are the same here and there."""

    def is_equal(name: str) -> bool:
        here, key = folder / name / STATE_FILE, there[name].get(STATE_FILE)
        return key is not None and here.is_file() and here.read_bytes() == bucket.get(key)

    with ThreadPoolExecutor(FETCHERS) as pool:
        return {name for name, same in zip(there, pool.map(is_equal, there), strict=True) if same}


def _is_state(file: str) -> bool:
    return file == STATE_FILE
