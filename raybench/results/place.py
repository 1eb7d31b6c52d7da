"""Places of results: folders, `file://` URLs and URLs of object stores.

This module checks that a place can be written to, and that a study may be resumed there. It also
locks a folder, so that only one command at a time writes to it.
"""

import json
import os
import platform
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import psutil
from filelock import FileLock, Timeout

import raybench
from raybench.results.store import RECORDS_FILE, SCALING, STUDY_FILE, StudyKind, command, study_kind
from raybench.spec.documents import read_mapping, to_yaml, validate
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.scaling_study import ScalingStudy
from raybench.spec.study import StudySpec, as_written
from raybench.spec.text import clean, shorten

MAY_CHANGE = (
    "search.trials",
    "search.first",
    "search.time_budget_s",
    "search.trial_seconds",
    "search.concurrency",
    "confirm.race",
    "confirm.fresh",
    "price",
    "fixed.checkpoint_every_s",
    "fixed.record_steps",
)
"""Dotted keys of a study that may differ when it is resumed, since they do not change what is
measured."""
DEFAULT_FOLDER = "results"
"""Folder in which a study without --out has its results folder."""
LONGEST_VALUE = 100
"""Maximum number of characters of a value in an error message."""
SCALING_MAY_CHANGE = ("repeats", "price", "budget", "more", "base.checkpoint_every_s")
"""Dotted keys of a scaling study that may differ when it is resumed."""


def shipped_space(name: str) -> Path | None:
    """Return the path of the search-space file with this name that is shipped with raybench; None
    if there is no such file."""
    if not re.fullmatch(r"[\w-]{1,60}", name):
        return None
    package = Path(raybench.__file__).parent
    for folder in (package / "search_spaces", package.parent / "search_spaces"):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    return None


JOB_FOLDER = "runtime_resources"
"""Name of the folder in which Ray unpacks the working directory and the packages of a job; Ray
deletes it when no job uses it any more."""


def check_folder(wanted: Path) -> None:
    """Raise UserError if results cannot be written to the folder `wanted`; do not create it."""
    try:
        existing = next(
            folder for folder in (wanted, *wanted.absolute().parents) if folder.exists()
        )
    except OSError as error:
        problem = f"--out {shorten(str(wanted), 60)}: cannot be used ({error.strerror})"
        raise UserError(f"{problem}; name another folder.", ErrorCode.NOT_WRITABLE) from None
    if not existing.is_dir():
        raise UserError(
            f"--out {wanted}: cannot be written ({existing} is a file); name another folder.",
            ErrorCode.NOT_WRITABLE,
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            f"--out {wanted}: cannot be written (no permission in {existing}).",
            ErrorCode.NOT_WRITABLE,
        )
    if JOB_FOLDER in Path(os.path.realpath(wanted)).parts[:-1]:
        raise UserError(
            f"--out {wanted}: lies in the temporary folder of this Ray job, which Ray deletes; "
            "name a permanent folder by its absolute path, such as --out /shared/results.",
            ErrorCode.NOT_WRITABLE,
        )


def unused_folder(wanted: Path) -> Path:
    """Return the path of a folder that does not exist yet: `wanted`, or `wanted` with a number
    appended."""
    wanted = wanted.resolve()
    if not wanted.name:
        raise UserError(
            f"--out {wanted}: is a root folder; name another folder.", ErrorCode.INVALID_VALUE
        )
    number, folder = 2, wanted
    while folder.exists():
        folder = wanted.with_name(f"{wanted.name}-{number}")
        number += 1
    return folder


def refuse_other_kind(place: str, folder: Path, kind: StudyKind) -> None:
    """Raise UserError if a place contains a study of another kind, or records without a
    `study.yaml`.

    Args:
        place: Folder or URL of the results.
        folder: Local path of the results.
        kind: Kind of the study that is to be run or resumed there.
    """
    records, study = folder / RECORDS_FILE, folder / STUDY_FILE
    is_same_kind = not (records.is_file() and records.stat().st_size)
    if study.is_file():
        is_same_kind = study_kind(read_mapping(study)) is kind
    if not is_same_kind:
        raise UserError(
            f"{place}: contains another study; name another place with --out.",
            ErrorCode.STUDY_CHANGED,
        )


