"""Measured steps, read from a CSV file of anyone's."""

from dataclasses import dataclass, field
from pathlib import Path

from raybench.core.errors import UserError
from raybench.scaling.cells import Cell
from raybench.scaling.csv_table import CELL_COLUMNS, Group, read_rows

STEP = "step_s"


@dataclass(frozen=True)
class Measurements:
    """What was measured of each pair of a model and a GPU type, in the file's order."""

    source: str
    groups: dict[Group, list[tuple[Cell, float]]] = field(default_factory=dict)
    """Cells and the seconds of a step in them; a cell that comes again is a repeat."""


def read_measurements(path: Path) -> Measurements:
    """Return the measurements of a CSV file.

    Columns num_workers, num_nodes, batch_size_per_worker and step_s (seconds of an optimizer
    step); where they are there, accumulate (passes of a step), model and gpu_type. Raises
    UserError where a value is none.
    """
    rows = read_rows(path, columns=(*CELL_COLUMNS, STEP))
    if len(rows) == 1:
        raise UserError(
            f"{rows[0].source}: has one row, which says nothing of how a training scales; measure "
            "another number of workers or another batch size, too."
        )
    measured = Measurements(rows[0].source)
    for row in rows:
        measured.groups.setdefault(row.group, []).append((row.cell, row.seconds(STEP)))
    return measured


def name_of(group: Group) -> str:
    """Return a pair's name for people; "" for a file without such columns."""
    return " on ".join(part for part in group if part)
