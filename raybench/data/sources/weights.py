"""A column of weights of training samples."""

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError
from raybench.data.sources.table import Table, column_of
from raybench.data.sources.values import as_numbers, is_number_type


def read_weights(table: Table, column: str) -> npt.NDArray[np.float32]:
    """Return the weights of all rows; UserError, with the row, for what is no number from 0."""
    kind = table.schema.field(column).type
    if not is_number_type(kind):
        raise UserError(
            f"dataset.weight: column '{column}' of {table.source} holds {kind}, no numbers; name "
            "another one."
        )
    weights = as_numbers(column_of(table, column))
    wrong = np.flatnonzero(~(weights >= 0))
    if len(wrong):
        found = weights[wrong[0]]
        raise UserError(
            f"{table.place(int(wrong[0]))}: weight column '{column}' is "
            f"{'empty' if np.isnan(found) else f'{found:g}'} there ({len(wrong):,} such rows); "
            "weights are numbers from 0."
        )
    if not weights.any():
        raise UserError(f"{table.source}: weight column '{column}' is 0 in every row.")
    return weights.astype(np.float32)
