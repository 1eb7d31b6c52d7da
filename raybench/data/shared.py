"""Datasets shared by all processes of a session (one command): built once, then memory-mapped.

A dataset is not shared if its inputs are read on demand or are already memory-mapped. Each process
then loads it itself, since such a dataset may contain open files, which cannot be pickled.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from raybench.data.dataset import NO_DATA, Dataset, about_dataset, all_arrays, dataset_of
from raybench.data.memory import is_mapped, map_array
from raybench.data.store import NO_ROOM, built_once
from raybench.spec.run import DatasetSpec

ABOUT = "dataset.json"


def shared_key(
    workload: str, spec: DatasetSpec, data: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the name of the folder for a shared dataset; it is the same for equal arguments.

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
    returned without being shared. If the dataset cannot be shared, because its inputs are read on
    demand or already memory-mapped, every process builds it.

    Args:
        folder: Folder of the shared dataset.
        build: Function that returns the dataset.
    """
    built: Dataset | None = None
    if not folder.is_dir():
        try:
            with built_once(folder / ABOUT) as part:
                if part is not None:
                    built = build()
                    _write(built, part)
        except OSError as error:
            if built is None or error.errno not in NO_ROOM:
                raise
            return built
    about = json.loads((folder / ABOUT).read_text())
    if about is None:
        return built or build()
    return dataset_of(about, {file.stem: map_array(file) for file in folder.glob("*.npy")})


def _write(dataset: Dataset, folder: Path) -> None:
    """Write the arrays of a dataset and its other fields; if the dataset cannot be shared, write
    null to the file ABOUT instead."""
    arrays = all_arrays(dataset)
    is_whole = all(
        isinstance(array, np.ndarray) and not is_mapped(array) for array in arrays.values()
    )
    for name, array in arrays.items() if is_whole else ():
        np.save(folder / f"{name}.npy", np.ascontiguousarray(array))
    (folder / ABOUT).write_text(json.dumps(about_dataset(dataset) if is_whole else None))
