"""How a folder of images is laid out: its splits and its classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raybench.core.errors import UserError
from raybench.data.store.source import File

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""What folders of splits may be called, as Hugging Face's ImageFolder has them."""
METADATA = "metadata.csv"


@dataclass
class FolderSplit:
    """Files of one split; names are from the folder that the user named."""

    images: list[File] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    """Names of its `metadata.csv` files; where there is one, classes are no folders."""


@dataclass
class Layout:
    """What a folder holds."""

    splits: dict[str, FolderSplit]
    """`train` alone where the folder has no splits of its own."""
    prefixes: dict[str, str]
    """By split, what the names of its files begin with: `train/`."""

    @property
    def has_splits(self) -> bool:
        """Whether the folder has splits of its own."""
        return bool(self.prefixes["train"])


def lay_out(files: Sequence[File], place: str) -> Layout:
    """Sort the images and tables of a folder; UserError, naming `place`, for what is no layout.

    `metadata.csv` may lie in the folder, in those of its splits, or both.
    """
    prefixes = _prefixes(files, place)
    layout = Layout({name: FolderSplit() for name in prefixes}, prefixes)
    for file in files:
        split = _split_of(file.name, prefixes)
        in_folder = "/" not in file.name
        if file.name.rpartition("/")[2] == METADATA:
            wanted = [split] if split else list(prefixes) if in_folder else []
            for name in wanted:
                layout.splits[name].metadata.append(file.name)
        elif split is None:
            raise UserError(
                f"{place}/{file.name} lies outside of the splits {_listed(prefixes)}; move or "
                "remove it."
            )
        else:
            layout.splits[split].images.append(file)
    return layout


def require_none_empty(layout: Layout, place: Path) -> None:
    """Raise UserError for a folder of a split or of a class that holds no image."""
    names = {name for known in SPLIT_NAMES.values() for name in known}
    if layout.has_splits:
        wanted = [one for one in place.iterdir() if one.is_dir() and one.name.lower() in names]
    else:
        wanted = [place]
    has_classes = not any(split.metadata for split in layout.splits.values())
    if has_classes:
        wanted += [one for folder in wanted for one in folder.iterdir() if one.is_dir()]
    images = [file.name for split in layout.splits.values() for file in split.images]
    filled = {place} | {
        place / folder for folder in {one for name in images for one in _first_two(name)}
    }
    for folder in wanted:
        if folder not in filled and not folder.name.startswith("."):
            raise UserError(f"{folder} holds no images; give it at least one, or remove it.")


def class_of(name: str, prefix: str, place: str) -> str:
    """Return the class of an image by its folder below the split; UserError if it has none."""
    folder, separator, _ = name.removeprefix(prefix).partition("/")
    if not separator:
        raise UserError(
            f"{place}/{name} is in no folder of a class; move it into {prefix}<class>/, or list it "
            f"with its label in {prefix}{METADATA} (columns file_name and label)."
        )
    return folder


def _prefixes(files: Sequence[File], place: str) -> dict[str, str]:
    """Return by split what its files' names begin with; `train: ""` where there are no splits."""
    folders = dict.fromkeys(file.name.partition("/")[0] for file in files if "/" in file.name)
    found: dict[str, str] = {}
    for folder in folders:
        for split, names in SPLIT_NAMES.items():
            if folder.lower() in names:
                if split in found:
                    raise UserError(
                        f"{place} holds both {found[split].rstrip('/')} and {folder}; keep one of "
                        "them."
                    )
                found[split] = f"{folder}/"
    if found and len(found) == len(folders) and "train" not in found:
        raise UserError(
            f"{place} holds {_listed(found)} and no train; add the images to train on, or name "
            "another folder."
        )
    inner = _inner(files)
    if "train" not in found and inner:
        held = ", ".join(_below(files, inner)[:5])
        raise UserError(
            f"{place} holds the folder {inner} alone, and in it {held}; name {place}/{inner}."
        )
    # Beside others they are classes that are called so ("test" and "no_test").
    return found if "train" in found else {"train": ""}


def _inner(files: Sequence[File]) -> str:
    """Return the only folder that all files lie in, where splits or several folders are in it."""
    inner = ""
    while len(below := _below(files, inner)) == 1 and all(
        file.name.removeprefix(inner).count("/") for file in files
    ):
        inner = f"{inner}{next(iter(below))}/"
    return inner.rstrip("/") if len(below) > 1 else ""


def _below(files: Sequence[File], folder: str) -> list[str]:
    """Return the folders directly below one, in order."""
    begin = f"{folder.rstrip('/')}/" if folder else ""
    names = (file.name.removeprefix(begin) for file in files)
    return list(dict.fromkeys(name.partition("/")[0] for name in names if "/" in name))


def _first_two(name: str) -> list[str]:
    """Return the first folder of a file's name, and the first two."""
    folders = name.split("/")[:-1]
    return ["/".join(folders[:1]), "/".join(folders[:2])]


def _split_of(name: str, prefixes: dict[str, str]) -> str | None:
    return next((split for split, prefix in prefixes.items() if name.startswith(prefix)), None)


def _listed(prefixes: dict[str, str]) -> str:
    return ", ".join(prefix.rstrip("/") for prefix in prefixes.values())
