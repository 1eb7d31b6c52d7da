"""Which column of a table is used for what."""

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raybench.core.dataset_spec import DatasetSpec
from raybench.core.errors import UserError
from raybench.data.sources.table import (
    MAX_SHOWN,
    Table,
    Tables,
    is_text_type,
    require_columns,
    require_same_columns,
)
from raybench.data.sources.values import is_number_type

ROW_NUMBERS = re.compile(r"__index_level_\d+__|Unnamed: \d+")
"""What pandas calls its index in Parquet, and in a CSV that is read."""


@dataclass(frozen=True)
class Roles:
    """The columns of a table by their use: texts, or images, or any others are the inputs."""

    labels: list[str]
    inputs: list[str]
    """Columns of numbers and names; empty where texts or images are the inputs."""
    text: str | None = None
    image: str | None = None
    weight: str | None = None
    not_used: tuple[str, ...] = ()
    """Sentences on columns that no features can be made of."""


def find_roles(spec: DatasetSpec, tables: Tables) -> Roles:
    """Return the use of each column; UserError for what is missing, or has two uses."""
    train = tables.train
    labels = [spec.label] if isinstance(spec.label, str) else list(spec.label or [])
    named = {
        "label": labels,
        "weight": [spec.weight] if spec.weight else [],
        "text": [spec.text] if spec.text else [],
        "image": [spec.image] if spec.image else [],
        "columns": spec.columns or [],
        "categories": spec.categories or [],
    }
    uses: dict[str, str] = {}
    for key, columns in named.items():
        require_columns(train, columns, key)
        for column in columns:
            if key != "categories" and column in uses:
                raise UserError(
                    f"dataset.{key}: column '{column}' of {train.source} is {uses[column]} "
                    "already; name another one."
                )
            uses.setdefault(column, f"dataset.{key}")
    if [spec.text, spec.image, spec.columns].count(None) < 2:
        raise UserError(
            "dataset: text, image and columns are three kinds of inputs; keep one of them."
        )
    is_table = spec.text is None and spec.image is None
    inputs, not_used = _inputs(spec, train, set(uses)) if is_table else ([], ())
    for table in [table for _, table in tables.items() if table is not train]:
        require_columns(table, labels, "label")
    require_same_columns(tables, [*inputs, *named["text"], *named["image"]])
    return Roles(labels, inputs, spec.text, spec.image, spec.weight, not_used)


def _inputs(spec: DatasetSpec, table: Table, used: set[str]) -> tuple[list[str], tuple[str, ...]]:
    if spec.columns is not None:
        for column in spec.columns:
            kind = table.schema.field(column).type
            if not is_input_type(kind):
                raise UserError(
                    f"dataset.columns: column '{column}' of {table.source} holds {kind}; inputs "
                    "are numbers, dates and texts."
                )
        return spec.columns, ()
    others = [name for name in table.schema.names if name not in used - set(spec.categories or [])]
    numbers = [name for name in others if _numbers_rows(name, table.schema.field(name).type)]
    others = [name for name in others if name not in numbers]
    inputs = [name for name in others if is_input_type(table.schema.field(name).type)]
    if not inputs:
        raise UserError(
            f"{table.source} has no column of inputs beside {', '.join(sorted(used))}; its columns "
            f"are {', '.join(table.schema.names[:MAX_SHOWN])}."
        )
    left_out = [
        f"column '{name}' is left out: it holds {table.schema.field(name).type}."
        for name in others
        if name not in inputs
    ]
    left_out += [
        f"column '{name}' is left out: it holds pandas' numbers of the rows; if it is more, name "
        "it in dataset.columns."
        for name in numbers
    ]
    return inputs, tuple(left_out)


def _numbers_rows(name: str, kind: Any) -> bool:
    """Whether a column is the index of a data frame: where rows stood, it may tell the label."""
    return bool(ROW_NUMBERS.fullmatch(name)) and pa.types.is_integer(kind)


def is_input_type(kind: Any) -> bool:
    """Whether features can be made of a column of that type of pyarrow."""
    if pa.types.is_dictionary(kind):
        return is_input_type(kind.value_type)
    return is_text_type(kind) or is_number_type(kind)
