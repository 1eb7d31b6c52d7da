"""`raybench train` where it ran before: the same command goes on, or has nothing to do."""

from pathlib import Path

from raybench.backends.saved import MODEL_FILES
from raybench.core.checkpoint import spec_digest
from raybench.core.record import RunRecord
from raybench.core.spec import RunSpec
from raybench.results.records import read_records
from raybench.results.store import RECORDS_FILE


def finished_run(folder: Path, name: str, spec: RunSpec) -> RunRecord | None:
    """Return the record of this very run if it has ended well in `folder`, with its model there."""
    if (
        not (folder / RECORDS_FILE).is_file()
        or not (folder / MODEL_FILES[spec.framework]).is_file()
    ):
        return None
    record = read_records(folder).runs.get(name)
    if record is None or record.state != "complete" or record.stop == "interrupted":
        return None
    return record if spec_digest(record.spec) == spec_digest(spec) else None
