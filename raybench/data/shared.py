"""A dataset as files that all processes of a node map into memory: built once, held once.

Of a split on demand the labels alone: its object is made by each process for itself, since it may
hold open files, and nothing of a folder is unpickled. What it reads is the system's to keep.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.check import SPLITS
from raybench.data.dataset import Array, Dataset, Split

ABOUT = "dataset.json"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# A lock of `lockf` keeps processes apart, not the threads of one.
_threads = threading.Lock()


def shared_key(workload: str, spec: DatasetSpec) -> str:
    """Return the name of the folder for a dataset: equal for equal data, else another.

    The workload counts where the data are its own. What its code reads is not looked at, so
    the folder that holds these must not outlive a session.
    """
    owner = workload if spec.name == "workload" else ""
    content = json.dumps([owner, spec.model_dump(mode="json")], sort_keys=True)
    return f"{spec.name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def share(dataset: Dataset, folder: Path) -> None:
    """Write the arrays into `folder`, whole or not at all; does nothing where it is there."""
    with _lock(folder):
        if not folder.is_dir():
            _write(dataset, folder)


def open_shared(folder: Path, build: Callable[[], Dataset]) -> Dataset:
    """Return the dataset of `folder`, its arrays mapped; `build` makes it if it is not there.

    Processes that ask at once wait for the one that builds; what a killed one left is removed.
    The pages are the file's, so a node holds them once. Arrays can be written to, and what is
    written stays in this process (so torch takes them without a copy and without a warning).
    Where the disk has no room, what was built is returned as it is, and nothing is shared.
    Splits on demand are built by every process; UserError if they differ.
    """
    built: list[Dataset] = []
    if not folder.is_dir():
        with _lock(folder):
            if not folder.is_dir():
                built.append(build())
                try:
                    _write(built[0], folder)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    return built[0]
    splits = _open_arrays(folder)
    if len(splits) < len(SPLITS):
        own = built[0] if built else build()
        splits |= {name: _on_demand(own, name, folder) for name in SPLITS if name not in splits}
    about = json.loads((folder / ABOUT).read_text())
    return Dataset(about["name"], about["num_classes"], repeat=about["repeat"], **splits)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process that holds it, killed or not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _threads, (folder.parent / f"{folder.name}.lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _write(dataset: Dataset, folder: Path) -> None:
    """Write beside the folder, then rename: it is there as a whole or not. Needs the lock."""
    for left in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(left)
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        for name in SPLITS:
            split: Split = getattr(dataset, name)
            if not split.is_on_demand:
                np.save(part / f"{name}-inputs.npy", np.ascontiguousarray(split.array))
            np.save(part / f"{name}-labels.npy", np.ascontiguousarray(split.labels))
        about = {
            "name": dataset.name,
            "num_classes": int(dataset.num_classes),
            "repeat": int(dataset.repeat),
        }
        (part / ABOUT).write_text(json.dumps(about))
        part.chmod(0o755)  # mkdtemp's own keeps a node's other users out
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # gone by now, unless something went wrong


def _open_arrays(folder: Path) -> dict[str, Split]:
    """Return the splits that are not on demand."""
    return {
        name: Split(_map(folder / f"{name}-inputs.npy"), _map(folder / f"{name}-labels.npy"))
        for name in SPLITS
        if (folder / f"{name}-inputs.npy").is_file()
    }


def _on_demand(own: Dataset, name: str, folder: Path) -> Split:
    """Return a split that this process has built, with the labels that all share."""
    split: Split = getattr(own, name)
    labels = _map(folder / f"{name}-labels.npy")
    if not np.array_equal(labels, split.labels):
        raise UserError(
            f"{own.name}: the labels of the {name} split are others in another process of this "
            "machine; list files in sorted order, and split them by spec.split_seed alone."
        )
    return Split(split.inputs, labels)


def _map(file: Path) -> Array:
    # Copy on write: torch refuses to take arrays that cannot be written to without a warning.
    array: Array = np.load(file, mmap_mode="c")
    return array.view(np.ndarray)
