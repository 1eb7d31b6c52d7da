"""Whether a study has come to its end when its page is written."""

import json
import os
import platform
from typing import Any

from raybench.results.load import StudyResults
from raybench.results.lock import OWNER_FILE
from raybench.results.words import counted


def unfinished(results: StudyResults) -> str | None:
    """Return a sentence where the study is still running, or was cut off; None where neither.

    A study below a URL has no lock in its copy: of it only what was cut off is told.
    """
    owner, number = _owner(results), counted(len(results.runs), "run")
    if owner and not _is_own(owner):
        if _lives(owner):
            who = f"process {owner.get('pid')} on {owner.get('host')}"
            return f"The study is still running ({who}); this page has the {number} ended so far."
        return f"The study was cut off, with {number} ended: the same command continues it."
    if any(run.stop == "interrupted" for run in results.runs.values()):
        return "The study was interrupted, and its last runs cut off: the same command continues."
    return None


def _owner(results: StudyResults) -> dict[str, Any]:
    try:
        found = json.loads((results.folder / OWNER_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}  # nobody holds the folder, or its file is being written
    return found if isinstance(found, dict) else {}


def _is_own(owner: dict[str, Any]) -> bool:
    return owner.get("pid") == os.getpid() and owner.get("host") == platform.node()


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the process is there; of another host nobody knows, so it is believed."""
    pid = owner.get("pid")
    if owner.get("host") != platform.node() or not isinstance(pid, int) or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