def refuse_other_study(place: str, file: Path, study: StudySpec) -> None:
    """Raise UserError if a place contains the results of another study; the message lists
    differences.

    Args:
        place: Folder or URL of the results.
        file: Local path of the `study.yaml` at that place.
        study: Study that is to be resumed there.
    """
    before = read_mapping(file).get("study", {})
    if not isinstance(before, dict):
        raise UserError(
            f"{file}: contains no study; restore it, or name another folder.",
            ErrorCode.INVALID_FILE,
        )
    old, new = comparable(before, file, study)
    if not _differences(old, new):
        return
    changes = _differences(as_written(old), as_written(new)) or _differences(old, new)
    hint = f" (add --seed-from {place} to learn from the results there)"
    if any(change.startswith(("workload", "dataset", "objective")) for change in changes):
        hint = ""  # scores of another task are not comparable
    raise UserError(
        f"{place}: contains another study ({'; '.join(changes[:3])}); use --fresh "
        f"to start a new study in a folder beside it{hint}, or --out to name another place.",
        ErrorCode.STUDY_CHANGED,
    )


def refuse_other_scaling(place: str, file: Path, study: ScalingStudy) -> None:
    """Raise UserError if a place contains another scaling study, or a study of another kind; the
    message lists differences.

    Args:
        place: Folder or URL of the results.
        file: Local path of the `study.yaml` at that place.
        study: Scaling study that is to be resumed there.
    """
    refuse_other_kind(place, file.parent, StudyKind.SCALING)
    before = read_mapping(file)[SCALING]
    old, new = validate(ScalingStudy, before, f"{file}: {SCALING}").document(), study.document()
    new["base"]["objective"] = _with_metric(new["base"]["objective"], old["base"]["objective"])
    changes = _differences(old, new, may_change=SCALING_MAY_CHANGE)
    if changes:
        raise UserError(
            f"{place}: contains another study ({'; '.join(changes[:3])}); name another place with "
            "--out.",
            ErrorCode.STUDY_CHANGED,
        )


