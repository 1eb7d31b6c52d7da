"""What the inputs of a sample are made of: rows of a table, texts, or images."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.core.dataset_spec import DatasetSpec
from raybench.core.errors import UserError
from raybench.data.dataset import Array
from raybench.data.sources.class_columns import is_number
from raybench.data.sources.columns import Roles
from raybench.data.sources.encode import Column, Names, NotUsed, Quantity, require_numbers
from raybench.data.sources.encoders import document_of
from raybench.data.sources.table import Table, first_place, require_sizes
from raybench.data.sources.values import as_texts, is_number_type

Say = Callable[[str], None]
"""Takes a sentence on what was found, for the user."""


class RowInputs(Protocol):
    """Makes the inputs: first `see` of all training rows, then `finish`, then `write`."""

    columns: list[str]

    @property
    def dtype(self) -> npt.DTypeLike:
        """Of the inputs."""
        ...

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Tokens by their ids, of texts."""
        ...

    @property
    def encoding(self) -> dict[str, Any]:
        """How they are made, as `Dataset.encoding` has it; there after `finish`."""
        ...

    def see(self, batch: Any) -> None:
        """Take some training rows, a `pyarrow.RecordBatch`."""
        ...

    def finish(self, say: Say) -> None:
        """Be ready to write."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        ...

    def write(self, batch: Any, table: Table, start: int) -> Array:
        """Return the inputs of any rows; `start` is the number of the first in its table."""
        ...


class Features:
    """Numbers and names of a row: one vector of float32."""

    dtype = np.float32
    vocabulary: tuple[str, ...] = ()

    def __init__(self, spec: DatasetSpec, roles: Roles, table: Table) -> None:
        """`table`: the training one."""
        self.columns = roles.inputs
        self._table, self._not_used = table, roles.not_used
        self._is_asked = spec.columns is not None
        categories = set(spec.categories or [])
        self._made = [self._column(name, categories) for name in self.columns]

    def _column(self, name: str, categories: set[str]) -> Column:
        kind = self._table.schema.field(name).type
        if name in categories or not is_number_type(kind):
            return Names(name, is_asked=self._is_asked or name in categories)
        if pa.types.is_boolean(kind):
            return Quantity(name, is_flag=True)
        # Only of whole numbers: dates that go up are worth learning from.
        limit = self._table.num_rows if pa.types.is_integer(kind) and not self._is_asked else 0
        return Quantity(name, counted_rows=limit)

    def see(self, batch: Any) -> None:
        """See `RowInputs`."""
        for column in self._made:
            values = batch.column(column.name)
            if isinstance(column, Quantity):
                require_sizes(self._table, column.name, values)
            column.see(values)

    def finish(self, say: Say) -> None:
        """See `RowInputs`."""
        used = []
        for sentence in self._not_used:
            say(sentence)
        for column in self._made:
            if isinstance(column, Names) and column.num_not_numbers():
                place, value = first_place(self._table, column.name, _is_no_number)
                require_numbers(column, place, value)
            try:
                column.finish()
            except NotUsed as reason:
                say(f"column '{column.name}' is left out: it {reason}.")
            else:
                used.append(column)
        if not used:
            raise UserError(
                f"{self._table.source}: none of the columns {', '.join(self.columns)} says "
                "anything of a row (all are constant, empty or numbers of rows); name others in "
                "dataset.columns."
            )
        self._made = used
        self.columns = [column.name for column in used]

    @property
    def encoding(self) -> dict[str, Any]:
        """See `RowInputs`."""
        return {"columns": [document_of(column.encoder) for column in self._made]}

    @property
    def made(self) -> list[Column]:
        """The columns that are used, with what is known of them."""
        return list(self._made)

    @property
    def names(self) -> list[str]:
        """Names of the features, in order."""
        return [feature for column in self._made for feature in column.features]

    @property
    def shape(self) -> tuple[int, ...]:
        """See `RowInputs`."""
        return (len(self.names),)

    def write(self, batch: Any, table: Table, start: int) -> Array:
        """See `RowInputs`."""
        del start
        out = np.empty((batch.num_rows, *self.shape), np.float32)
        begin = 0
        for column in self._made:
            end = begin + len(column.features)
            values = batch.column(column.name)
            if not isinstance(column, Names) and not is_number_type(values.type):
                values = _no_texts(table, column.name, values)
            if not isinstance(column, Names):
                require_sizes(table, column.name, values)
            column.write(values, out[:, begin:end])
            begin = end
        return out


def _is_no_number(values: Any) -> Array:
    texts = as_texts(values).to_pylist()
    return np.array([text is not None and not is_number(text) for text in texts])


def _no_texts(table: Table, column: str, values: Any) -> Any:
    """Return numbers that another file holds as text; UserError where they are none."""
    if _is_no_number(values).any():
        place, value = first_place(table, column, _is_no_number)
        raise UserError(
            f"{place}: column '{column}' holds numbers in the training rows, and '{value}' there; "
            "correct it, or list the column in dataset.categories."
        )
    return as_texts(values).cast(pa.float64())
