"""Writes the page into a study's folder, or one of several studies where it is asked for."""

import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from raybench.core.errors import UserError
from raybench.core.text import clean, shorten
from raybench.results.load import StudyResults
from raybench.results.page.document import page_text
from raybench.results.page.extra import Extra
from raybench.results.store import StudyFiles

PAGE_FILE = "report.html"
LONGEST = 300
"""Characters of an error that a sentence shows."""


def write_page(results: StudyResults, folder: Path, extras: Sequence[Extra] = ()) -> Path:
    """Write a study's page into its folder, whole or not at all; return its file."""
    StudyFiles(folder).write_text(PAGE_FILE, page_text([results], extras))
    return folder / PAGE_FILE


def try_page(
    results: StudyResults, folder: Path, say: Callable[[str], None], extras: Sequence[Extra] = ()
) -> list[Path]:
    """Write the page at the end of a study; return its file, in a list.

    The study's numbers must not be lost with the page: whatever is wrong with it is said, its
    traceback kept in `errors/`, and there is no file.
    """
    try:
        return [write_page(results, folder, extras)]
    except Exception as error:  # noqa: BLE001 (any fault of the page; it is said and kept)
        what = shorten(clean(f"{type(error).__name__}: {error}"), LONGEST)
        kept = StudyFiles(folder).write_error(PAGE_FILE, traceback.format_exc())
        say(f"{PAGE_FILE} could not be written ({what}); all else is there (traceback: {kept}).")
        return []


def write_comparison(studies: Sequence[StudyResults], file: Path) -> Path:
    """Write the page of several studies; UserError where the file cannot be written."""
    if file.is_dir():
        raise UserError(f"--out {file}: is a folder; name a file, as {file / 'compare.html'}.")
    if not file.parent.is_dir():
        raise UserError(
            f"--out {file}: there is no folder {file.parent}; make it, or name another."
        )
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UserError(f"--out {file}: cannot be written (no permission in {file.parent}).")
    StudyFiles(file.parent).write_text(file.name, page_text(studies))
    return file
