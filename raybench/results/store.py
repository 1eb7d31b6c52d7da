"""Writing of a results folder: records line by line as runs produce them, other files atomically.

This module also determines the package versions, the machine and the command that are written to
`study.yaml`, and the kind of a study from the keys of that file.
"""

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TextIO

from raybench.spec.documents import to_yaml
from raybench.spec.errors import ErrorCode, StudyError, UserError
from raybench.spec.text import clean, clean_lines, file_name, program, redact, redact_text

ERRORS_FOLDER, LOGS_FOLDER = "errors", "logs"
"""Subfolders of a results folder for tracebacks, and for the output of trials."""
DIAGNOSIS, PAGE_FILE = "diagnosis.yaml", "report.html"
WINNERS = ("best.yaml", "cheapest.yaml")
"""Files with the run specs of the winners."""


class StudyFiles:
    """Writes the files of a results folder that are derived from the records.

    Any process may write them, even while another process runs the study.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_yaml(self, name: str, content: dict[str, Any], *, comment: str = "") -> None:
        """Write a YAML file.

        Args:
            name: Name of the file.
            content: Content of the file.
            comment: Text for comments at the top of the file.
        """
        head = "".join(f"# {clean(line)}\n" for line in comment.splitlines())
        self.write_text(name, head + to_yaml(content))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file in UTF-8."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a binary file atomically.

        Raises:
            StudyError: The results folder was deleted.
            UserError: The folder is not writable.
        """
        # The process ID is in the name because a report may be written while a search ends.
        partial = self.folder / f".{name}.{os.getpid()}.partial"
        try:
            partial.write_bytes(content)
            partial.replace(self.folder / name)
        except FileNotFoundError:
            raise self.gone() from None
        except PermissionError as error:
            raise UserError(
                f"{self.folder}: cannot be written ({error.strerror}); change its permissions, or "
                "copy the folder.",
                ErrorCode.NOT_WRITABLE,
            ) from None
        except OSError:
            partial.unlink(missing_ok=True)  # a partial file would take up space on a full disk
            raise

    def write_error(self, trial: str, text: str) -> Path:
        """Write the traceback of a failure to `errors/<trial>.txt`, with secrets hidden.

        A later failure of the same trial replaces the file.

        Returns:
            Path of the file.
        """
        return self._write_below(ERRORS_FOLDER, trial, text)

    def write_log(self, trial: str, printed: bytes) -> Path:
        """Write the output of a trial to `logs/<trial>.txt`, with secrets hidden and control
        characters removed; return the path of the file."""
        return self._write_below(LOGS_FOLDER, trial, printed.decode(errors="replace"))

    def log_file(self, trial: str) -> Path:
        """Return the path of the file with the output of a trial, which need not exist."""
        return self.folder / LOGS_FOLDER / f"{file_name(trial)}.txt"

    def _write_below(self, subfolder: str, trial: str, text: str) -> Path:
        name, folder = f"{file_name(trial)}.txt", StudyFiles(self.folder / subfolder)
        try:
            folder.folder.mkdir(exist_ok=True)
        except FileNotFoundError:
            raise self.gone() from None
        folder.write_text(name, clean_lines(redact_text(text, os.environ)) + "\n")
        return folder.folder / name

    def gone(self) -> StudyError:
        """Return the error for a folder that was deleted or replaced during the study."""
        return StudyError(
            f"{clean(str(self.folder))}: the results folder or one of its files was deleted or "
            "replaced while the study ran; results since then are lost; run the command again."
        )


