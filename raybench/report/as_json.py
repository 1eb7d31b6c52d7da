"""The JSON document that a command prints with `--json`.

Its schema is `CommandResult`, from which docs/answer.schema.json is generated.
"""

from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from raybench.report.answer import summary_of
from raybench.report.confidence import next_steps
from raybench.report.pairs import comparison_of, documents
from raybench.report.study import StudyResults
from raybench.results.place import is_url
from raybench.results.ranking import result_of
from raybench.results.store import DIAGNOSIS, IMPORTED, WINNERS, StudyKind
from raybench.results.verdict import Verdict, verdict_of, verdicts_of
from raybench.scaling.cells import scaling_cells
from raybench.spec.documents import read_mapping
from raybench.spec.errors import Ended, ErrorCode
from raybench.stats.record import State


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Error(_Part):
    """Reason why there is no answer."""

    kind: Literal["user", "study", "interrupted"] = Field(
        description="user: the input is wrong (exit code 2); study: the study cannot continue (1)"
    )
    code: ErrorCode | None = Field(
        default=None,
        description="code of the mistake, see docs/errors.md; null unless `kind` is user",
    )
    message: str = Field(description="one sentence that says what to do")


class Configuration(_Part):
    """A winning configuration of a search, or one that is tied with the winner."""

    role: Literal["fastest", "cheapest", "tied"] = Field(
        description="tied: statistically tied with the fastest"
    )
    gpu: str | None = Field(description="GPU model; null without GPUs")
    trial: str
    configuration: str = Field(description="the configuration in one line")
    spec: dict[str, Any] = Field(description="the run spec, as in best.yaml")
    is_confirmed: bool = Field(
        description="whether it was trained again with new seeds, and `hits` is not 0"
    )
    runs: int = Field(description="number of runs with new seeds that are reported")
    hits: int = Field(
        description="number of these runs that reached the target; without a target, that did not "
        "fail"
    )
    seconds: float | None = Field(
        description="training seconds to the target; null without a target"
    )
    low_s: float | None = Field(description="low end of the 90 % interval of `seconds`")
    high_s: float | None = Field(description="high end of this interval")
    worker_seconds: float | None = Field(description="number of workers times `seconds`")
    value: float | None = Field(
        description="median of the metric over the runs with new seeds; without such runs, the "
        "best value of the search run"
    )
    value_low: float | None = Field(
        description="low end of the 90 % interval of `value`; null with a target"
    )
    value_high: float | None = Field(description="high end of this interval")
    test_value: float | None = Field(
        description="mean of the metric on the test split over the runs with new seeds"
    )


class NextStep(_Part):
    """A step that the user can take next."""

    what: str = Field(description="purpose of the step in a few words")
    do: str = Field(description="a command, or a file to open")


class CommandResult(_Part):
    """Result of a command, as a document."""

    format: Literal[1] = 1
    command: str = Field(description="tune, train, scale, ...")
    exit_code: int
    answer: list[str] = Field(
        default=[], description="conclusions as sentences, the most important first"
    )
    configurations: list[Configuration] = Field(
        default=[], description="winners of a search, and configurations tied with the fastest"
    )
    details: dict[str, Any] = Field(
        default={}, description="further results; the keys depend on the command"
    )
    next: list[NextStep] = Field(default=[], description="next steps that the user can take")
    notes: list[str] = Field(default=[], description="sentences that limit the answer")
    results: str | None = Field(default=None, description="results folder or URL")
    error: Error | None = None


def document_of(command: str, ended: Ended) -> CommandResult:
    """Return the JSON document of a command that has ended.

    If the command has a results folder, the document includes the findings in it.
    """
    error = None
    if (problem := ended.error) is not None:
        error = Error(kind=problem.kind, code=problem.code, message=problem.message)
    content: dict[str, Any] = {"answer": list(ended.answer), "details": dict(ended.details)}
    if ended.place is not None:
        results = StudyResults.load(ended.place, WINNERS)
        content |= study_fields(results)
        content["answer"] = list(ended.answer) or content["answer"]
        content["details"] |= ended.details
    plain = _plain(content | {"command": command, "exit_code": ended.code, "results": ended.place})
    return CommandResult.model_validate(plain | {"error": error})


def study_fields(results: StudyResults) -> dict[str, Any]:
    """Return the fields of the document that are derived from a study."""
    trials, summary = results.trials, summary_of(results)
    content: dict[str, Any] = {
        "answer": summary.lines,
        "notes": [*summary.caveats],
        "details": {
            "runs": len(trials),
            "failed": 0 if trials.empty else int((trials["state"] == State.FAILED).sum()),
            "is_running": None if is_url(results.place) else bool(results.owner),
        },
    }
    if (pairs := comparison_of(results)) is not None:
        content["details"] |= documents(pairs)
        return content
    if (file := results.folder / DIAGNOSIS).is_file():
        diagnosis = read_mapping(file)
        content["details"] |= diagnosis
        content["answer"] = [str(diagnosis["sentence"])]
        return content
    if trials.empty:
        return content
    if results.is_scaling:
        content["details"]["cells"] = scaling_cells(results).to_dict("records")
        return content
    if results.kind is StudyKind.TRAINING:
        run = next(iter(results.runs.values()))
        keys = ("stop", "best_value", "test_value", "time_to_target_s")
        content["details"] |= {"spec": run.spec.complete(), "seconds": dict(run.ledger)}
        content["details"] |= {key: getattr(run, key) for key in keys}
        return content
    if results.is_imported:
        content["details"][IMPORTED] = results.study[IMPORTED]
    content["configurations"] = [
        row
        for gpu, verdict in verdicts_of(results).items()
        for row in _winner_fields(results, verdict, gpu)
    ]
    steps = next_steps(results, verdict_of(results))
    content["next"] = [asdict(step) for step in steps]
    return content


def _winner_fields(results: StudyResults, verdict: Verdict, gpu: str) -> list[dict[str, Any]]:
    """Return the fields of one `Configuration` for each winner on the GPU model `gpu` ("" without
    GPUs), and for each trial that is tied with the fastest."""
    winners = [("fastest", verdict.fastest), ("cheapest", verdict.cheapest)]
    winners += [("tied", trial) for trial in verdict.others()]
    rows: list[dict[str, Any]] = []
    for role, trial in winners:
        result = result_of(results, trial, is_confirmed=verdict.is_confirmed)
        rows.append(
            {
                "role": role,
                "gpu": gpu or None,
                "trial": trial,
                "configuration": result.config,
                "spec": results.specs[trial].complete(),
                "is_confirmed": result.new_hits > 0,
                "runs": result.new_runs,
                "hits": result.new_hits,
                "seconds": result.seconds,
                "low_s": result.interval_low_s,
                "high_s": result.interval_high_s,
                "worker_seconds": result.cost,
                "value": result.value,
                "value_low": result.interval_low,
                "value_high": result.interval_high,
                "test_value": result.test,
            }
        )
    return rows


def _plain(value: Any) -> Any:
    """Convert a value to plain data for JSON: NumPy numbers become Python numbers, and NaN and
    infinity become None."""

    def other(item: Any) -> Any:
        return item.tolist() if isinstance(item, np.generic | np.ndarray) else str(item)

    return to_jsonable_python(value, inf_nan_mode="null", fallback=other)
