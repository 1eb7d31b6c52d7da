"""A column of texts as inputs: token ids of one length."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from raybench.core.dataset_spec import DatasetSpec
from raybench.core.errors import UserError
from raybench.data.dataset import Array
from raybench.data.sources.table import Table, is_text
from raybench.data.sources.tokens import UNKNOWN, Tokenizer

MANY = 0.25
"""Share of texts beyond which it is said that they are cut."""


class Tokens:
    """See `RowInputs`: (`sequence_length`,) int32, padded with 0 at the end."""

    dtype = np.int32

    def __init__(self, spec: DatasetSpec, column: str, table: Table) -> None:
        """`table`: the training one."""
        if not is_text(table, column):
            raise UserError(
                f"dataset.text: column '{column}' of {table.source} holds "
                f"{table.schema.field(column).type}, no text; name another one."
            )
        self.columns = [column]
        self._length = spec.sequence_length
        self._tokenizer = Tokenizer(spec.tokens, spec.vocabulary_size)
        self._kind = spec.tokens
        self._source = table.source
        self._lengths: list[int] = []

    @property
    def shape(self) -> tuple[int, ...]:
        """See `RowInputs`."""
        return (self._length,)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Tokens by their ids; empty before `finish`."""
        return self._tokenizer.vocabulary

    @property
    def encoding(self) -> dict[str, Any]:
        """See `RowInputs`."""
        return {"tokens": self._kind}

    @property
    def lengths(self) -> Array:
        """Tokens of each training text."""
        return np.array(self._lengths)

    @property
    def num_tokens(self) -> int:
        """Different tokens of the training texts, before any are left out."""
        return self._tokenizer.num_tokens

    def see(self, batch: Any) -> None:
        """See `RowInputs`."""
        for text in texts_of(batch):
            pieces = self._tokenizer.cut(text)
            self._lengths.append(len(pieces))
            self._tokenizer.see(pieces)

    def finish(self, say: Any) -> None:
        """See `RowInputs`."""
        lengths = self.lengths
        if not lengths.any():
            raise UserError(
                f"{self._source}: column '{self.columns[0]}' has no text in any training row; name "
                "another one in dataset.text."
            )
        self._tokenizer.finish()
        empty = int((lengths == 0).sum())
        if empty:
            say(
                f"column '{self.columns[0]}' is empty in {empty:,} of {len(lengths):,} training "
                "rows: each is one unknown token."
            )
        share = float((lengths > self._length).mean())
        if share > MANY:
            say(
                f"{100 * share:.0f} % of the texts are longer than {self._length} {self._kind} and "
                f"are cut there (half of all have up to {np.median(lengths):.0f}); "
                "dataset.sequence_length changes it."
            )

    def write(self, batch: Any, table: Table, start: int) -> Array:
        """See `RowInputs`."""
        del table, start
        out = np.zeros((batch.num_rows, self._length), np.int32)
        for row, text in enumerate(texts_of(batch)):
            ids = self._tokenizer.ids(self._tokenizer.cut(text)[: self._length])
            out[row, : len(ids)] = ids
            if not len(ids):
                out[row, 0] = UNKNOWN
        return out


def texts_of(batch: Any) -> Iterator[str]:
    """Yield the texts of a batch's one column; what is missing is empty."""
    values = batch.column(0)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for value in values:
        yield value.as_py() or ""
