"""The loaders of tables and texts: `csv`, `parquet`, `huggingface` and `text`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.dataset_spec import DatasetSpec
from raybench.core.errors import UserError
from raybench.data.dataset import Dataset
from raybench.data.sources import files, text_files
from raybench.data.sources.columns import find_roles
from raybench.data.sources.huggingface import open_huggingface, with_usual_columns
from raybench.data.sources.image_column import (
    OPTIONS,
    image_files,
    require_image_column,
    store_images,
    stored_images,
)
from raybench.data.sources.language import language_dataset
from raybench.data.sources.table import Tables, require_columns
from raybench.data.sources.table_set import Member, split_members, table_dataset
from raybench.data.sources.texts import Tokens, texts_of
from raybench.data.store.build import stored
from raybench.data.store.dataset import read_dataset, write_dataset
from raybench.data.store.progress import tell
from raybench.data.store.source import File, Source, file_at, list_files
from raybench.data.store.writer import Writer

NOT_OPTIONS = ("path", "class_weights", "repeat", "limit", "shape", "num_classes", "num_samples")
"""Keys of the dataset that no stored array depends on."""
Open = Callable[[], Tables]


def load_csv(spec: DatasetSpec) -> Dataset:
    """Return the rows of a CSV file, or of a folder's train.csv, val.csv and test.csv."""
    assert spec.path is not None
    return _load(spec, _listed(spec.path), lambda: files.open_tables("csv", str(spec.path)))


def load_parquet(spec: DatasetSpec) -> Dataset:
    """Return the rows of a Parquet file, of a folder of parts, or of a folder's splits."""
    assert spec.path is not None
    return _load(spec, _listed(spec.path), lambda: files.open_tables("parquet", str(spec.path)))


def load_huggingface(spec: DatasetSpec) -> Dataset:
    """Return a set of Hugging Face's `datasets`, of a folder or of the library's cache."""
    tables, read = open_huggingface(spec)
    spec, tables = with_usual_columns(spec, tables)
    found = [file_at(path, name=str(path.absolute())) for path in read]
    return _load(spec, found, lambda: tables)


def load_text(spec: DatasetSpec) -> Dataset:
    """Return texts by class (`path/CLASS/*.txt`), or the running text of a file or folder."""
    assert spec.path is not None
    path = Path(spec.path).expanduser()
    require_text_task(spec)
    found = _listed(spec.path)
    if spec.task == "classification" or (spec.task is None and text_files.is_class_folder(path)):
        if path.is_file():
            raise UserError(
                f"dataset.path: {path} is a file; texts by class are a folder with a folder of "
                ".txt files for each class."
            )
        columns = {"text": "text", "label": "label"}
        return _load(
            spec.model_copy(update=columns), found, lambda: text_files.open_text_folder(path)
        )

    def build(writer: Writer) -> Mapping[str, Any]:
        texts = text_files.running_texts(path)
        return write_dataset(writer, _language(spec, texts))

    return read_dataset(stored(_source(spec, found), build))


def require_text_task(spec: DatasetSpec) -> None:
    """Raise UserError for a task that files of text have no labels for."""
    if spec.task == "regression":
        raise UserError(
            f"dataset.task: regression is not for files of text ({spec.path}), which have no "
            "numbers to learn; leave it out, or put texts and numbers into a table."
        )


def _load(spec: DatasetSpec, found: Sequence[File], open_tables: Open) -> Dataset:
    if spec.image is not None:
        options = {key: getattr(spec, key) for key in OPTIONS}
        tables = open_tables()
        source = _source(spec, [*found, *image_files(spec, tables)], options)
        kept = stored(source, lambda writer: _store_images(spec, tables, writer))
        return stored_images(spec, kept, source=str(spec.path))

    def build(writer: Writer) -> Mapping[str, Any]:
        tables = open_tables()
        if spec.task == "language_modelling":
            return write_dataset(writer, _language(spec, column_texts(spec, tables)))
        total = sum(table.num_rows for _, table in tables.items())
        with writer.progress(f"reading {total:,} rows", total) as progress:
            dataset = table_dataset(
                spec,
                tables,
                name=spec.name,
                say=lambda sentence: tell(f"{spec.path}: {sentence}"),
                make=writer.array,
                advance=progress.advance,
            )
        return write_dataset(writer, dataset)

    return read_dataset(stored(_source(spec, found), build))


def column_texts(spec: DatasetSpec, tables: Tables) -> dict[str, str]:
    """Return the texts of a column one after the other, by split, for a language model."""
    if spec.text is None:
        raise UserError(
            "dataset.text: name the column of the texts that a language model is to learn; "
            f"{tables.train.source} has {', '.join(tables.train.schema.names)}."
        )
    for _, table in tables.items():
        require_columns(table, [spec.text], "text")
        Tokens(spec, spec.text, table)  # its column is text, or a UserError
    members = split_members(spec, tables, None)
    return {member.split: "\n".join(_texts(member, spec.text)) for member in members}


def _texts(member: Member, column: str) -> list[str]:
    is_kept = np.zeros(member.table.num_rows, bool)
    is_kept[member.rows] = True
    texts = [text for batch in member.table.batches([column]) for text in texts_of(batch)]
    return [text for text, kept in zip(texts, is_kept, strict=True) if kept]


def _language(spec: DatasetSpec, texts: dict[str, str]) -> Dataset:
    return language_dataset(
        spec,
        texts,
        name=spec.name,
        source=str(spec.path),
        say=lambda sentence: tell(f"{spec.path}: {sentence}"),
    )


def _store_images(spec: DatasetSpec, tables: Tables, writer: Writer) -> Mapping[str, Any]:
    image = find_roles(spec, tables).image
    assert image is not None
    for _, table in tables.items():
        require_image_column(table, image)
    return store_images(spec, tables, writer)


def _listed(given: str) -> list[File]:
    path = Path(given).expanduser()
    if not path.exists():
        raise UserError(
            f"dataset.path: there is no {path} (from {Path.cwd()}); name a file or folder."
        )
    return [file_at(path)] if path.is_file() else list_files(path)


def _source(
    spec: DatasetSpec, found: Sequence[File], options: Mapping[str, Any] | None = None
) -> Source:
    if options is None:
        dumped = spec.model_dump(mode="json")
        options = {key: value for key, value in dumped.items() if key not in NOT_OPTIONS}
    path = Path(str(spec.path)).expanduser()
    return Source(name=spec.name, path=path, files=found, options=options)
