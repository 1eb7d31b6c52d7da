"""Files in the user's folder that hide a package which raybench imports.

Ray's workers look for modules in that folder first: they would run a script `optuna.py` there in
place of Optuna.
"""

import functools
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder, all_suffixes
from pathlib import Path

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import clean

OWN = "raybench"
NEVER_IMPORTED = {
    *("aifc", "antigravity", "cgi", "cgitb", "chunk", "crypt", "idlelib", "imaplib", "lib2to3"),
    *("mailbox", "mailcap", "nntplib", "poplib", "sched", "sndhdr", "sunau", "telnetlib", "this"),
    *("trace", "turtle", "turtledemo", "wave", "xdrlib"),
}
"""Modules of the standard library that neither raybench nor its dependencies import."""
STRAY = {"benchmarks", "docs", "example", "examples", "scripts", "test", "tests", "tools"}
"""Folders that packages install beside themselves by mistake, and that are never imported."""
NAME = re.compile(r"^[\w.-]+")
EXTRA = re.compile(r"extra\s*==\s*[\"']([\w-]+)")
FRAMEWORKS = ("torch", "tensorflow")
"""The extras of raybench that its processes always import."""


def refuse_hiding_files(folder: Path) -> None:
    """Check that no module in a folder hides one that raybench needs.

    Args:
        folder: the first folder of Python's path.

    Raises:
        UserError: names the module.
    """
    for name, entry in _modules_in(folder):
        hides = _hidden_kind(name, entry, folder)
        if hides is not None:
            raise UserError(
                f"{clean(entry.name)} in {clean(str(folder))} hides the {hides} {name}, which "
                "raybench needs; rename it.",
                ErrorCode.CONFLICT,
            )


def _modules_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of each module and each package in a folder."""
    for entry in sorted(folder.iterdir()):
        name, suffix = entry.name.partition(".")[::2]
        if not name.isidentifier():
            continue
        is_module = f".{suffix}" in all_suffixes() and entry.is_file()
        if is_module or (not suffix and (entry / "__init__.py").is_file()):
            yield name, entry


def _hidden_kind(name: str, entry: Path, folder: Path) -> str | None:
    """Return the kind of the module that an entry of the folder hides; None if it hides none."""
    if name in sys.stdlib_module_names:
        is_needed = name not in sys.builtin_module_names and name not in NEVER_IMPORTED
        is_here = PathFinder.find_spec(name, _without(folder)) is not None  # not Windows's alone
        return "standard library's module" if is_needed and is_here else None
    if name in STRAY:
        return None
    if name == OWN:
        own = Path(__file__).resolve().parents[1]
        return None if entry.resolve() == own else "package"
    found = PathFinder.find_spec(name, _without(folder))
    if found is None or found.origin is None:  # installed nowhere, or a folder without code
        return None
    owners = {_normal(one) for one in metadata.packages_distributions().get(name, [])}
    return "package" if owners & _needed_distributions() else None


def _without(folder: Path) -> list[str]:
    """Return Python's path without a folder."""
    return [one for one in sys.path if Path(one).resolve() != folder.resolve()]


@functools.cache
def _needed_distributions() -> frozenset[str]:
    """Return the installed dependencies of raybench, and theirs."""
    needed, left = set[str](), [OWN]
    while left:
        one = left.pop()
        try:
            requirements = metadata.requires(one) or []
        except metadata.PackageNotFoundError:
            continue
        needed.add(_normal(one))
        for line in requirements:
            extra, name = EXTRA.search(line), NAME.match(line)
            is_framework = one == OWN and extra is not None and extra[1] in FRAMEWORKS
            if name and (extra is None or is_framework) and _normal(name[0]) not in needed:
                left.append(_normal(name[0]))
    return frozenset(needed)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
