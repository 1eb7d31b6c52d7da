"""A set that a library has downloaded before: found by its name, and read by its own files."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.dataset import Dataset
from raybench.data.sources.arrays import OPTIONS, RawSet, load_arrays
from raybench.data.store.source import Source, file_at


@dataclass(frozen=True)
class LibrarySet:
    """How a set is found and read."""

    find: Callable[[Path], list[Path] | None]
    """Folder of the library -> the set's files, all of them there or not; None: not there."""
    read: Callable[[Sequence[Path], DatasetSpec], RawSet]
    """Those files -> arrays."""
    options: tuple[str, ...] = ()
    """Keys of the dataset that its arrays depend on, besides those of all arrays."""


def load_library_set(
    spec: DatasetSpec, sets: Mapping[str, LibrarySet], folders: Sequence[Path], *, fetch: str
) -> Dataset:
    """Return set `spec.set`, from `spec.path` or else the first of `folders` that holds it.

    Nothing is downloaded: UserError that says where was looked, with `fetch`, what a user does
    to get it.
    """
    assert spec.set is not None
    known = sets.get(spec.set)
    if known is None:
        close = difflib.get_close_matches(spec.set, sets, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UserError(
            f"dataset.set: {spec.set} is none of the sets of {spec.name} that are read here: "
            f"{', '.join(sets)}{hint}"
        )
    if spec.path is not None:
        folders = [Path(spec.path).expanduser()]
    for folder in folders:
        files = known.find(folder)
        if files is not None and all(file.is_file() for file in files):
            return _load(spec, known, folder, files)
    looked = ", ".join(map(str, folders))
    raise UserError(
        f"dataset.set: {spec.set} of {spec.name} is not on this machine (looked in {looked}); "
        f"fetch it with {fetch}, or say by dataset.path which folder it was fetched to."
    )


def _load(spec: DatasetSpec, known: LibrarySet, folder: Path, files: Sequence[Path]) -> Dataset:
    include = {*OPTIONS, *known.options, "set"}
    source = Source(
        name=spec.name,
        path=folder,
        files=[file_at(file, name=str(file.relative_to(folder))) for file in files],
        options=spec.model_dump(mode="json", include=include),
    )
    return load_arrays(source, lambda: known.read(files, spec), spec)
