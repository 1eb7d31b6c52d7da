"""Reading and validation of the files of a results folder, which may have been edited by hand."""

import gc
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from raybench.results.store import FORMAT, RECORDS_FILE, plain
from raybench.spec.documents import problem_of, read_mapping
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import METRIC_NAME
from raybench.spec.objective import Objective
from raybench.spec.run import BASE_KEYS, RunSpec
from raybench.spec.text import clean
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import Evaluation, Prediction, Role, RunRecord

MOST_DIGITS = 18
"""Maximum number of digits with which any integer fits into 64 bits."""
LONG_NUMBER = re.compile(rf"[ \[,:-]\d{{{MOST_DIGITS + 1}}}")
MOST_LINES_NAMED = 3
"""Maximum number of unreadable lines that the warning lists."""
TORN: Any = object()
"""Result of `decoded` for a line that is empty or incomplete."""


def texts_of(path: Path) -> list[str]:
    """Return the lines of a text file of a results folder; invalid UTF-8 is replaced by U+FFFD.

    Raises:
        UserError: The file is missing or cannot be read.
    """
    if not path.is_file():
        raise UserError(
            f"{path.parent}: contains no {path.name}, so it is not a results folder; name a "
            "results folder.",
            ErrorCode.NOT_FOUND,
        )
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}).", ErrorCode.NOT_FOUND
        ) from None


def left_out(bad: list[tuple[int, str]]) -> str | None:
    """Return a warning about lines that are not records; None if there are no such lines.

    Args:
        bad: Pairs (line number, reason), one for each line that is not a record.
    """
    if not bad:
        return None
    reasons = ", ".join(f"line {number} ({reason})" for number, reason in bad[:MOST_LINES_NAMED])
    remainder = f" and {len(bad) - MOST_LINES_NAMED:,} more" if len(bad) > MOST_LINES_NAMED else ""
    return (
        f"records.jsonl: {reasons}{remainder} could not be read and do not count; restore the "
        "file to count them."
    )


def decoded(text: str, *, is_last: bool) -> Any:
    """Parse a line of JSON and clean its strings (`spec.text.clean`).

    NaN and infinity become None. Integers beyond 64 bits become floats, or None beyond the range of
    floats.

    Args:
        text: The line.
        is_last: Whether it is the last line of the file, which may be incomplete.

    Returns:
        The value of the line; TORN for an empty line or an incomplete last line.

    Raises:
        ValueError: The line is not JSON.
    """
    if not text:
        return TORN
    # This parser is twice as fast, and suffices unless strings or integers need to be converted.
    if "\\" not in text and text.isprintable() and not LONG_NUMBER.search(text):
        with suppress(ValueError):
            return from_json(text, allow_inf_nan=False)
    try:
        return plain(DECODER.decode(text))
    except (ValueError, RecursionError):
        if is_last:  # it does not end in a newline, so the writer was interrupted
            return TORN
        raise ValueError("it is not JSON") from None


