"""A results folder's files, each written whole or not at all."""

import os
import re
from pathlib import Path
from typing import Any

from raybench.core.documents import to_yaml
from raybench.core.errors import StudyError, UserError
from raybench.core.secrets import redact_text
from raybench.core.text import clean, clean_lines

ERRORS_FOLDER = "errors"
WINNERS = ("best.yaml", "cheapest.yaml")


class StudyFiles:
    """Writes the files that follow from the records; any process may, also beside a search."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_yaml(self, name: str, content: dict[str, Any], *, comment: str = "") -> None:
        """Write a YAML file; `comment` lines stand above it."""
        head = "".join(f"# {clean(line)}\n" for line in comment.splitlines())
        self.write_text(name, head + to_yaml(content))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file in UTF-8."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a binary file.

        Raises StudyError where the folder is gone, and UserError where it may not be written.
        """
        # Of its own name: a report may be written while a search ends.
        partial = self.folder / f".{name}.{os.getpid()}.partial"
        try:
            partial.write_bytes(content)
            partial.replace(self.folder / name)
        except FileNotFoundError:
            raise self.gone() from None
        except PermissionError as error:
            raise UserError(
                f"{self.folder}: cannot be written ({error.strerror}); give yourself the right to "
                "write there, or copy the folder."
            ) from None
        except OSError:
            partial.unlink(missing_ok=True)  # of a full disk half a file would take the rest
            raise

    def write_error(self, trial: str, text: str) -> Path:
        """Keep the full text of a failure (a traceback) and return its file's path.

        `errors/<trial>.txt`, without secrets; a later failure of the same trial takes its place.
        """
        name = re.sub(r"[^\w.-]", "_", trial, flags=re.ASCII).lstrip(".")[:100] or "_"
        folder = StudyFiles(self.folder / ERRORS_FOLDER)
        try:
            folder.folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise self.gone() from None
        folder.write_text(f"{name}.txt", clean_lines(redact_text(text, os.environ)) + "\n")
        return folder.folder / f"{name}.txt"

    def gone(self) -> StudyError:
        """Return the error of a folder that was deleted or replaced in mid-study."""
        return StudyError(
            f"{clean(str(self.folder))}: the results folder, or a file of it, was deleted or "
            "replaced while the study ran; what was measured since is lost, run the command again."
        )
