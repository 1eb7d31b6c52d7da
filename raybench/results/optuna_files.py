"""What Optuna's storages are told by, without Optuna: a database's URL, or a file's first bytes."""

import json
from pathlib import Path

SQLITE = b"SQLite format 3\0"
DATABASES = ("sqlite:", "mysql", "postgresql", "mariadb", "oracle", "mssql")
"""How the URL of a database begins that Optuna takes."""
HEAD_BYTES = 64 * 1024


def is_database(place: str) -> bool:
    """Whether a place is the URL of a database."""
    return "://" in place and place.startswith(DATABASES)


def is_optuna_place(place: str) -> bool:
    """Whether a place is a database's URL, or a file that Optuna may have written."""
    if is_database(place):
        return True
    file = Path(place)
    return file.is_file() and (is_sqlite(file) or _is_journal(file))


def is_sqlite(file: Path) -> bool:
    """Whether a file is a database of SQLite."""
    return _head(file).startswith(SQLITE)


def _is_journal(file: Path) -> bool:
    first = _head(file).split(b"\n")[0]
    try:
        content = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "op_code" in content


def _head(file: Path) -> bytes:
    with file.open("rb") as content:
        return content.read(HEAD_BYTES)
