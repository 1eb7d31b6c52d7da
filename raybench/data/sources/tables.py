"""Loaders of tables (which may have an image column), of image folders, of texts and of Hugging
Face datasets."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybench.data.dataset import SPLITS, Array, Dataset, Rows, Split
from raybench.data.sources import files, images, texts
from raybench.data.sources.cut import (
    KEYS,
    Member,
    choose_split_rows,
    mixed_order,
    note_time_order,
    row_order,
    standardized,
    stored_and_cut,
)
from raybench.data.sources.encode import Features
from raybench.data.sources.table import (
    Labels,
    Note,
    Table,
    Tables,
    find_roles,
    is_text_type,
    read_labels,
    read_weights,
    require_columns,
)
from raybench.data.store import (
    File,
    Source,
    Writer,
    file_at,
    list_files,
    print_note,
    stored_dataset,
)
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode, UserError

HIDDEN = -1  # label of all samples in a split whose labels are not published, as in benchmarks
NOT_OPTIONS = ("path", "class_weights", "repeat", "limit", "shape", "num_classes", "num_samples")
"""Keys of `dataset` on which the stored arrays do not depend."""
IMAGE_OPTIONS = (
    *("image", "label", "task", "weight", "image_size", "resize", "channels", "white"),
    *("split_seed", "split_by", "decimal", "dates"),
)
"""Keys of `dataset` on which the stored arrays of images depend. Sizes of splits are not among
them, since splits are cut from the stored arrays (see `cut`)."""


def load_csv(spec: DatasetSpec) -> Dataset:
    """Load a CSV or Parquet file, or a folder with one such file per split.

    A folder of Parquet files may also hold several files per split, or several files that together
    form one table.
    """
    return _load(spec, _files(spec), lambda: files.open_tables(spec))


load_parquet = load_csv


def load_huggingface(spec: DatasetSpec) -> Dataset:
    """Load a dataset of Hugging Face's library `datasets` from a folder or the library's cache."""
    tables, read = open_huggingface(spec)
    spec, tables = with_default_columns(spec, tables)
    listed = [file_at(path, name=str(path.absolute())) for path in read]
    return _load(spec, listed, lambda: tables)


def load_image_folder(spec: DatasetSpec) -> Dataset:
    """Load a folder that contains a folder of images for each class.

    The class folders may also be nested in one folder per split.
    """
    path = _path(spec)
    listed, num_others = files.list_images(path)

    def build(writer: Writer) -> Mapping[str, Any]:
        if num_others:
            _notes(spec)(f"{num_others:,} files without the suffix of an image are left out.")
        named = spec.model_copy(update={"image": files.FILE_NAME, "label": files.LABEL})
        return _store_images(named, files.open_image_folder(path, listed), writer)

    return stored_and_cut(_source(spec, listed, IMAGE_OPTIONS), build, spec)


def load_text(spec: DatasetSpec) -> Dataset:
    """Load texts to classify (`path/CLASS/*.txt`), or running text for a language model."""
    path, listed = _path(spec), _files(spec)
    if not is_of_classes(spec):
        return _load_language(spec, listed, lambda: texts.running_texts(path))
    spec = spec.model_copy(update={"text": files.TEXT, "label": files.LABEL})
    return _load(spec, listed, lambda: files.open_text_folder(path, texts.read_text))


def is_of_classes(spec: DatasetSpec) -> bool:
    """Return whether text files are to be classified; otherwise, they are for a language model.

    Raises:
        UserError: The task is a regression.
    """
    path = _path(spec)
    if spec.task == "regression":
        raise UserError(
            f"dataset.task: regression is not for files of text ({path}); leave it out, or put "
            "texts and numbers into a table.",
            ErrorCode.UNSUPPORTED,
        )
    if spec.task is None:
        return path.is_dir() and files.is_class_folder(path)
    return spec.task == "classification"


def _load(spec: DatasetSpec, listed: Sequence[File], open_tables: Callable[[], Tables]) -> Dataset:
    """Load a dataset of tables; `open_tables` opens the listed files as tables, keyed by split."""
    if spec.task == "language_modelling":
        return _load_language(spec, listed, lambda: _column_texts(spec, open_tables()))
    if spec.image is not None:
        tables = open_tables()
        source = _source(spec, [*listed, *_image_files(spec.image, tables)], IMAGE_OPTIONS)
        return stored_and_cut(source, lambda writer: _store_images(spec, tables, writer), spec)

    def build(writer: Writer) -> Dataset:
        tables = open_tables()  # only opened if the dataset is not stored yet
        total = sum(table.num_rows for table in tables.values())
        with writer.progress(f"reading {total:,} rows", total) as advance:
            return table_dataset(spec, tables, _notes(spec), writer, advance)

    return stored_dataset(_source(spec, listed), build)


def table_dataset(
    spec: DatasetSpec, tables: Tables, note: Note, writer: Writer, advance: Callable[[int], None]
) -> Dataset:
    """Convert tables to a dataset, reading the inputs one batch of rows at a time.

    Args:
        spec: The dataset spec.
        tables: Tables by split.
        note: Function that shows sentences about how the data are read and what is left out.
        writer: Writer of the store entry, which creates the arrays of inputs (`train-inputs`, ...).
        advance: Function that is called with the number of rows after each batch, to show progress.

    Raises:
        UserError: The data are invalid; the message names the first invalid row and its column.
    """
    labels, members, inputs = prepare(spec, tables, note)
    arrays = _write_inputs(inputs, members, writer, advance)
    train = tables["train"]
    weights = read_weights(train, spec.weight)[members[0].rows] if spec.weight else None
    values = [
        labels.values["train" if member.table is train else member.split][member.rows]
        for member in members
    ]
    known: dict[str, Any] = {}
    if labels.task == "regression":
        values, known["label_scale"], known["label_offset"] = standardized(values)
    splits: dict[str, Any] = {
        part: Split(arrays[part], split_labels, weights if part == "train" else None)
        for part, split_labels in zip(arrays, values, strict=True)
    }
    return Dataset(
        spec.name,
        len(labels.class_names) or None,
        **splits,
        task=labels.task,
        class_names=labels.class_names,
        vocabulary=inputs.vocabulary,
        encoding=inputs.encoding,
        **known,
    )


def prepare(
    spec: DatasetSpec, tables: Tables, note: Note
) -> tuple[Labels, list[Member], Features | texts.Tokens]:
    """Read the labels, choose the rows of the splits, and fit the encoding of the inputs.

    Args:
        spec: The dataset spec.
        tables: Tables by split.
        note: Function that shows sentences about how the data are read and what is left out.

    Returns:
        Labels of the tables; the splits `train`, `validation` and `test`; and the encoding of the
        inputs, which is fitted to the training rows.

    Raises:
        UserError: The data are invalid.
    """
    columns, inputs = find_roles(spec, tables, note)
    labels = read_labels(tables, columns, spec.task, allow_many_classes=spec.text is not None)
    members = choose_split_rows(spec, tables, labels)
    note_time_order(spec, tables, note)
    if spec.text is None:
        return labels, members, Features(spec, inputs, members[0], note)
    texts.require_text(members[0].table, spec.text)
    training_texts = (
        text for batch in members[0].batches([spec.text]) for text in texts.texts_of(batch)
    )
    return labels, members, texts.Tokens(spec, tables["train"].source, training_texts, note)


def _write_inputs(
    encoding: Features | texts.Tokens,
    members: list[Member],
    writer: Writer,
    advance: Callable[[int], None],
) -> dict[str, Array]:
    """Encode the inputs into new arrays of the store; return the arrays, keyed by split."""
    arrays: dict[str, Array] = {}
    for member in members:
        shape = (len(member.rows), *encoding.shape)
        array = writer.array(f"{member.split}-inputs", shape, encoding.dtype)
        arrays[member.split] = array
        # For each row of the split, in the order of the table: its index in the array.
        indices, start = np.argsort(member.rows), 0
        for batch in member.batches(encoding.columns):
            array[indices[start : start + batch.num_rows]] = encoding.write(batch)
            start += batch.num_rows
            advance(batch.num_rows)
    return arrays


def _load_language(
    spec: DatasetSpec, listed: Sequence[File], read: Callable[[], dict[str, str]]
) -> Dataset:
    """Load running text for a language model; `read` returns the text of each split."""
    return stored_dataset(_source(spec, listed), lambda _: texts.language_dataset(spec, read()))


def _column_texts(spec: DatasetSpec, tables: Tables) -> dict[str, str]:
    """Return, for each split, the texts of the column `spec.text` joined by newlines."""
    train = tables["train"]
    if spec.text is None:
        raise UserError(
            f"dataset.text: name the column with the texts: {', '.join(train.schema.names)}.",
            ErrorCode.MISSING,
        )
    for table in tables.values():
        require_columns(table, [spec.text], "text")
        texts.require_text(table, spec.text)
    return {
        member.split: "\n".join(
            text for batch in member.batches([spec.text]) for text in texts.texts_of(batch)
        )
        for member in choose_split_rows(spec, tables, None)
    }


def _notes(spec: DatasetSpec) -> Note:
    """Return a function that prints sentences about a dataset, beginning with its path."""
    return lambda sentence: print_note(f"{spec.path}: {sentence}")


def _path(spec: DatasetSpec) -> Path:
    return Path(str(spec.path)).expanduser()


def _files(spec: DatasetSpec) -> list[File]:
    """Return the file, or all files of the folder, that `dataset.path` names."""
    path = _path(spec)
    if not path.exists():
        raise UserError(
            f"dataset.path: {path} does not exist (working directory: {Path.cwd()}).",
            ErrorCode.NOT_FOUND,
        )
    return [file_at(path)] if path.is_file() else list_files(path)


def _source(spec: DatasetSpec, listed: Sequence[File], keys: Sequence[str] | None = None) -> Source:
    """Return the source of a dataset: its files, and the options on which the stored arrays depend
    (by default, all keys except NOT_OPTIONS)."""
    options = spec.model_dump(mode="json", include=set(keys) if keys else None)
    options = {key: value for key, value in options.items() if key not in NOT_OPTIONS}
    return Source(name=spec.name, path=_path(spec), files=listed, options=options)


def is_picture_type(kind: Any) -> bool:
    """Return whether a pyarrow type is the image type of Hugging Face, a struct of bytes and
    path."""
    return pa.types.is_struct(kind) and bool({field.name for field in kind} & {"bytes", "path"})


def require_image_column(table: Table, column: str) -> None:
    """Raise UserError if the type of a column does not allow images."""
    kind = table.kind(column)
    tests = (pa.types.is_binary, pa.types.is_large_binary, is_text_type, is_picture_type)
    if not any(test(kind) for test in tests):
        raise UserError(
            f"dataset.image: column '{column}' contains {kind}; images are bytes or paths.",
            ErrorCode.INVALID_DATA,
        )


def first_pictures(table: Table, column: str) -> list[images.Picture]:
    """Return evenly spaced images from the first batch of rows of a table, for `images.probe`."""
    batch = next(iter(table.batches([column])))
    step = max(1, batch.num_rows // images.PROBES)
    rows = range(0, batch.num_rows, step)
    return [_picture(table, column, batch.column(0)[row].as_py(), row, 0) for row in rows]


def _store_images(spec: DatasetSpec, tables: Tables, writer: Writer) -> dict[str, Any]:
    """Write images and labels in the order from which splits are cut.

    Returns:
        The task, the class names and the encoding, as JSON values.
    """
    columns, _ = find_roles(spec, tables, _notes(spec))
    image = spec.image
    assert image is not None
    for table in tables.values():
        require_image_column(table, image)
    labels = read_labels(tables, columns, spec.task, allow_many_classes=True)
    note_time_order(spec, tables, _notes(spec))
    is_class = labels.task == "classification"
    form = images.probe(first_pictures(tables["train"], image), spec)
    for split, table in tables.items():
        values = labels.values[split]
        classes, keys = values if is_class else None, None
        if split == "train":
            order, keys = row_order(spec, table, classes)
        else:
            order = mixed_order(classes, table.num_rows, seed=spec.split_seed)
        if keys is not None:
            writer.save(KEYS, keys)
        writer.save(f"{split}-labels", values[order].astype(np.int64 if is_class else np.float32))
        if split == "train" and spec.weight is not None:
            writer.save("train-weights", read_weights(table, spec.weight)[order])
        pictures, name = _pictures(table, image, order), f"{split}-inputs"
        images.decode_images(writer, name, pictures, table.num_rows, form)
    if form.white is not None:
        _notes(spec)(
            "images of more than 8 bits are converted to 8 bits; the pixel value of white is "
            f"{form.white:g} (see dataset.white)."
        )
    encoding = {"white": form.white} if form.white is not None else None
    return {"task": labels.task, "class_names": list(labels.class_names), "encoding": encoding}


def _image_files(column: str, tables: Tables) -> list[File]:
    """Return the existing image files to which the paths in a column refer.

    They are part of the source of the dataset, so that all images are decoded again if a file
    changes.
    """
    by_path = {}
    for table in tables.values():
        if column not in table.schema.names or not table.is_text(column):
            continue
        for cell in table.column(column).to_pylist():
            path = Path(table.folder, cell or "").absolute()
            if path.is_file():
                by_path[str(path)] = file_at(path, name=str(path))
    return [by_path[name] for name in sorted(by_path)]


def _pictures(table: Table, column: str, order: Rows) -> Iterator[images.Picture]:
    """Yield all images of a column, each with its row in the output array.

    The output array contains the rows of the table in the order `order`.
    """
    array_rows = enumerate(np.argsort(order).tolist())
    for batch in table.batches([column]):
        for cell, (row, array_row) in zip(batch.column(0), array_rows, strict=False):
            yield _picture(table, column, cell.as_py(), row, array_row)


def _picture(table: Table, column: str, cell: Any, row: int, array_row: int) -> images.Picture:
    """Return the image in a cell of a table, to be decoded into `array_row` of the output array.

    The value of the cell is bytes, a path, or Hugging Face's dict of both.
    """
    if isinstance(cell, Mapping):
        cell = cell.get("bytes") or cell.get("path")
    name = f"{table.place(row)}: column '{column}'"
    if isinstance(cell, bytes):
        return images.Picture(array_row, name, cell)
    path = Path(table.folder, cell or "")
    if not path.is_file():
        raise UserError(
            f"{name} names no image file ({path} does not exist); every row needs an image.",
            ErrorCode.NOT_FOUND,
        )
    return images.Picture(array_row, str(path), str(path))


def _huggingface_table(split: Any, source: str) -> Table:
    """Return a split of a Hugging Face dataset (`datasets.Dataset`) as a table, without copying the
    data."""
    names = {
        name: tuple(feature.names)
        for name, feature in split.features.items()
        if hasattr(feature, "names")
    }
    rows = split.with_format("arrow")[:]
    return Table(rows, source, folder=str(Path.cwd()), class_names=names)


def open_huggingface(spec: DatasetSpec) -> tuple[Tables, list[Path]]:
    """Open a dataset with the Hugging Face `datasets` library, without downloading anything.

    Args:
        spec: The dataset spec. Its `path` is a folder written by `save_to_disk`, or the name of a
            dataset in the library's cache. In the latter case, `set` is the name of the
            configuration.

    Returns:
        Tables by split, and the files from which they are read.

    Raises:
        UserError: There is no such dataset, or it has no training split.
    """
    assert spec.path is not None
    loaded = _load_huggingface(spec.path, spec.set)
    by_split = loaded if isinstance(loaded, dict) else {"train": loaded}
    known: dict[str | None, Any] = {}
    for name, dataset in by_split.items():
        if dataset.num_rows:
            known.setdefault(files.split_of(name), dataset)
    splits = {split: known[split] for split in SPLITS if split in known}
    if "train" not in splits:
        raise UserError(
            f"dataset.path: {spec.path} has no training split with rows, only {[*by_split]}.",
            ErrorCode.MISSING,
        )
    tables = {
        split: _huggingface_table(
            dataset, f"{spec.path} ({split})" if len(splits) > 1 else spec.path
        )
        for split, dataset in splits.items()
    }
    read = [Path(about["filename"]) for dataset in splits.values() for about in dataset.cache_files]
    return tables, read


def _load_huggingface(path: str, name: str | None) -> Any:
    """Return the object that the library `datasets` loads for a path and a configuration name."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise UserError(
            "dataset huggingface needs the library datasets: pip install 'raybench[models]'.",
            ErrorCode.NOT_INSTALLED,
        ) from error
    datasets.disable_progress_bars()
    # The network is not used, even if the user has not set HF_HUB_OFFLINE: training must not wait.
    datasets.config.HF_HUB_OFFLINE = True
    folder = Path(path).expanduser()
    try:
        if folder.exists():
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(
            path, name, download_config=datasets.DownloadConfig(local_files_only=True)
        )
    except (OSError, ValueError, KeyError) as error:
        advice = "save it again with save_to_disk"
        if not folder.exists():
            advice = "there is no such folder; download a dataset of that name with load_dataset"
        raise UserError(
            f"dataset.path: {path} cannot be read by datasets ({error}); {advice}.",
            ErrorCode.NOT_FOUND,
        ) from error


