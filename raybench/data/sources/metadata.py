"""`metadata.csv` beside images: a row for each, by its `file_name`, with its label."""

import csv
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raybench.core.errors import UserError

FILE_NAME = "file_name"
USUAL_LABEL = "label"


@dataclass(frozen=True)
class LabelledImage:
    """A row of the file."""

    name: str
    """Path of the image, from where the file lies."""
    labels: tuple[str, ...]
    """As they stand there, one of each label column."""
    line: int


def read_metadata(file: Path, label: str | list[str] | None) -> list[LabelledImage]:
    """Return the rows of a file; `label` names the column (none: `label`, or the only other one).

    Blank lines are left out. UserError with file, line and column for what cannot be used.
    """
    rows = _rows(file)
    if not rows:
        raise UserError(f"{file} is empty; its first line names the columns: file_name,label.")
    head = [name.strip() for name in rows[0][1]]
    _require_once(head, file)
    place = _column(FILE_NAME, head, file)
    wanted = _label_columns(label, head, file)
    places = [_column(name, head, file) for name in wanted]
    found: dict[str, LabelledImage] = {}
    for line, cells in rows[1:]:
        if not cells:
            continue
        if len(cells) != len(head):
            raise UserError(
                f"{file}, line {line}: has {len(cells)} values, the first line names {len(head)} "
                "columns; mend the line."
            )
        name = cells[place].strip()
        labels = tuple(cells[one].strip() for one in places)
        for column, value in zip([FILE_NAME, *wanted], [name, *labels], strict=True):
            if not value:
                raise UserError(f"{file}, line {line}: column {column} is empty; fill it in.")
        if name in found:
            raise UserError(
                f"{file}, line {line}: {name} stands in line {found[name].line} already; remove "
                "one of them."
            )
        found[name] = LabelledImage(name, labels, line)
    if not found:
        raise UserError(f"{file} has a first line and no rows; list the images in it.")
    return list(found.values())


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """Return (line, cells) of every row."""
    try:
        text = file.read_bytes().decode("utf-8-sig")  # Excel writes a mark before the first name
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(f"{file}, line {line}: is not UTF-8; save the file as UTF-8.") from error
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        return [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise UserError(f"{file}, line {reader.line_num}: is no row of a CSV ({error}).") from error


def _require_once(head: Sequence[str], file: Path) -> None:
    twice = [name for name in head if head.count(name) > 1]
    if twice:
        raise UserError(f"{file}: column {twice[0]} stands there twice; rename one of them.")


def _column(name: str, head: Sequence[str], file: Path) -> int:
    if name not in head:
        close = difflib.get_close_matches(name, head, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        raise UserError(f"{file} has no column {name}, but {', '.join(head)}{hint}")
    return head.index(name)


def _label_columns(label: str | list[str] | None, head: Sequence[str], file: Path) -> list[str]:
    if label is not None:
        return [label] if isinstance(label, str) else label
    others = [name for name in head if name != FILE_NAME]
    if USUAL_LABEL not in others and len(others) != 1:
        raise UserError(
            f"{file}: which of its columns {', '.join(head)} is the label? Name it: "
            "dataset.label: NAME."
        )
    return [USUAL_LABEL] if USUAL_LABEL in others else others
