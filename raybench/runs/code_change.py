"""Check whether the user's code has changed since the earlier runs of a study."""

from pathlib import Path

from raybench.models.code import digests_of, version_of
from raybench.results.records import read_records
from raybench.results.store import CODE, RECORDS_FILE, STUDY_FILE
from raybench.spec.documents import read_mapping
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import clean, command_line

Versions = dict[str, dict[str, str]]
"""Digests of the user's files by file name, for each version of the code; the current version is
last."""
MAX_NAMED = 5


def code_versions(workloads: set[str], place: str, folder: Path, *, is_kept: bool) -> Versions:
    """Return all versions of the user's code in a study, including the current version.

    Args:
        workloads: names of the study's workloads.
        place: folder or URL of the study as given by the user, for messages.
        folder: folder of the study on this machine.
        is_kept: whether the study may continue with changed code (`--keep-code-change`).

    Raises:
        UserError: earlier runs had different code, and `is_kept` is False.
    """
    digests = dict[str, str]()
    for workload in sorted(workloads):
        digests |= digests_of(workload)
    file = folder / STUDY_FILE
    known: Versions = (read_mapping(file).get(CODE) or {}) if file.is_file() else {}
    if (now := version_of(digests)) is None:
        return known
    if now not in known and not is_kept and (folder / RECORDS_FILE).is_file():
        runs = read_records(folder).runs
        had = [name for name, run in runs.items() if run.code is not None]
        if had:
            before = known.get(runs[had[-1]].code or "", {})
            raise UserError(_changed(before, digests, had, place), ErrorCode.STUDY_CHANGED)
    return {version: known[version] for version in known if version != now} | {now: digests}


def _changed(before: dict[str, str], now: dict[str, str], runs: list[str], place: str) -> str:
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    names = ", ".join(map(clean, changed[:MAX_NAMED]))
    if len(changed) > MAX_NAMED:
        names += f" and {len(changed) - MAX_NAMED} more files"
    have = "has" if len(changed) == 1 else "have"
    since = f"{runs[0]} was" if len(runs) == 1 else f"{min(runs)} to {max(runs)} were"
    return (
        f"{place}: {names} {have} changed since {since} run; use --fresh to start a new study, or "
        f"--keep-code-change to continue this one; {command_line('report', place)} shows it as it "
        "is."
    )