def with_default_columns(spec: DatasetSpec, tables: Tables) -> tuple[DatasetSpec, Tables]:
    """Choose the columns of a Hugging Face dataset that the spec does not name.

    They are the label column, and the image or text column if the spec names no inputs.

    Returns:
        The spec with the names of these columns, and the tables without splits whose labels are all
        hidden (-1).
    """
    train = tables["train"]
    chosen: dict[str, Any] = {}
    if spec.label is None and spec.task != "language_modelling":
        known = [name for name in ("label", "labels") if name in train.schema.names]
        candidates = known or list(train.class_names)
        if len(candidates) != 1:
            raise UserError(
                f"dataset.label: name the column with the labels: {', '.join(train.schema.names)}.",
                ErrorCode.MISSING,
            )
        chosen["label"] = candidates[0]
    if spec.image is None and spec.text is None and spec.columns is None:
        labels = [spec.label] if isinstance(spec.label, str) else spec.label or []
        used = {chosen.get("label"), *labels}
        texts = [name for name in train.schema.names if train.is_text(name) and name not in used]
        if images := [field.name for field in train.schema if is_picture_type(field.type)]:
            chosen["image"] = images[0]
        elif "text" in texts or len(texts) == 1:
            chosen["text"] = "text" if "text" in texts else texts[0]
    spec = spec.model_copy(update=chosen)
    label = spec.label
    if not isinstance(label, str) or label not in train.class_names:
        return spec, tables
    kept = {"train": tables["train"]}
    for split, table in tables.items():
        if label in table.schema.names and (np.asarray(table.column(label)) != HIDDEN).any():
            kept[split] = table
    return spec, kept