@contextmanager
def uncollected() -> Iterator[None]:
    """Context manager that pauses Python's cyclic garbage collector while records are read.

    Records never form cycles, and the collector took half of the time to read 200,000 lines.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _whole_number(digits: str) -> int | float | None:
    """Convert the digits of a JSON integer to a number that fits into 64 bits.

    The number is an int if it certainly fits, otherwise a float, since columns of a table are
    limited to 64 bits. It is None if it exceeds the range of floats.
    """
    if len(digits) <= MOST_DIGITS:
        return int(digits)
    value = float(digits)
    return value if math.isfinite(value) else None


DECODER = json.JSONDecoder(parse_int=_whole_number, parse_constant=lambda name: None)


T = TypeVar("T")
EVALUATION_TYPE, RUN_TYPE = TypeAdapter(Evaluation), TypeAdapter(RunRecord)
PREDICTION_TYPE = TypeAdapter(Prediction)
ROLE_TYPE: TypeAdapter[Role] = TypeAdapter(Role)
SPEC_TYPE = TypeAdapter(RunSpec)
RECORD_KINDS = ("eval", "run", "prediction")
REQUIRED_KEYS = {
    "spec": ("workload", *BASE_KEYS, "accumulate", "seed"),
    "ledger": (*PHASES, OTHER, "input"),
}
"""Nested keys that the record of a run must have, although the types have defaults for them."""


@dataclass
class Records:
    """Content of `records.jsonl`."""

    runs: dict[str, RunRecord] = field(default_factory=dict)
    """Last record of each run in the order in which the runs finished, keyed by name."""
    curves: dict[str, list[Evaluation]] = field(default_factory=dict)
    """Evaluations of each run in `runs` since its previous record, if any; keyed by name."""
    unfinished: dict[str, RunSpec] = field(default_factory=dict)
    """Run specs of trials that have evaluations but no record of the run, because they are still
    running or because their driver was killed."""
    predictions: list[Prediction] = field(default_factory=list)
    """Last prediction for each combination of a trial and a placement."""
    left_out: str | None = None
    """Warning about lines that could not be read; None if all lines were read."""


@uncollected()
def read_records(folder: Path) -> Records:
    """Read the records of a results folder.

    Strings are cleaned (`spec.text.clean`). An incomplete last line is ignored. Any other line that
    is not a record is left out and listed in `Records.left_out`.

    Raises:
        UserError: There is no `records.jsonl`, or none of its lines is a record.
    """
    path, records = folder / RECORDS_FILE, Records()
    pending: dict[str, list[Evaluation]] = {}
    first_lines: dict[str, Any] = {}
    """First line of each trial in `pending`."""
    predictions: dict[tuple[Any, ...], Prediction] = {}
    texts = texts_of(path)
    bad: list[tuple[int, str]] = []
    for number, text in enumerate(texts, start=1):
        try:
            line = decoded(text, is_last=number == len(texts))
            if line is TORN:
                continue
            name, record = record_of(line)
            if isinstance(record, Evaluation):
                add_point(pending.setdefault(name, []), record)
                if line.get("role") == "trial":
                    first_lines[name] = line
            elif isinstance(record, RunRecord):
                records.runs.pop(name, None)  # a later record moves its run to the end
                records.runs[name] = record
                records.curves[name] = pending.pop(name, [])
                first_lines.pop(name, None)
            else:
                placement = {**vars(record), "time_to_target_s": None}
                predictions[tuple(placement.values())] = record
        except ValueError as error:
            bad.append((number, str(error)))
    if bad and not (records.runs or pending or predictions):
        number, problem = bad[0]
        raise UserError(
            f"{path}, line {number}: is not a record ({problem}); restore the file.",
            ErrorCode.INVALID_FILE,
        )
    records.left_out = left_out(bad)
    records.predictions = list(predictions.values())
    for name, line in first_lines.items():
        with suppress(ValueError):
            if (role_and_spec := what_runs(line)) is not None:
                records.unfinished[name] = role_and_spec[1]
    return records


def record_of(line: object) -> tuple[str, Evaluation | RunRecord | Prediction]:
    """Validate a line of `records.jsonl`.

    Args:
        line: JSON value of the line, with cleaned strings (see `plain`).

    Returns:
        Name of the run, and its record, evaluation or prediction.

    Raises:
        ValueError: The line is not a record, or has values that no run can have measured.
    """
    if not isinstance(line, dict):
        raise ValueError("it has no keys and values")
    if line.get("kind") not in RECORD_KINDS:
        raise ValueError(f"its kind is none of {', '.join(RECORD_KINDS)}")
    if "trial" not in line:
        raise ValueError("the key 'trial' is missing")
    if not isinstance(line["trial"], str):
        raise ValueError("'trial' must be text")
    name = clean(line["trial"])
    if line["kind"] == "eval":
        return name, _validated(EVALUATION_TYPE, line)
    if line["kind"] == "prediction":
        return name, _validated(PREDICTION_TYPE, line)
    for part, keys in REQUIRED_KEYS.items():
        for key in keys if isinstance(line.get(part), dict) else ():
            if key not in line[part]:
                raise ValueError(f"the key '{part}.{key}' is missing")
    run = _validated(RUN_TYPE, line | {"spec": _current(line.get("spec"))})
    metric, values = run.spec.objective.judged_by, (run.best_value, run.test_value)
    if metric.is_share and any(value is not None and not 0 <= value <= 1 for value in values):
        raise ValueError(f"{metric.words} lies between 0 and 1")
    if run.ledger["train"] < 0:
        raise ValueError("its training time is negative")
    return name, run


def what_runs(line: Mapping[str, Any]) -> tuple[Role, RunSpec] | None:
    """Return the role and the run spec of a run from the line of its first evaluation.

    Returns:
        Role and run spec; None for the line of a later evaluation.

    Raises:
        ValueError: The role or the run spec is invalid.
    """
    if "role" not in line:
        return None
    return _validated(ROLE_TYPE, line["role"]), _validated(
        SPEC_TYPE, _current(plain(line.get("spec")))
    )


def _current(spec: Any) -> Any:
    """Return a recorded run spec without the empty key `mup_base` of earlier versions."""
    if isinstance(spec, dict) and not spec.get("mup_base", True):
        return {key: value for key, value in spec.items() if key != "mup_base"}
    return spec


def add_point(curve: list[Evaluation], point: Evaluation) -> None:
    """Append an evaluation to a learning curve, after removing evaluations with the same or a
    higher index, which a resumed run repeats."""
    while curve and curve[-1].index >= point.index:
        curve.pop()
    curve.append(point)


class _CheckedObjective(Objective):
    metric: Annotated[str, Field(pattern=METRIC_NAME)] | None = None


class _CheckedStudy(BaseModel):
    model_config = ConfigDict(strict=True)
    objective: _CheckedObjective
    price: float | None = None
    space: dict[Any, Any] = {}


class _CheckedStudyFile(BaseModel):
    """Keys of `study.yaml` whose types are checked when the file is read."""

    model_config = ConfigDict(strict=True)
    study: _CheckedStudy
    notes: list[Any] = []


STUDY_TYPE = TypeAdapter(_CheckedStudyFile)


def read_study(path: Path) -> dict[str, Any]:
    """Return the content of a `study.yaml`; raise UserError if the file is missing or invalid."""
    if not path.exists():
        raise UserError(
            f"{path.parent}: contains no {path.name}, without which its records cannot be "
            "interpreted; restore the file, or name another folder.",
            ErrorCode.NOT_FOUND,
        )
    content = read_mapping(path)
    if (version := content.get("format", FORMAT)) != FORMAT:
        raise UserError(
            f"{path}: has format {clean(str(version))}, but this version of raybench reads format "
            f"{FORMAT}; use the version that wrote the file.",
            ErrorCode.STUDY_CHANGED,
        )
    try:
        _validated(STUDY_TYPE, content)
    except ValueError as error:
        raise UserError(
            f"{path}: is not a study ({error}); restore the file.", ErrorCode.INVALID_FILE
        ) from None
    return content


def _validated(kind: TypeAdapter[T], content: object) -> T:
    """Validate content and convert it to the type `kind`; raise ValueError with the first
    problem."""
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(map(str, detail["loc"]))
        if detail["type"] == "missing":
            raise ValueError(f"the key '{key}' is missing") from None
        raise ValueError(f"'{key}': {problem_of(detail)}") from None