def write_out(out: Path, text: str) -> None:
    """Write text to the file named by the option `--out`; raise UserError if it cannot be
    written."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"--out {out}: cannot be written ({error.strerror}); name another file.",
            ErrorCode.NOT_WRITABLE,
        ) from None


STUDY_FILE = "study.yaml"
RECORDS_FILE = "records.jsonl"
FORMAT = 1
"""Version of the format of a results folder, which is written to `study.yaml`."""


class Store(StudyFiles):
    """Writes the records of a study. Only one process may write them, but several may read them."""

    def __init__(
        self,
        folder: Path,
        may_write: Callable[[], None] = lambda: None,
        forget: Callable[[], None] = lambda: None,
        *,
        versions: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        """Open the records for appending.

        Args:
            folder: Results folder; created if missing.
            may_write: Function that raises StudyError if another process now owns the folder.
            forget: Function that is called before all records are deleted.
            versions: Digests of the files of the user's code, keyed by name of the version and then
                by file. New records of runs name the last version.
        """
        super().__init__(folder)
        self.versions = {name: dict(digests) for name, digests in versions.items()}
        self._code = next(reversed(self.versions), None)
        self._may_write, self._forget = may_write, forget
        try:
            folder.mkdir(parents=True, exist_ok=True)
            mend_last_line(folder / RECORDS_FILE)
            self._records: TextIO = (folder / RECORDS_FILE).open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"--out {folder}: cannot be written ({error.strerror}); name another folder.",
                ErrorCode.NOT_WRITABLE,
            ) from None

    def append(self, line: dict[str, Any]) -> None:
        """Append one record and flush it.

        Strings are cleaned (`spec.text.clean`), and secrets in messages are replaced.

        Raises:
            StudyError: The file was deleted or replaced, or another process now owns the folder.
        """
        self.check()
        if self._code is not None and line.get("kind") == "run" and not line.get("code"):
            line = line | {"code": self._code}
        for key in ("message", "restart_reason"):
            if line.get(key):
                line = line | {key: redact_text(line[key], os.environ)}
        self._records.write(json.dumps(plain(line)) + "\n")
        self._records.flush()

    def check(self) -> None:
        """Raise StudyError if the folder or its records were deleted, moved or replaced, or if
        another process now owns the folder."""
        self._may_write()
        try:
            status = (self.folder / RECORDS_FILE).stat()
        except OSError:
            raise self.gone() from None
        if not os.path.samestat(status, os.fstat(self._records.fileno())):
            raise self.gone()

    def clear(self) -> None:
        """Delete all records."""
        if os.fstat(self._records.fileno()).st_size:
            self._forget()
            self._records.truncate(0)

    def close(self) -> None:
        """Write all records to the disk and close the file."""
        try:
            self._records.flush()
            os.fsync(self._records.fileno())
        finally:
            self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def mend_last_line(path: Path) -> bool:
    """Repair the last line of a JSON Lines file; return whether the file was changed.

    If the last line is complete JSON, a missing newline is added. If it is incomplete, because its
    writer was killed or the disk was full, it is removed. No other process may write to the file,
    `records.jsonl` or `optuna.log`, at the same time.
    """
    if not path.is_file():
        return False
    content = path.read_bytes()
    if not content or content.endswith(b"\n"):
        return False
    start = content.rfind(b"\n") + 1
    with path.open("r+b") as file:
        try:
            json.loads(content[start:])
        except (ValueError, RecursionError):  # incomplete, perhaps within a character
            file.truncate(start)
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
    return True


def plain(value: Any) -> Any:
    """Return a value for JSON: strings are cleaned (`spec.text.clean`), and NaN and infinity, which
    JSON does not have, become None."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def keep_error(
    store: Store, trial: str, message: str, traceback: str, *, log: Path | None = None
) -> str:
    """Write the traceback of a failure to a file, and add the names of files to the message.

    Args:
        store: Store of the study.
        trial: Name of the trial that failed.
        message: Error message.
        traceback: Traceback of the failure; empty if there is none.
        log: File with the output of the trial; None if there is none.

    Returns:
        The message with the names of the files for traceback and output.
    """
    files = [] if log is None else [f"output: {log.relative_to(store.folder)}"]
    if traceback:
        path = store.write_error(trial, "\n".join([traceback.rstrip(), *files]))
        files.insert(0, f"traceback: {path.relative_to(store.folder)}")
    return f"{message} ({', '.join(files)})" if files else message


PACKAGES = ("raybench", "ray", "torch", "tensorflow", "keras", "optuna", "pandas", "numpy")


def versions() -> dict[str, str]:
    """Return the installed versions of Python and PACKAGES."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def machine() -> dict[str, Any]:
    """Return this host's name, system, processor and number of cores."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def command() -> str:
    """Return the command line of this process, with secrets replaced by `***`."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    words = ["python", "-m", module.name.removesuffix(".__main__")] if module else [program()]
    arguments = redact([*words, *sys.argv[1:]], os.environ)
    return clean(shlex.join(arguments))


NOTHING_LEFT = "nothing new is left to try in the space."
"""Last words of the note in `study.yaml` about a search that ended before it had run all its
trials, because no untried configuration was left."""
CODE = "code"
"""Key of `study.yaml` that contains the versions of the user's code and the digests of their
files."""


def with_session(earlier: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the keys of `study.yaml` that describe the sessions of a study, with the current
    session added.

    Each command that starts or resumes the study is a session.

    Args:
        earlier: Previous content of `study.yaml`; empty in the first session.
        **more: Further keys of this session.

    Returns:
        The keys of the first session, and a list of all later sessions under the key `continued`.
    """
    session = {"command": command(), "versions": versions(), "machine": machine(), **more}
    first = {key: earlier.get(key, value) for key, value in session.items()}
    later = [*(earlier.get("continued") or []), *([session] if earlier else [])]
    return {"format": FORMAT} | first | {"continued": later}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123 (one line of a large file)
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: use the less precise platform module
    return platform.processor() or platform.machine()


SCALING = "scaling_study"
"""Key of `study.yaml` that contains a scaling study."""
COMPARISON = "compare"
"""Key of `study.yaml` that contains the sides (A, B, ...) of a comparison."""
IMPORTED = "imported"
"""Key of `study.yaml` that names the source of runs imported from another tool; also the name of
the workload of such runs."""
TRAINING = "run"
"""Key in the section `study` of `study.yaml` that is true for a single training run."""
PROBED = "diagnosis"
"""Key in the section `study` of `study.yaml` that contains the run spec of a diagnosis."""


class StudyKind(Enum):
    """Kind of a study. The value is the name of the command that creates such a study."""

    SEARCH = "tune"
    TRAINING = "train"
    SCALING = "scale"
    COMPARISON = "compare"
    DIAGNOSIS = "diagnose"
    IMPORTED = "import"


def study_kind(content: Mapping[str, Any]) -> StudyKind:
    """Return the kind of a study, given the content of its `study.yaml`."""
    study = content.get("study")
    if isinstance(content.get(COMPARISON), Mapping):
        return StudyKind.COMPARISON
    if SCALING in content:
        return StudyKind.SCALING
    if IMPORTED in content:
        return StudyKind.IMPORTED
    if isinstance(study, Mapping) and study.get(TRAINING):
        return StudyKind.TRAINING
    if isinstance(study, Mapping) and study.get(PROBED):
        return StudyKind.DIAGNOSIS
    return StudyKind.SEARCH
