"""Frame of the commands `tune`, `train`, `scale`, `compare` and `diagnose`: their console, their
results folder and their end.

A command checks its input, prints its plan or opens its results folder, trains its runs there, and
writes and prints the results. It supplies what it checks, runs and prints; the rest is here.
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
from raybench.results.place import check_place, place_in_words
from raybench.results.storage import StudyStorage, open_storage
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
    """Check `--address` and `--out`; return the results folder or URL, by default `default`."""
    check_address(options.address)
    return check_place(options.out or default)


class CommandFrame:
    """Console and end of a command that trains runs.

    Args:
        options: Options of the command.
        interrupt: Signals of the user.

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
        """Return the end of `--dry-run`, whose plan has been printed.

        Args:
            sentences: Choices made for the user, and warnings.
            plan: The plan as plain data.
        """
        return Ended(DONE, answer=sentences, details={"plan": plan})

    @contextmanager
    def open(self, place: str) -> Iterator["OpenStudy"]:
        """Context manager: lock a results folder or URL for this process, and yield it.

        On exit, the experiment trackers get what they lack, and a URL what is not yet uploaded.
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
        """Say whether the command was interrupted; return how it ended.

        Args:
            place: Results folder or URL.
            code: Exit code, unless the command was interrupted.
            is_interrupted: Whether runs were cut off because the user asked to stop.
            can_resume: Whether the same command continues from what is recorded.
        """
        if not is_interrupted:
            return Ended(code, place)
        self.say(f"interrupted{'; rerun the same command to resume' if can_resume else ''}.")
        return Ended(INTERRUPTED, place)


@dataclass
class OpenStudy:
    """Results folder that a command has locked; see `CommandFrame.open`.

    A command first checks what an earlier command has left there, then calls `begin`.
    """

    frame: CommandFrame
    storage: StudyStorage
    loggers: Loggers
    closing: contextlib.ExitStack
    """Closes the records."""
    store: Store = field(init=False)
    """Records and other files of the study; set by `begin`."""

    @property
    def place(self) -> str:
        """Folder or URL that the user named."""
        return self.storage.place

    @property
    def folder(self) -> Path:
        """Folder in which everything is read and written."""
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
        """The place in words: for a URL, with the local folder."""
        return place_in_words(self.place, self.folder)

    def begin(
        self, workloads: Set[str] = frozenset(), *, is_kept: bool = False, resumes: bool = True
    ) -> Store:
        """Open the records; from now on, a signal of the user ends the runs, not the command.

        Args:
            workloads: Names of the workloads whose code the study keeps track of.
            is_kept: Whether the study may continue with changed code (`--keep-code-change`).
            resumes: Whether the command continues an earlier one. False if it calls `start_over`
                once nothing prevents its runs any more.

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
        """Return the study as recorded.

        Raises:
            StudyError: The folder was deleted, or another process has taken it over.
        """
        self.store.check()
        return replace(load(self.folder), place=self.place)

    def write(self, results: Study) -> list[Path]:
        """Write the tables, the winners and the page; return the page's file, if it was written."""
        export(results, self.store)
        return self.write_page(results)

    def write_page(self, results: Study, parts: Sequence["PagePart"] = ()) -> list[Path]:
        """Write the page, with further parts; return its file, if it was written."""
        return try_page(results, self.folder, self.frame.say, parts)