def comparable(
    before: dict[str, Any], file: Path, study: StudySpec
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two studies as plain data with all keys, to be compared.

    Args:
        before: Content of the key `study` of a `study.yaml`.
        file: Path of that file, for error messages.
        study: New study, which is compared with the study in the file. If it does not set the
            metric, the metric of `before` is filled in.

    Returns:
        Plain data of the study in the file, and of the given study.
    """
    old, new = validate(StudySpec, before, f"{file}: study").document(), study.document()
    new["objective"] = _with_metric(new["objective"], old["objective"])
    return old, new


def _with_metric(objective: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """Return `objective`, or if it sets no metric, a copy with the metric of `written`."""
    if objective["metric"] is not None:
        return objective
    return objective | {key: written[key] for key in ("metric", "direction", "is_share")}


def _as_yaml(value: Any) -> str:
    """Return a value as YAML on one line, shortened to LONGEST_VALUE characters; "not set" for
    None."""
    if value is None:
        return "not set"
    text = to_yaml({"x": value}, in_lines=False).strip()
    return shorten(text[len("{x: ") : -1], LONGEST_VALUE)


def _differences(
    before: Any, now: Any, path: str = "", *, may_change: Sequence[str] = MAY_CHANGE
) -> list[str]:
    if path in may_change or before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [
            change
            for key in keys
            for change in _differences(
                before.get(key), now.get(key), f"{path}.{key}".strip("."), may_change=may_change
            )
        ]
    return [f"{path} was {_as_yaml(before)}, is {_as_yaml(now)}"]


def is_url(place: str | Path) -> bool:
    """Return whether a place is the URL of an object store; False for `file://` URLs."""
    return "://" in str(place) and urlsplit(str(place)).scheme != "file"


def local_path(place: str | Path) -> Path:
    """Return the local path of a place that is a path or a `file://` URL.

    Raises:
        UserError: The URL names another host.
    """
    if not str(place).startswith("file://"):
        return Path(place)
    parts = urlsplit(str(place))
    if parts.netloc not in ("", "localhost"):
        raise UserError(
            f"--out {place}: is on another host; write file:///FOLDER of this one.",
            ErrorCode.INVALID_VALUE,
        )
    return Path(unquote(parts.path))


def place_in_words(place: str, folder: Path) -> str:
    """Return the place of results as text for a sentence.

    Args:
        place: Folder or URL of the results.
        folder: Local path of the results, which is a copy if `place` is a URL.
    """
    return f"{place} (on this machine: {folder})" if is_url(place) else str(folder)


def unique_names(studies: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return a unique name for each study.

    The unique name is the study's own name. If several studies have the same name, it is the place,
    followed by a number if the place has occurred before.

    Args:
        studies: Name and place of each study.
    """
    names = [name for name, _ in studies]
    names = [name if names.count(name) == 1 else place for name, place in studies]
    repetitions = [names[:number].count(name) for number, name in enumerate(names)]
    return tuple(
        f"{name} ({count + 1})" if count else name
        for name, count in zip(names, repetitions, strict=True)
    )


LOCK_FILE = "study.lock"
OWNER_FILE = f"{LOCK_FILE}.owner"
PATIENCE_S = 0.2
"""Seconds to wait for the lock: long enough to take over the lock file of a killed process, and for
a new owner of the lock to write OWNER_FILE."""


class StudyLock:
    """Context manager that locks a results folder; the file OWNER_FILE names the owner of the lock.

    The operating system releases the lock when the process ends, even if the process is killed. On
    a file system that does not support locks, the existence of LOCK_FILE is the lock (see the
    package `filelock`). Such a file is taken over if its process ran on this host and has ended. If
    a process on another host left the file behind, the user has to delete it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / LOCK_FILE, timeout=PATIENCE_S)
        self._owner = ""

    def __enter__(self) -> Self:
        """Acquire the lock; if it is taken, raise UserError with a description of the owner."""
        try:
            # Ignores the warning that the file system does not support locks.
            with warnings.catch_warnings(action="ignore"):
                self._lock.acquire()
            self._owner = _owner()
            (self.folder / OWNER_FILE).write_text(self._owner)
        except Timeout:
            raise self._in_use_error() from None
        except OSError as error:
            self._lock.release()
            raise UserError(
                f"--out {self.folder}: cannot be written ({error.strerror}); name another folder.",
                ErrorCode.NOT_WRITABLE,
            ) from None
        return self

    def __exit__(self, *error: object) -> None:
        """Release the lock, even if the folder was deleted or another process created it again."""
        with suppress(OSError):
            if (self.folder / OWNER_FILE).read_text() == self._owner:
                (self.folder / OWNER_FILE).unlink()
                (self.folder / LOCK_FILE).unlink()  # waiting processes will create it again
        self._lock.release()

    def _in_use_error(self) -> UserError:
        owner = owner_of(self.folder)
        advice = "wait for this process, end it, or name another folder with --out"
        if owner.get("host") != platform.node():
            advice += f"; if the process no longer exists, delete {self.folder / LOCK_FILE}"
        return UserError(
            clean(f"{self.folder}: is in use by {_owner_in_words(owner)}; {advice}."),
            ErrorCode.STUDY_IN_USE,
        )


def owner_of(folder: Path) -> dict[str, Any]:
    """Return the content of the OWNER_FILE in a folder; {} if the file is missing or invalid."""
    try:
        owner = json.loads((folder / OWNER_FILE).read_bytes())
        return owner if isinstance(owner["pid"], int) else {}
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return {}


def owner_in(folder: Path) -> str | None:
    """Return a description of the other process that has locked a folder; None if there is none.

    A process that ran on this host and has died does not count; a killed process leaves OWNER_FILE
    behind.
    """
    owner = owner_of(folder)
    is_here, pid = owner.get("host") == platform.node(), owner.get("pid", 0)
    is_own_or_dead = is_here and (pid == os.getpid() or not psutil.pid_exists(pid))
    return None if not owner or is_own_or_dead else clean(_owner_in_words(owner))


def _owner() -> str:
    content = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
    }
    return json.dumps(content)


def _owner_in_words(owner: Mapping[str, Any]) -> str:
    text = f"process {owner.get('pid', '?')}"
    if owner:
        text += f" on {owner.get('host')} since {owner.get('since')} ({owner.get('command')})"
    return text
