"""Code that the commands `tune`, `train`, `scale`, `compare` and `diagnose` have in common:
console, results folder and exit code.

Each of these commands checks its input, prints its plan or opens its results folder, trains its
runs there, and writes and prints the results. The command itself defines what it checks, runs and
prints.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybench.cluster.signals import Interrupt
from raybench.loggers.follow import Loggers, check_loggers
from raybench.report.console import make_console, say
from raybench.report.export import export
from raybench.report.page import try_page
from raybench.results.place import place_in_words
from raybench.results.storage import StudyStorage, check_place, open_storage
from raybench.results.store import STUDY_FILE, Store
from raybench.results.study import Study, load
from raybench.runs.code_change import code_versions
from raybench.runs.options import LoggedOptions, TrialOptions
from raybench.runs.preflight import check_address
from raybench.spec.documents import read_mapping
from raybench.spec.errors import DONE, INTERRUPTED, Ended

if TYPE_CHECKING:
    from raybench.report.page.document import PagePart


def checked_place(options: TrialOptions, default: str) -> str:
    """Check `--address` and `--out`; return the results folder or URL, which is `default` without
    `--out`."""
    check_address(options.address)
    return check_place(options.out or default)


class CommandFrame:
    """Console, results folder and exit code of a command that trains runs.

    Args:
        options: Options of the command.
        interrupt: Records whether the user asked to stop.

    Raises:
        UserError: A tracker of `--log` is unknown or not installed.
    """

    def __init__(self, options: TrialOptions, interrupt: Interrupt) -> None:
        self.interrupt = interrupt
        # This console keeps the original stdout; sys.stdout is redirected while Ray runs.
        self.console = make_console(file=sys.stdout)
        self._trackers = options.log if isinstance(options, LoggedOptions) else []
        check_loggers(self._trackers)

    def say(self, *sentences: str) -> None:
        """Print sentences, one per line."""
        for sentence in sentences:
            say(self.console, sentence)

    def planned(self, sentences: Sequence[str], plan: Mapping[str, Any]) -> Ended:
        """Return how the command ends with `--dry-run`, after its plan was printed.

        Args:
            sentences: Choices made for the user, and warnings.
            plan: The plan as plain data.
        """
        return Ended(DONE, answer=sentences, details={"plan": plan})

    @contextmanager
    def open(self, place: str) -> Iterator["OpenStudy"]:
        """Context manager that locks a results folder or URL for this process.

        On exit, it waits until everything is written to the experiment trackers, and uploaded if
        the results are at a URL.
        """
        with (
            open_storage(place, warn=self.say) as storage,
            Loggers(self._trackers, storage.folder, place=place, say=self.say) as loggers,
            contextlib.ExitStack() as closing,
        ):
            yield OpenStudy(self, storage, loggers, closing)

    def ended(
        self, place: str, code: int, *, is_interrupted: bool, can_resume: bool = True
    ) -> Ended:
        """Print whether the command was interrupted; return how it ended.

        Args:
            place: Results folder or URL.
            code: Exit code, unless the command was interrupted.
            is_interrupted: Whether runs were cut off because the user asked to stop.
            can_resume: Whether rerunning the same command resumes from the recorded runs.
        """
        if not is_interrupted:
            return Ended(code, place)
        self.say(f"interrupted{'; rerun the same command to resume' if can_resume else ''}.")
        return Ended(INTERRUPTED, place)


@dataclass
class OpenStudy:
    """Results folder that a command has locked; see `CommandFrame.open`.

    A command first checks the files of earlier commands in the folder, then calls `begin`.
    """

    frame: CommandFrame
    storage: StudyStorage
    loggers: Loggers
    closing: contextlib.ExitStack
    """Stack that closes the records when the command leaves the folder."""
    store: Store = field(init=False)
    """Records and other files of the study; set by `begin`."""

    @property
    def place(self) -> str:
        """Folder or URL that the user gave."""
        return self.storage.place

    @property
    def folder(self) -> Path:
        """Local folder in which all files are read and written."""
        return self.storage.folder

    @property
    def study_file(self) -> Path | None:
        """The `study.yaml` of an earlier command; None if there is none."""
        file = self.folder / STUDY_FILE
        return file if file.is_file() else None

    @cached_property
    def earlier(self) -> dict[str, Any]:
        """Content of the `study.yaml` of an earlier command; {} if there is none."""
        return {} if self.study_file is None else read_mapping(self.study_file)

    @property
    def where(self) -> str:
        """The folder in words; for a URL, the local folder is included."""
        return place_in_words(self.place, self.folder)

    def begin(
        self, workloads: Set[str] = frozenset(), *, is_kept: bool = False, resumes: bool = True
    ) -> Store:
        """Open the records.

        After this call, a signal such as Ctrl-C ends the runs but not the command, which then still
        writes its results.

        Args:
            workloads: Names of the workloads whose code is checked for changes since earlier runs.
            is_kept: Whether the study may continue with changed code (`--keep-code-change`).
            resumes: Whether the command resumes an earlier one. If it does not, it must call
                `start_over` before its first run.

        Raises:
            UserError: The code has changed since earlier runs, and `is_kept` is False.
        """
        storage, versions = self.storage, dict[str, dict[str, str]]()
        if workloads:
            versions = code_versions(set(workloads), self.place, self.folder, is_kept=is_kept)
        self.store = self.closing.enter_context(
            Store(self.folder, storage.check, storage.forget, versions=versions)
        )
        self.frame.interrupt.defer()
        if resumes:
            self.loggers.start()
        return self.store

    def start_over(self) -> None:
        """Delete the records of earlier commands."""
        self.store.clear()
        self.loggers.start()  # not earlier: the trackers follow a file that only grows

    def results(self) -> Study:
        """Load the study from its records.

        Raises:
            StudyError: The folder was deleted, or another process has taken it over.
        """
        self.store.check()
        return replace(load(self.folder), place=self.place)

    def write(self, results: Study) -> list[Path]:
        """Write the tables, the winners and the page.

        Returns:
            A list with the file of the page; [] if the page could not be written.
        """
        export(results, self.store)
        return self.write_page(results)

    def write_page(self, results: Study, parts: Sequence["PagePart"] = ()) -> list[Path]:
        """Write the page (`report.html`) with additional parts.

        Returns:
            A list with the file of the page; [] if it could not be written.
        """
        return try_page(results, self.folder, self.frame.say, parts)
