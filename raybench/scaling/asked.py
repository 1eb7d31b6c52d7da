"""What `--predict` asks for: numbers of workers, or a CSV file of cells."""

import math
import re
from pathlib import Path

from raybench.core.errors import UserError
from raybench.scaling.cells import Cell
from raybench.scaling.csv_table import CELL_COLUMNS, Group, Row, read_rows
from raybench.scaling.measurements import Measurements, name_of

MOST_WORKERS = 1_000_000


def cells_asked(text: str, measured: Measurements) -> dict[Group, list[Cell]]:
    """Return the cells to predict for each pair that was measured.

    `text` is numbers of workers with commas between them, or the name of a CSV file. UserError
    where a row of it names a pair that was not measured.
    """
    found, missing = cells_matched(text, measured)
    if missing:
        raise UserError(f"{missing[0]}.")
    return found


def cells_matched(text: str, measured: Measurements) -> tuple[dict[Group, list[Cell]], list[str]]:
    """Return the cells to predict for each pair, and a sentence (without its full stop) for each
    pair that the file names and nobody measured."""
    workers = _numbers(text)
    if workers is None:
        return _of_rows(_rows(text), measured)
    return {group: _at(workers, rows) for group, rows in measured.groups.items()}, []


def check_asked(text: str) -> None:
    """Refuse what cannot be predicted of any measurements, before there are some."""
    if _numbers(text) is None:
        _rows(text)


def _numbers(text: str) -> list[int] | None:
    """Return numbers of workers; None for the name of a file."""
    if re.fullmatch(r"[\s\d,]*\d[\s\d,]*", text):
        return sorted({_workers(part) for part in text.split(",")})
    if re.fullmatch(r"[-+.,\s\deE]*", text):
        raise UserError(
            f"--predict {text}: write numbers of workers, such as 8,16,64, or the name of a file."
        )
    return None


def _rows(text: str) -> list[tuple[Row, Cell]]:
    return [(row, row.cell) for row in read_rows(Path(text), columns=CELL_COLUMNS)]


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


def _of_rows(
    rows: list[tuple[Row, Cell]], measured: Measurements
) -> tuple[dict[Group, list[Cell]], list[str]]:
    """Return the cells of a file, each once, and what is said of pairs nobody measured.

    A model or GPU type that a row leaves empty is every one.
    """
    asked: dict[Group, list[Cell]] = {}
    missing: dict[Group, str] = {}
    for row, cell in rows:
        groups = [group for group in measured.groups if _is_meant(row.group, group)]
        for group in [row.group] if row.group in groups else groups:
            cells = asked.setdefault(group, [])
            if cell not in cells:
                cells.append(cell)
        if not groups and row.group not in missing:
            there = ", ".join(name_of(group) or "no names" for group in measured.groups)
            missing[row.group] = (
                f"{row.source}, row {row.number}: {name_of(row.group)} was not measured; "
                f"{measured.source} has {there}"
            )
    return asked, list(missing.values())


def _is_meant(asked: Group, group: Group) -> bool:
    return all(one in ("", other) for one, other in zip(asked, group, strict=True))
