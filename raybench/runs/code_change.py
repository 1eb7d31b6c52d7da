"""Detection of changes of the user's code since the earlier runs of a study, by file digests.

The code consists of the file that defines the training loop or the model class (or the scripts of a
command), and of all files that it imports from its own folder, including imports inside functions.
Installed packages are not part of it.
"""

import ast
import hashlib
import json
import logging
import os.path
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from raybench.models.named import is_named
from raybench.models.user_code import loop_file
from raybench.results.records import read_records
from raybench.results.store import CODE, RECORDS_FILE, STUDY_FILE
from raybench.spec.documents import read_mapping
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.own_loop import is_command, is_own_loop, text_of_command
from raybench.spec.text import clean, command_line

logger = logging.getLogger(__name__)

MAX_BYTES = 16 << 20
"""Maximum size in bytes of a code file that is named in a command; larger files count as data."""
DIGITS = 12
PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of raybench, whose files are not the user's even if the current folder contains them."""
Versions = dict[str, dict[str, str]]
"""Digests of the user's files, keyed by version of the code and then by file name. The current
version is last."""
MAX_NAMED = 5


def code_versions(workloads: set[str], place: str, folder: Path, *, is_kept: bool) -> Versions:
    """Return all versions of the user's code in a study, including the current version.

    Args:
        workloads: Names of the study's workloads.
        place: Folder or URL of the study as given by the user, for messages.
        folder: Folder of the study on this machine.
        is_kept: Whether the study may continue with changed code (`--keep-code-change`).

    Raises:
        UserError: Earlier runs had different code, and `is_kept` is False.
    """
    digests = dict[str, str]()
    for workload in sorted(workloads):
        digests |= digests_of(workload)
    file = folder / STUDY_FILE
    versions: Versions = (read_mapping(file).get(CODE) or {}) if file.is_file() else {}
    if (current := version_of(digests)) is None:
        return versions
    if current not in versions and not is_kept and (folder / RECORDS_FILE).is_file():
        runs = read_records(folder).runs
        coded_runs = [name for name, run in runs.items() if run.code is not None]
        if coded_runs:
            last_digests = versions.get(runs[coded_runs[-1]].code or "", {})
            raise UserError(
                _change_message(last_digests, digests, coded_runs, place), ErrorCode.STUDY_CHANGED
            )
    return {version: versions[version] for version in versions if version != current} | {
        current: digests
    }


def _change_message(
    old_digests: dict[str, str], new_digests: dict[str, str], runs: list[str], place: str
) -> str:
    """Return the error message for code that has changed since earlier runs."""
    changed = [
        name
        for name in {**old_digests, **new_digests}
        if old_digests.get(name) != new_digests.get(name)
    ]
    names = ", ".join(map(clean, changed[:MAX_NAMED]))
    if len(changed) > MAX_NAMED:
        names += f" and {len(changed) - MAX_NAMED} more files"
    have = "has" if len(changed) == 1 else "have"
    since = f"{runs[0]} was" if len(runs) == 1 else f"{min(runs)} to {max(runs)} were"
    return (
        f"{place}: {names} {have} changed since {since} run; start a new study in another --out, "
        f"or use --keep-code-change to continue this one; {command_line('report', place)} shows it "
        "as it is."
    )


def digests_of(workload: str) -> dict[str, str]:
    """Return the digests of the user's files that a workload runs.

    Args:
        workload: The key `workload` of a run spec; files are relative to the current folder.

    Returns:
        Digests by file path, relative to the current folder where possible. Empty if the workload
        uses no file of the user, as with a library's model.
    """
    files = list[Path]()
    remaining = list(_first_files(workload))
    while remaining:
        file = remaining.pop().resolve()
        if file not in files and not file.is_relative_to(PACKAGE):
            files.append(file)
            remaining += _imported(file) if file.suffix == ".py" else []
    return {_name(file): _digest(file.read_bytes()) for file in sorted(files)}


def version_of(digests: Mapping[str, str]) -> str | None:
    """Return one digest of all files, computed from their digests; None if there are no files."""
    return _digest(json.dumps(dict(digests), sort_keys=True).encode()) if digests else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def _name(file: Path) -> str:
    folder = Path.cwd().resolve()
    return str(file.relative_to(folder) if file.is_relative_to(folder) else file)


def _first_files(workload: str) -> Iterator[Path]:
    """Yield the files that a workload names directly, without their imports."""
    if is_command(workload):
        yield from _files_of_command(text_of_command(workload))
    elif is_own_loop(workload):
        if (file := loop_file(workload)) is not None:
            yield file
    elif ":" in workload and not is_named(workload):
        yield from _module_files(workload.partition(":")[0], Path.cwd())


CODE_SUFFIXES = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".r", ".jl", ".ipynb")
"""Suffixes of code and settings files. Other files, such as logs and models that a command writes,
are not code."""


def _files_of_command(command: str) -> Iterator[Path]:
    """Yield the code files that a command names, including the file of the module after `-m`.

    A word such as `--config=small.yaml` names the file `small.yaml`. The first word (the program)
    is included if it is a relative path to a file.
    """
    words = shlex.split(command)
    for number, word in enumerate(words):
        if number and words[number - 1] == "-m":
            yield from _module_files(word, Path.cwd())
        for text in dict.fromkeys((word, word.rpartition("=")[2])):
            file = Path(text)
            is_own = number > 0 or not file.is_absolute()
            is_code = number == 0 or file.suffix.lower() in CODE_SUFFIXES
            # os.path: pathlib raises an error for a word that is too long for a path.
            is_file = text and is_own and is_code and os.path.isfile(text)  # noqa: PTH113
            if is_file and file.stat().st_size <= MAX_BYTES:
                yield file


def _imported(file: Path) -> Iterator[Path]:
    """Yield the files that a Python file imports from its own folder, or from the folder that
    contains its top-level package."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        logger.info("%s is not Python, so changes of its imports are not detected: %s", file, error)
        return
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name, file.parent, root)
        elif isinstance(node, ast.ImportFrom):
            module, folders = node.module or "", (file.parent, root)
            if node.level > len(file.parents):
                continue  # an import from above the root folder, which fails in Python too
            if node.level:
                folders = (file.parents[node.level - 1],) * 2
            for alias in node.names:
                yield from _module_files(
                    f"{module}.{alias.name}".lstrip("."), *dict.fromkeys(folders)
                )


def _module_files(name: str, *folders: Path) -> Iterator[Path]:
    """Yield the files of a module, and of the packages that contain it, in the given folders.

    The name may also be that of a function or class (`module.name`); the file of the module is then
    yielded.
    """
    for folder in folders:
        place = folder
        for part in name.split("."):
            file, package = place / f"{part}.py", place / part / "__init__.py"
            if package.is_file():
                yield package
            elif file.is_file():
                yield file
            place = place / part
