"""A study's folder: where it lies, and whether an earlier session may be continued there."""

import re
from pathlib import Path
from typing import Any

import raybench
from raybench.core.documents import read_mapping
from raybench.core.errors import UserError
from raybench.core.study import StudySpec
from raybench.results.store import STUDY_FILE

MAY_CHANGE = (
    "search.trials",
    "search.time_budget_s",
    "search.concurrency",
    "confirm.top",
    "confirm.repeats",
    "price",
)
"""Keys that change how long a study goes on, not what it measures."""


def shipped_space(name: str) -> Path | None:
    """Return the path of a shipped search space, None if there is none of that name."""
    if not re.fullmatch(r"[\w-]{1,60}", name):
        return None
    package = Path(raybench.__file__).parent
    for folder in (package / "search_spaces", package.parent / "search_spaces"):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    return None


def choose_folder(wanted: Path, study: StudySpec, *, fresh: bool) -> Path:
    """Return the folder to use: `wanted`, or beside it with a number where `fresh`.

    An earlier study that differs raises UserError with the difference.
    """
    try:
        wanted.exists()
    except OSError as error:
        raise UserError(f"--out: is no usable folder ({error.strerror}).") from None
    if fresh:
        wanted = wanted.resolve()
        if not wanted.name:
            raise UserError(f"--out {wanted}: has nothing beside it; name another folder.")
        number, folder = 2, wanted
        while folder.exists():
            folder = wanted.with_name(f"{wanted.name}-{number}")
            number += 1
        return folder
    earlier = wanted / STUDY_FILE
    if earlier.is_file():
        before = read_mapping(earlier).get("study", {})
        changes = list(_differences(before, study.document()))
        if changes:
            raise UserError(
                f"{wanted}: holds another study ({'; '.join(changes[:3])}); "
                "use --fresh to start beside it, or --out for another folder."
            )
    elif wanted.exists() and not wanted.is_dir():
        raise UserError(f"--out {wanted}: is a file; name a folder.")
    return wanted


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    if path in MAY_CHANGE or before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [
            change
            for key in keys
            for change in _differences(before.get(key), now.get(key), f"{path}.{key}".strip("."))
        ]
    return [f"{path} was {before}, is {now}"]
