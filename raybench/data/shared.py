"""Sharing of arrays: built once, memory-mapped by all processes of a session (one command).

Inputs that are read on demand, and arrays that are memory-mapped already, are not written. Each
process loads these itself, since they may hold open files and are never pickled.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from raybench.data.dataset import NO_DATA, SPLITS, Dataset, about_dataset, all_arrays, dataset_of
from raybench.data.memory import is_mapped, map_array
from raybench.data.store import NO_ROOM, built_once
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import DatasetSpec

ABOUT = "dataset.json"


def shared_key(
    workload: str, spec: DatasetSpec, data: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the folder name of a shared dataset, the same for equal arguments.

    The name does not reflect the content of files that a workload's `load_dataset` reads, so the
    parent folder must not be kept for a later command.

    Args:
        workload: Name of the workload, used only if its `load_dataset` loads the data.
        spec: The dataset spec.
        data: Settings of the workload's `load_dataset`.
    """
    owner = [workload, *([dict(data)] if data else [])] if spec.name == "workload" else [""]
    content = json.dumps([*owner, spec.model_dump(mode="json")], sort_keys=True)
    return f"{spec.name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def share(dataset: Dataset, folder: Path) -> None:
    """Write a dataset's arrays to `folder`, for other processes to memory-map; do nothing for
    `NO_DATA`."""
    if dataset is not NO_DATA:
        open_shared(folder, lambda: dataset)


def open_shared(folder: Path, build: Callable[[], Dataset]) -> Dataset:
    """Return the dataset in `folder`, memory-mapped; build and write it if necessary.

    Only one process builds; the others wait. If the disk is full, the built dataset is returned
    and not shared. If the dataset has inputs that are read on demand or memory-mapped already,
    every process also calls `build` for these.

    Raises:
        UserError: The labels that `build` returns differ from those of another process.
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
    is_whole = about.pop("is_whole")
    arrays: dict[str, Any] = {file.stem: map_array(file) for file in folder.glob("*.npy")}
    if not is_whole:
        own = all_arrays(built or build())
        for name in SPLITS:
            if not np.array_equal(arrays[f"{name}-labels"], own[f"{name}-labels"]):
                raise UserError(
                    f"{about['name']}: the labels of the {name} split differ in another "
                    "process of this machine; list files in sorted order, and split them "
                    "only by spec.split_seed.",
                    ErrorCode.USER_CODE,
                )
        arrays = own | arrays
    return dataset_of(about, arrays)


def _write(dataset: Dataset, folder: Path) -> None:
    """Write the arrays that can be shared; `is_whole` in ABOUT says whether these are all."""
    about = about_dataset(dataset) | {"is_whole": True}
    for name, one in all_arrays(dataset).items():
        is_labels = name.endswith("-labels")
        if isinstance(one, np.ndarray) and (is_labels or not is_mapped(one)):
            np.save(folder / f"{name}.npy", np.ascontiguousarray(one))
        else:
            about["is_whole"] = False
    (folder / ABOUT).write_text(json.dumps(about))
