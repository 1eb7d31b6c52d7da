"""What `--predict` asks for: numbers of workers, or a CSV file of cells."""

import math
import re
from pathlib import Path

from raybench.core.errors import UserError
from raybench.scaling.cells import Cell
from raybench.scaling.csv_table import CELL_COLUMNS, GROUP_COLUMNS, Group, read_rows
from raybench.scaling.measurements import Measurements, name_of

MOST_WORKERS = 1_000_000


def cells_asked(text: str, measured: Measurements) -> dict[Group, list[Cell]]:
    """Return the cells to predict for each pair that was measured.

    `text` is numbers of workers with commas between them, or the name of a CSV file.
    """
    if re.fullmatch(r"[\s\d,]*\d[\s\d,]*", text):
        workers = sorted({_workers(part) for part in text.split(",")})
        return {group: _at(workers, rows) for group, rows in measured.groups.items()}
    if re.fullmatch(r"[-+.,\s\deE]*", text):
        raise UserError(
            f"--predict {text}: write numbers of workers, such as 8,16,64, or the name of a file."
        )
    return _of_file(Path(text), measured)


def _workers(part: str) -> int:
    text = part.strip().lstrip("0")
    if not re.fullmatch(r"[0-9]{1,7}", text) or int(text) > MOST_WORKERS:
        raise UserError(
            f"--predict: {part.strip()[:20]!r} is no number of workers; write 1 to "
            f"{MOST_WORKERS:,}, with commas between them."
        )
    return int(text)


def _at(workers: list[int], rows: list[tuple[Cell, float]]) -> list[Cell]:
    """Return all batches measured, at some numbers of workers, on nodes as full as any seen."""
    cells = [cell for cell, _ in rows]
    most = max(cell.num_workers / cell.num_nodes for cell in cells)
    batches = sorted({(cell.batch_size_per_worker, cell.accumulate) for cell in cells})
    return [Cell(k, math.ceil(k / most), *batch) for k in workers for batch in batches]


def _of_file(path: Path, measured: Measurements) -> dict[Group, list[Cell]]:
    """Return the cells of a file, each once; one without model and GPU type is for all pairs."""
    asked: dict[Group, list[Cell]] = {}
    rows = read_rows(path, columns=CELL_COLUMNS)
    is_for_all = not any(column in rows[0].texts for column in GROUP_COLUMNS)
    for row in rows:
        if not is_for_all and row.group not in measured.groups:
            there = ", ".join(name_of(group) or "no names" for group in measured.groups)
            raise UserError(
                f"{row.source}, row {row.number}: {name_of(row.group) or 'no model'} was not "
                f"measured; {measured.source} has {there}."
            )
        for group in measured.groups if is_for_all else [row.group]:
            cells = asked.setdefault(group, [])
            if row.cell not in cells:
                cells.append(row.cell)
    return asked
