"""The label of each image of a folder: the folder it lies in, or its row of `metadata.csv`."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from raybench.core.errors import UserError
from raybench.data.sources.folder_layout import Layout, class_of
from raybench.data.sources.labels import Labelled
from raybench.data.sources.metadata import read_metadata
from raybench.data.store.progress import tell
from raybench.data.store.source import File


def label_images(
    layout: Layout, place: Path, label: str | list[str] | None
) -> dict[str, list[Labelled]]:
    """Return by split the images that have labels, in the order of their names.

    Of a folder with a `metadata.csv` images that it does not list are left out, which is said.
    UserError for a listed image that is not there, and a split without a labelled one.
    """
    tables = dict.fromkeys(name for split in layout.splits.values() for name in split.metadata)
    if not tables:
        if label is not None:
            raise UserError(
                f"dataset.label: {label}: {place} has no metadata.csv with such a column; leave "
                "the key out, then classes are folders."
            )
        return {
            part: _by_folder(split.images, layout.prefixes[part], place)
            for part, split in layout.splits.items()
        }
    rows = _rows(list(tables), place, label)
    found: dict[str, list[Labelled]] = {}
    missing = set(rows)
    for part, split in layout.splits.items():
        listed = [rows[file.name] for file in split.images if file.name in rows]
        missing -= {one.name for one in listed}
        if len(listed) < len(split.images):
            left = next(file.name for file in split.images if file.name not in rows)
            if not listed:
                raise UserError(
                    f"{place}: no metadata.csv lists an image of the {part} split, such as {left}; "
                    "list them with their labels, or remove them."
                )
            tell(
                f"{place}: {len(split.images) - len(listed):,} images that no metadata.csv lists "
                f"are left out, such as {left}."
            )
        found[part] = listed
    for name in sorted(missing):
        one = rows[name]
        raise UserError(
            f"{one.where}: there is no image {place}/{name}; correct the name, or remove the line "
            f"({len(missing):,} such lines)."
        )
    return found


def _by_folder(images: Sequence[File], prefix: str, place: Path) -> list[Labelled]:
    return [
        Labelled(file.name, (class_of(file.name, prefix, str(place)),), f"{place}/{file.name}")
        for file in images
    ]


def _rows(tables: Sequence[str], place: Path, label: str | list[str] | None) -> dict[str, Labelled]:
    """Return what the tables say of each image, by its name from `place`."""
    rows: dict[str, Labelled] = {}
    for table in tables:
        folder = PurePosixPath(table).parent
        for row in read_metadata(place / table, label):
            name = str(folder / row.name)
            where = f"{place / table}, line {row.line}"
            if name in rows and rows[name].labels != row.labels:
                raise UserError(
                    f"{where}: {row.name} has another label in {rows[name].where}; keep one."
                )
            rows[name] = Labelled(name, row.labels, where)
    return rows
