"""Sets of Hugging Face's `datasets`, as its library wrote them: to a folder, or to its cache."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.dataset_spec import DatasetSpec
from raybench.core.errors import UserError
from raybench.data.sources.files import split_of
from raybench.data.sources.table import BATCH_ROWS, Table, Tables, is_text

MISSING_LABEL = -1
"""Label of a split whose labels are kept secret, as of a contest."""


class HuggingFaceTable:
    """One split of such a set."""

    def __init__(self, split: Any, source: str) -> None:
        """`split`: a `datasets.Dataset`."""
        self.source, self.folder = source, str(Path.cwd())
        self.schema = split.features.arrow_schema.remove_metadata()
        self.num_rows = split.num_rows
        self.class_names: Mapping[str, Sequence[str]] = {
            name: tuple(feature.names)
            for name, feature in split.features.items()
            if hasattr(feature, "names")
        }
        self.images = [
            name for name, feature in split.features.items() if type(feature).__name__ == "Image"
        ]
        self._split = split.with_format("arrow")

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """See `Table`."""
        chosen = self._split.select_columns(list(columns))
        for table in chosen.iter(BATCH_ROWS):
            yield from table.combine_chunks().to_batches()

    def place(self, row: int) -> str:
        """See `Table`."""
        return f"row {row + 1} of {self.source}"


def open_huggingface(spec: DatasetSpec) -> tuple[Tables, list[Path]]:
    """Return the tables of a set, and the files that they are read from.

    `spec.path`: a folder that `save_to_disk` wrote, or the name of a set in the library's cache,
    whose configuration `spec.set` names. Nothing is downloaded.
    """
    assert spec.path is not None
    found = _load(spec.path, spec.set)
    by_split = found if isinstance(found, dict) else {"train": found}
    splits = {}
    for name, one in by_split.items():
        split = split_of(name)
        if split is not None and split not in splits and one.num_rows:
            splits[split] = one
    if "train" not in splits:
        raise UserError(
            f"dataset.path: {spec.path} has the splits {', '.join(by_split) or 'none'}, and no "
            "train with rows in it; name another set."
        )
    tables = {
        split: HuggingFaceTable(one, f"{spec.path} ({split})" if len(splits) > 1 else spec.path)
        for split, one in splits.items()
    }
    files = [Path(about["filename"]) for one in splits.values() for about in one.cache_files]
    return Tables(**tables), files


def with_usual_columns(spec: DatasetSpec, tables: Tables) -> tuple[DatasetSpec, Tables]:
    """Return the spec with the columns that its keys leave open, told from the set's features.

    A split whose labels are all hidden (-1) is left out.
    """
    train = tables.train
    assert isinstance(train, HuggingFaceTable)
    chosen: dict[str, Any] = {}
    if spec.label is None and spec.task != "language_modelling":
        chosen["label"] = _label(spec, train)
    if spec.image is None and spec.text is None and spec.columns is None:
        used = {chosen.get("label"), spec.label if isinstance(spec.label, str) else None}
        texts = [name for name in train.schema.names if is_text(train, name) and name not in used]
        if train.images:
            chosen["image"] = train.images[0]
        elif "text" in texts or len(texts) == 1:
            chosen["text"] = "text" if "text" in texts else texts[0]
    spec = spec.model_copy(update=chosen)
    if isinstance(spec.label, str) and spec.label in train.class_names:
        kept: dict[str, Table] = {
            split: table
            for split, table in tables.items()
            if split == "train" or not _is_hidden(table, spec.label)
        }
        tables = Tables(**kept)
    return spec, tables


def _label(spec: DatasetSpec, table: HuggingFaceTable) -> str:
    known = [name for name in ("label", "labels") if name in table.schema.names]
    found = known or list(table.class_names)
    if len(found) != 1:
        raise UserError(
            f"dataset.label: name the column of the labels of {spec.path}; its columns are "
            f"{', '.join(table.schema.names)}."
        )
    return found[0]


def _is_hidden(table: Table, label: str) -> bool:
    if label not in table.schema.names:
        return True
    return all(
        (np.asarray(batch.column(0)) == MISSING_LABEL).all() for batch in table.batches([label])
    )


def _load(path: str, name: str | None) -> Any:
    datasets = _library()
    folder = Path(path).expanduser()
    if folder.is_file():
        raise UserError(f"dataset.path: {path} is a file; name the folder save_to_disk wrote.")
    if folder.is_dir():
        try:
            return datasets.load_from_disk(str(folder))
        except (FileNotFoundError, ValueError, KeyError, OSError) as error:
            raise UserError(
                f"dataset.path: {path} is no whole folder of datasets' save_to_disk ({error}); "
                "save it again, or name another kind of dataset (parquet, image_folder)."
            ) from error
    try:
        return datasets.load_dataset(
            path, name, download_config=datasets.DownloadConfig(local_files_only=True)
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"dataset.path: there is no folder {path}, and datasets' cache has no set of that name "
            f"({type(error).__name__}: {error}); download it first with load_dataset, or name a "
            "folder that save_to_disk wrote."
        ) from error


def _library() -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise UserError(
            "dataset huggingface needs the library datasets, which is not installed: "
            "pip install 'raybench[models]'."
        ) from error
    datasets.disable_progress_bars()
    # Also where a user has not set HF_HUB_OFFLINE: a training must not wait for the net.
    datasets.config.HF_HUB_OFFLINE = True
    return datasets
