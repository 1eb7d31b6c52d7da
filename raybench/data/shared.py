"""A dataset as files that all processes of a session map into memory: built once, held once.

Inputs on demand, and mapped files, are opened by each process for itself: an object may hold open
files, and nothing is pickled.
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
    """Return the name of the folder of a dataset, equal for equal data.

    The files that a workload's own code reads are not part of the name, so the parent folder must
    not outlive a session.

    Args:
        workload: Part of the name for data of the workload's own.
        spec: The dataset.
        data: Settings of the workload's `load_dataset`.
    """
    owner = [workload, *([dict(data)] if data else [])] if spec.name == "workload" else [""]
    content = json.dumps([*owner, spec.model_dump(mode="json")], sort_keys=True)
    return f"{spec.name}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def share(dataset: Dataset, folder: Path) -> None:
    """Write a dataset's arrays to `folder`, for other processes to memory-map; nothing for
    `NO_DATA`."""
    if dataset is not NO_DATA:
        open_shared(folder, lambda: dataset)


def open_shared(folder: Path, build: Callable[[], Dataset]) -> Dataset:
    """Return the dataset of `folder` with its arrays mapped; build and write it if necessary.

    One process builds, others wait. On a full disk the built dataset is returned, and nothing is
    shared. Every process builds inputs on demand, and mapped ones, for itself.

    Raises:
        UserError: Another process has built other labels.
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
    """Write the arrays that all processes share."""
    about = about_dataset(dataset) | {"is_whole": True}
    for name, one in all_arrays(dataset).items():
        is_labels = name.endswith("-labels")
        if isinstance(one, np.ndarray) and (is_labels or not is_mapped(one)):
            np.save(folder / f"{name}.npy", np.ascontiguousarray(one))
        else:
            about["is_whole"] = False
    (folder / ABOUT).write_text(json.dumps(about))
