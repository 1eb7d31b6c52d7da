"""A dataset as files that all processes of a node map into memory: built once, held once.

What is on demand, or a mapped file already, is made by each process for itself: an object may hold
open files, and nothing of a folder is unpickled. What it reads is the system's to keep.

What is known of a dataset beside its arrays, as plain data for a file of JSON.
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
from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import SPLITS, Array, Dataset, Split
from raybench.data.inputs import OnDemand, parts
from raybench.data.memory import is_mapped, map_array
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec


def about_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return all but the arrays of the splits; `input_names` in the order of `inputs.parts`."""
    inputs = dataset.train.inputs
    return {
        "name": dataset.name,
        "num_classes": None if dataset.num_classes is None else int(dataset.num_classes),
        "repeat": int(dataset.repeat),
        "task": dataset.task,
        "class_names": list(dataset.class_names),
        "vocabulary": list(dataset.vocabulary),
        "label_scale": _listed(dataset.label_scale),
        "label_offset": _listed(dataset.label_offset),
        "encoding": dataset.encoding,
        "input_names": sorted(inputs) if isinstance(inputs, dict) else None,
    }


def dataset_of(about: dict[str, Any], splits: dict[str, Split]) -> Dataset:
    """Return the dataset that `about_dataset` has described, of these splits."""
    return Dataset(
        about["name"],
        about["num_classes"],
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        repeat=about["repeat"],
        task=about["task"],
        class_names=tuple(about["class_names"]),
        label_scale=_array(about["label_scale"]),
        label_offset=_array(about["label_offset"]),
        vocabulary=tuple(about["vocabulary"]),
        encoding=about["encoding"],
    )


def _listed(array: npt.NDArray[np.float32] | None) -> float | list[float] | None:
    return None if array is None else np.asarray(array, np.float32).tolist()


def _array(values: float | list[float] | None) -> npt.NDArray[np.float32] | None:
    return None if values is None else np.array(values, np.float32)


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
    The pages are the file's, so a node holds them once; see `map_array` of writing to them.
    Where the disk has no room, what was built is returned as it is, and nothing is shared.
    What is on demand, or mapped, is built by every process; UserError if its labels differ.
    """
    built: Dataset | None = None
    if not folder.is_dir():
        with _lock(folder):
            if not folder.is_dir():
                built = build()
                try:
                    _write(built, folder)
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    return built
    about = json.loads((folder / ABOUT).read_text())
    if about["is_whole"]:
        return dataset_of(about, {name: _open(folder, name, about, None) for name in SPLITS})
    own = built or build()
    return dataset_of(about, {name: _open(folder, name, about, own) for name in SPLITS})


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
        about = about_dataset(dataset) | {"is_whole": True}
        for name in SPLITS:
            split: Split = getattr(dataset, name)
            arrays = _arrays(split)
            for what, array in arrays.items():
                np.save(part / f"{name}-{what}.npy", np.ascontiguousarray(array))
            about["is_whole"] &= len(arrays) == len(_all_of(split))
        (part / ABOUT).write_text(json.dumps(about))
        part.chmod(0o755)  # mkdtemp's own keeps a node's other users out
        part.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # gone by now, unless something went wrong


def _all_of(split: Split) -> dict[str, Array | OnDemand]:
    """Return all that a split is made of, by what its files are named for."""
    found = {_stem(index): one for index, one in enumerate(parts(split.inputs))}
    found["labels"] = split.labels
    if split.weights is not None:
        found["weights"] = split.weights
    return found


def _arrays(split: Split) -> dict[str, Array]:
    """Return what of a split all processes share by a file of the folder."""
    return {
        what: one
        for what, one in _all_of(split).items()
        if isinstance(one, np.ndarray) and not is_mapped(one)
    }


def _stem(index: int) -> str:
    return "inputs" if index == 0 else f"inputs{index}"


def _open(folder: Path, name: str, about: dict[str, Any], own: Dataset | None) -> Split:
    """Return a split: what is not in the folder is of `own`, which this process has built."""
    found: dict[str, Any] = {} if own is None else _all_of(getattr(own, name))
    known = found.get("labels")
    found |= {
        file.stem.removeprefix(f"{name}-"): map_array(file) for file in folder.glob(f"{name}-*.npy")
    }
    if known is not None and not np.array_equal(found["labels"], known):
        raise UserError(
            f"{about['name']}: the labels of the {name} split are others in another process of "
            "this machine; list files in sorted order, and split them by spec.split_seed alone."
        )
    inputs: Any = found["inputs"]
    if about["input_names"] is not None:
        inputs = {key: found[_stem(index)] for index, key in enumerate(about["input_names"])}
    return Split(inputs, found["labels"], found.get("weights"))
