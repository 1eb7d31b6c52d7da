"""Parquet files as one table, read in batches: it may be larger than memory."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from raybench.core.errors import UserError
from raybench.data.sources.table import BATCH_ROWS


class ParquetTable:
    """One file, or several that are parts of one table, in the order of their names."""

    class_names: Mapping[str, Sequence[str]] = {}

    def __init__(self, files: Sequence[Path], source: Path) -> None:
        """`source`: what the user named. UserError for files that are no parts of one table."""
        self.source, self.folder = str(source), str(files[0].parent)
        self._files = list(files)
        self._rows = []
        schemas = []
        for file in self._files:
            try:
                about = pa.parquet.ParquetFile(file)
            except (pa.ArrowInvalid, OSError) as error:
                size = file.stat().st_size if file.exists() else 0
                raise UserError(
                    f"{file} is not a whole Parquet file ({size:,} bytes); write it again."
                ) from error
            with about:
                self._rows.append(about.metadata.num_rows)
                schemas.append(about.schema_arrow)
        self._given = schemas[0].names
        names = [name.strip() for name in self._given]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise UserError(f"{files[0]}: two columns have the name '{name}'; rename one.")
        for file, schema in zip(self._files, schemas, strict=True):
            if schema.names != self._given:
                other = set(schema.names) ^ set(self._given)
                raise UserError(
                    f"{file} and {files[0]} have other columns ({', '.join(sorted(other))}); the "
                    "files of one table need the same ones in the same order."
                )
        joined = self._joined(schemas)
        self.schema = pa.schema(
            [field.with_name(name) for name, field in zip(names, joined, strict=True)]
        )
        self.num_rows = sum(self._rows)
        if not self.num_rows:
            raise UserError(f"{source} has no rows; give it some.")

    def _joined(self, schemas: Sequence[Any]) -> Any:
        """Return types that all files' values have a place in: a part's column may be empty, or
        whole where another's has fractions."""
        joined = schemas[0].remove_metadata()
        for file, schema in zip(self._files, schemas, strict=True):
            try:
                joined = pa.unify_schemas(
                    [joined, schema.remove_metadata()], promote_options="permissive"
                )
            except pa.ArrowException as error:
                name, one, other = next(
                    (field.name, field.type, schema.field(field.name).type)
                    for field in joined
                    if field.type != schema.field(field.name).type
                )
                raise UserError(
                    f"{file}: column '{name}' holds {other}, and {one} in {self._files[0]}; the "
                    "files of one table need the same types."
                ) from error
        return joined

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """See `Table`."""
        given = dict(zip(self.schema.names, self._given, strict=True))
        kinds = pa.schema([self.schema.field(column) for column in columns])
        for file in self._files:
            try:
                # Buffered ahead, all that was read of a file stays in memory until its end.
                with pa.parquet.ParquetFile(file, pre_buffer=False) as opened:
                    asked = [given[column] for column in columns]
                    for batch in opened.iter_batches(BATCH_ROWS, columns=asked):
                        arrays = [
                            batch.column(name).cast(kinds.field(column).type)
                            for name, column in zip(asked, columns, strict=True)
                        ]
                        yield pa.RecordBatch.from_arrays(arrays, schema=kinds)
            except (pa.ArrowInvalid, OSError) as error:
                raise UserError(f"{file} cannot be read on: {error}; write it again.") from error

    def place(self, row: int) -> str:
        """See `Table`."""
        for file, rows in zip(self._files, self._rows, strict=True):
            if row < rows:
                return f"row {row + 1} of {file}"
            row -= rows
        raise AssertionError("there are no such rows")
