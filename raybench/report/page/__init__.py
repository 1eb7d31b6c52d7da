"""A study as one page that needs no network: `report.html`."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raybench.report.how_sure import PAGE_FILE
from raybench.results.store import StudyFiles
from raybench.results.study import Study
from raybench.spec.text import clean, shorten

if TYPE_CHECKING:
    from raybench.report.page.document import Part

LONGEST = 300
"""Characters of an error that a sentence shows."""


def try_page(
    results: Study, folder: Path, say: Callable[[str], None], extras: Sequence["Part"] = ()
) -> list[Path]:
    """Write the page at the end of a study; return its file, in a list.

    The study's numbers must not be lost with the page: whatever is wrong with it is said, its
    traceback kept in `errors/`, and there is no file.
    """
    try:
        # Late: matplotlib takes half a second, and fails with a wrong MPLBACKEND.
        from raybench.report.page.document import write_page

        return [write_page(results, folder, extras)]
    except Exception as error:  # noqa: BLE001 (any fault of the page; it is said and kept)
        what = shorten(clean(f"{type(error).__name__}: {error}"), LONGEST)
        kept = StudyFiles(folder).write_error(PAGE_FILE, traceback.format_exc())
        say(f"{PAGE_FILE} could not be written ({what}); all else is there (traceback: {kept}).")
        return []
