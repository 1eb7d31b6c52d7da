"""What a line of `records.jsonl` and a `study.yaml` must hold to be read at all."""

import math
from pathlib import Path
from typing import Any

from raybench.core.clock import OTHER, PHASES
from raybench.core.documents import read_mapping
from raybench.core.errors import UserError
from raybench.core.record import CURVE_KEYS

TEXT, NUMBER, COUNT, WHOLE, SOME_NUMBER, SOME_WHOLE, SOME_TEXT, SOME_TRUTH, MAPPING, LIST = (
    "text",
    "a number",
    "a whole number",
    "a whole number above 0",
    "a number or null",
    "a whole number or null",
    "text or null",
    "true, false or null",
    "keys and values",
    "a list",
)
SHAPES: dict[str, dict[str, str]] = {
    "eval": dict.fromkeys(CURVE_KEYS, SOME_NUMBER) | {"index": COUNT, "samples": COUNT},
    "run": {
        "phase": TEXT,
        "state": TEXT,
        "failure": SOME_TEXT,
        "message": SOME_TEXT,
        "spec": MAPPING,
        "ledger": MAPPING,
        "num_parameters": SOME_WHOLE,
        "time_to_target_s": SOME_NUMBER,
        "best_accuracy": SOME_NUMBER,
        "score": SOME_NUMBER,
        "samples": COUNT,
        "wall_s": NUMBER,
    },
    "prediction": {
        "framework": TEXT,
        "num_workers": WHOLE,
        "batch_size_per_worker": WHOLE,
        "time_to_target_s": NUMBER,
    },
}
MAY_LACK = {
    "stop": SOME_TEXT,
    "test_accuracy": SOME_NUMBER,
    "batch_statistics": SOME_TRUTH,
    "concurrent": SOME_WHOLE,
    "finished": SOME_TEXT,
}
"""Keys of a run that earlier versions did not write."""
SPEC = {
    "framework": TEXT,
    "workload": TEXT,
    "num_workers": WHOLE,
    "batch_size_per_worker": WHOLE,
    "accumulate": WHOLE,
    "optimizer": TEXT,
    "learning_rate": NUMBER,
    "seed": SOME_WHOLE,
}
LEDGER = dict.fromkeys((*PHASES, "input"), NUMBER)


def problem(record: object) -> str | None:
    """Say what makes a line no record of ours; None where nothing does."""
    if not isinstance(record, dict):
        return "it holds no keys and values"
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in SHAPES:
        return f"its kind is none of {', '.join(SHAPES)}"
    found = _first_wrong(record, {"trial": TEXT} | SHAPES[kind], "")
    if found is None and kind == "run":
        found = _first_wrong(record["spec"], SPEC, "spec.")
        found = found or _first_wrong(record["ledger"], LEDGER, "ledger.")
        there = {key: kind for key, kind in MAY_LACK.items() if key in record}
        found = found or _first_wrong(record, there, "")
        if OTHER in record["ledger"]:  # earlier versions did not write it
            found = found or _first_wrong(record["ledger"], {OTHER: NUMBER}, "ledger.")
    return found


def read_study(path: Path) -> dict[str, Any]:
    """Return the content of a `study.yaml`; one of another shape raises UserError."""
    content = read_mapping(path)
    wrong = _first_wrong(content, {"study": MAPPING}, "")
    if wrong is None:
        study = content["study"]
        wrong = _first_wrong(study, {"objective": MAPPING}, "study.")
    if wrong is None:
        expected = {"kind": TEXT, "target": SOME_NUMBER}
        wrong = _first_wrong(study["objective"], expected, "study.objective.")
    optional = {"price": SOME_NUMBER, "space": MAPPING}
    if wrong is None:
        there = {key: kind for key, kind in optional.items() if key in study}
        wrong = _first_wrong(study, there, "study.")
    if wrong is None and "notes" in content:
        wrong = _first_wrong(content, {"notes": LIST}, "")
    if wrong is not None:
        raise UserError(f"{path}: is no study of ours ({wrong}); restore the file.")
    return content


def _first_wrong(content: dict[str, Any], expected: dict[str, str], where: str) -> str | None:
    for key, kind in expected.items():
        if key not in content:
            return f"the key '{where}{key}' is missing"
        if not _is(content[key], kind):
            return f"'{where}{key}' must be {kind}"
    return None


def _is(value: object, kind: str) -> bool:
    if kind == MAPPING:
        return isinstance(value, dict)
    if kind == LIST:
        return isinstance(value, list)
    if value is None:
        return kind in (SOME_NUMBER, SOME_WHOLE, SOME_TEXT, SOME_TRUTH)
    if kind in (TEXT, SOME_TEXT):
        return isinstance(value, str)
    if kind == SOME_TRUTH or isinstance(value, bool):
        return kind == SOME_TRUTH and isinstance(value, bool)
    if not isinstance(value, int | float):
        return False
    if isinstance(value, int):  # what is read becomes a column of numbers
        return abs(value) < 2**63 and (kind != WHOLE or value > 0)
    if kind in (COUNT, WHOLE, SOME_WHOLE):
        return False
    return math.isfinite(value) or kind == SOME_NUMBER
