"""The files of a results folder, read back and checked: somebody may have edited them."""

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from raybench.results.store import FORMAT, RECORDS_FILE, plain
from raybench.spec.documents import problem_of, read_mapping
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.spec.text import clean
from raybench.stats.record import Evaluation, Prediction, Role, RunRecord

MOST_NAMED = 3
"""Lines that the sentence on unreadable ones names."""
TORN: Any = object()
"""What a line holds that is none."""


def texts_of(path: Path) -> list[str]:
    """Return a file's lines; what is no UTF-8 is replaced."""
    if not path.is_file():
        raise UserError(
            f"{path.parent}: holds no {path.name}, so it is not a results folder; name one."
        )
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None


def left_out(bad: list[tuple[int, str]]) -> str | None:
    """Return the sentence on lines that are no records: number and why of each; None of none."""
    if not bad:
        return None
    named = ", ".join(f"line {number} ({wrong})" for number, wrong in bad[:MOST_NAMED])
    more = f" and {len(bad) - MOST_NAMED:,} more" if len(bad) > MOST_NAMED else ""
    return (
        f"records.jsonl: {named}{more} could not be read and count for nothing here; restore the "
        "file to have them."
    )


def decoded(text: str, *, is_last: bool) -> Any:
    """Return what a JSON line holds, its strings cleaned; TORN of an empty one, and of a last one
    that is torn.

    NaN and infinity are null. ValueError where it is no JSON.
    """
    if not text:
        return TORN
    try:
        # Twice as fast, where there is nothing to clean: nearly always.
        is_clean = "\\" not in text and text.isprintable() and "N" not in text
        return from_json(text) if is_clean else plain(json.loads(text))
    except (ValueError, RecursionError):
        if is_last:  # no newline behind it: the writer was interrupted
            return TORN
        raise ValueError("it is not JSON") from None


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the collector of cycles rest: records are none, and it would look at all of them often.

    Half of the time of reading 200,000 lines was its, and a quarter of that of their page.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


Kind = TypeVar("Kind")
EVALUATION, RUN = TypeAdapter(Evaluation), TypeAdapter(RunRecord)
PREDICTION = TypeAdapter(Prediction)
ROLE: TypeAdapter[Role] = TypeAdapter(Role)
SPEC = TypeAdapter(RunSpec)
KINDS = ("eval", "run", "prediction")


@dataclass
class Records:
    """What `records.jsonl` holds."""

    runs: dict[str, RunRecord] = field(default_factory=dict)
    """The last record of every run, in the order they finished."""
    curves: dict[str, list[Evaluation]] = field(default_factory=dict)
    """The evaluations of each of these runs; of the last attempt alone."""
    predictions: list[Prediction] = field(default_factory=list)
    """The last of each split of a trial."""
    left_out: str | None = None
    """The sentence on lines that could not be read; None where all could."""


def read_records(folder: Path) -> Records:
    """Return what a folder's records hold.

    Strings are cleaned (`spec.text.clean`), a torn last line is left out. A line that is broken
    elsewhere, or no record, is left out too, and said; UserError where no line is a record.
    """
    with uncollected():
        return _read(folder / RECORDS_FILE)


def _read(path: Path) -> Records:
    records = Records()
    pending: dict[str, list[Evaluation]] = {}
    predictions: dict[tuple[Any, ...], Prediction] = {}
    texts = texts_of(path)
    bad: list[tuple[int, str]] = []
    for number, text in enumerate(texts, start=1):
        try:
            line = decoded(text, is_last=number == len(texts))
            if line is TORN:
                continue
            name, found = record_of(line)
            if isinstance(found, Evaluation):
                add_point(pending.setdefault(name, []), found)
            elif isinstance(found, RunRecord):
                _end(records, pending, found)
            else:
                split = {**vars(found), "time_to_target_s": None}
                predictions[tuple(split.values())] = found
        except ValueError as wrong:
            bad.append((number, str(wrong)))
    if bad and not (records.runs or pending or predictions):
        number, problem = bad[0]
        raise UserError(f"{path}, line {number}: is no record ({problem}); restore the file.")
    records.left_out = left_out(bad)
    records.predictions = list(predictions.values())
    return records


def record_of(line: object) -> tuple[str, Evaluation | RunRecord | Prediction]:
    """Return a run's name and what a line says of it, its strings cleaned before (`plain`);
    ValueError where it is no record, or says what no run can have measured."""
    if not isinstance(line, dict):
        raise ValueError("it holds no keys and values")
    if line.get("kind") not in KINDS:
        raise ValueError(f"its kind is none of {', '.join(KINDS)}")
    if "trial" not in line:
        raise ValueError("the key 'trial' is missing")
    if not isinstance(line["trial"], str):
        raise ValueError("'trial' must be text")
    name = clean(line["trial"])
    if line["kind"] == "eval":
        return name, _built(EVALUATION, line)
    if line["kind"] == "prediction":
        return name, _built(PREDICTION, line)
    run = _built(RUN, line)
    metric, values = run.spec.objective.judged_by, (run.best_value, run.test_value)
    if metric.is_share and any(one is not None and not 0 <= one <= 1 for one in values):
        raise ValueError(f"{metric.words} lies between 0 and 1")
    return name, run


def what_runs(line: Mapping[str, Any]) -> tuple[Role, RunSpec] | None:
    """Return role and spec of a run, from the line of its first evaluation; None from another.

    ValueError where they are no such things.
    """
    if "role" not in line:
        return None
    return _built(ROLE, line["role"]), _built(SPEC, plain(line.get("spec")))


def _end(records: Records, pending: dict[str, list[Evaluation]], run: RunRecord) -> None:
    """Take a run that has ended, and its curve."""
    records.runs.pop(run.trial, None)  # the later record stands at its own place
    records.runs[run.trial] = run
    records.curves[run.trial] = pending.pop(run.trial, [])


def add_point(curve: list[Evaluation], point: Evaluation) -> None:
    """Add an evaluation; one that comes again was repeated, and with it all that followed it."""
    while curve and curve[-1].index >= point.index:
        curve.pop()
    curve.append(point)


def read_study(path: Path) -> dict[str, Any]:
    """Return the content of a `study.yaml`; none, or one of another shape, raises UserError."""
    if not path.exists():
        raise UserError(
            f"{path.parent}: holds no {path.name}, which says what its records are of; restore the "
            "file, or name another folder."
        )
    content = read_mapping(path)
    if (found := content.get("format", FORMAT)) != FORMAT:
        raise UserError(
            f"{path}: is of format {clean(str(found))}, this version reads {FORMAT}; use the "
            "version of raybench that wrote it."
        )
    study = content.get("study")
    if not isinstance(study, dict) or not isinstance(study.get("objective"), dict):
        raise UserError(f"{path}: is no study of ours; restore the file.")
    return content


def _built(kind: TypeAdapter[Kind], content: object) -> Kind:
    """Return what `content` is; ValueError says the first thing that is wrong with it."""
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(map(str, detail["loc"]))
        if detail["type"] == "missing":
            raise ValueError(f"the key '{key}' is missing") from None
        raise ValueError(f"'{key}': {problem_of(detail)}") from None
