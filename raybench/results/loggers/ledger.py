"""What of a study is in a tool already: kept beside the records, so that nothing comes twice."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import filelock

from raybench.core.errors import UserError
from raybench.core.record import RunRecord
from raybench.results.store import mend_last_line

FOLDER = "logged"


class Ledger:
    """`logged/<tool>.jsonl`: every run that was begun in the tool, and every one that was ended.

    A line names the place it was written to; what was written elsewhere does not count. Without the
    file the tool is told everything anew. A context manager: one process has it.
    """

    def __init__(self, folder: Path, tool: str) -> None:
        self._path = folder / FOLDER / f"{tool}.jsonl"
        self._tool = tool
        self._names: dict[str, str] = {}
        self._ended: set[tuple[str, str]] = set()
        """Runs with their ends; of one that was interrupted and went on there are several."""
        self._place = ""

    def __enter__(self) -> Self:
        self._path.parent.mkdir(exist_ok=True)
        self._lock = filelock.FileLock(self._path.with_name(f".{self._path.name}.lock"), timeout=0)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise UserError(
                f"--log {self._tool}: another process logs this study there; wait for its end."
            ) from None
        mend_last_line(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        self._file.close()
        self._lock.release()

    def open(self, place: str) -> None:
        """Read what was written to `place`."""
        self._place = place
        for line in self._path.read_text(encoding="utf-8").splitlines():
            content = json.loads(line)
            if content["place"] != place:
                continue
            if "id" in content:
                self._names[content["run"]] = content["id"]
            else:
                self._ended.add((content["run"], content["ended"]))

    def name_of(self, run: str) -> str | None:
        """Return what a run is called in the tool, if it was begun there."""
        return self._names.get(run)

    def holds(self, record: RunRecord) -> bool:
        """Whether the tool has this end of a run, or had it before the run went on."""
        return (record.trial, _end_of(record)) in self._ended

    def begun(self, run: str, name: str) -> None:
        """Keep that a run was begun, by its name in the tool."""
        self._names[run] = name
        self._write({"run": run, "id": name, "place": self._place})

    def ended(self, record: RunRecord) -> None:
        """Keep that a run was ended."""
        self._ended.add((record.trial, _end_of(record)))
        self._write({"run": record.trial, "ended": _end_of(record), "place": self._place})

    def _write(self, content: dict[str, Any]) -> None:
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()


def _end_of(record: RunRecord) -> str:
    """Return what differs between two ends of a run that was interrupted and went on."""
    return f"{record.finished} {record.stop} {record.samples}"
