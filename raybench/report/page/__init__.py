"""The page of a study, `report.html`: a single HTML file that needs no network."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raybench.report.words import fault_words
from raybench.results.store import PAGE_FILE, StudyFiles
from raybench.results.study import Study

if TYPE_CHECKING:
    from raybench.report.page.document import PagePart


def try_page(
    results: Study, folder: Path, say: Callable[[str], None], extras: Sequence["PagePart"] = ()
) -> list[Path]:
    """Write the page of a study; return a list with the file, or [] if that fails.

    Errors are not raised, but reported with `say`; their tracebacks are written to `errors/`. A
    figure that cannot be drawn is left out.

    Args:
        results: The study.
        folder: Results folder of the study.
        say: Prints a message.
        extras: Further parts of the page.
    """

    def tell(problem: str, error: Exception, name: str = PAGE_FILE) -> None:
        traceback_file = StudyFiles(folder).write_error(
            name, "".join(traceback.format_exception(error))
        )
        say(
            f"{problem} ({fault_words(error)}); all else is complete (traceback: {traceback_file})."
        )

    try:
        # Imported late, since importing matplotlib takes half a second, and fails if MPLBACKEND is
        # wrong.
        from raybench.report.page.document import write_page

        def on_fault(title: str, error: Exception) -> None:
            problem = f"{PAGE_FILE}: the figure '{title}' could not be drawn"
            tell(problem, error, f"{PAGE_FILE} {title}")

        return [write_page(results, folder, extras, on_fault)]
    except Exception as error:  # noqa: BLE001 (reported, and its traceback kept)
        tell(f"{PAGE_FILE} could not be written", error)
        return []
