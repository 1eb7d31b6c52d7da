import json
from dataclasses import fields

import pytest
from pydantic import TypeAdapter

from raybench.spec.objective import Objective, worst_score
from raybench.spec.run import RunSpec
from raybench.stats.record import CURVE_KEYS, OPTIONAL_KEYS, Evaluation, RunOutcome, RunRecord
from raybench.stats.step_times import NoiseSums, NoiseTerms, StepTimes
from tests.factories import evaluation as made_up

OBJECTIVE = Objective(target=0.9, max_train_seconds=10.0)


def evaluation(**changes):
    reached = {"time_to_target_s": 2.0, "stop": "target", "ledger": {"train": 2.5}}
    return made_up(2.5, index=3, **reached | changes)


def ended_outcome(**changes):
    """Return the outcome of a run that has ended."""
    return RunOutcome(**({"evaluation": evaluation(), "is_over": True} | changes))


def record(outcome, *, role="trial", stopped_by="scheduler"):
    spec = RunSpec(objective=OBJECTIVE)
    return outcome.record("0007", spec, role=role, source=None, stopped_by=stopped_by)


UNDECIDED = ended_outcome(evaluation=evaluation(stop=None))


def test_a_line_of_a_run_is_plain_data_with_every_field():
    line = record(ended_outcome(ledger={"train": 2.5, "report": 0.5})).line()
    assert set(line) == {"kind", "phase", *(field.name for field in fields(RunRecord))}
    assert list(line)[:5] == ["kind", "trial", "phase", "role", "source"]
    assert line["kind"] == "run"
    assert json.loads(json.dumps(line)) == line
    assert line["spec"]["optimizer"] == "adam"
    assert line["phase"] == "search"
    assert record(ended_outcome(), role="reference").phase == "reference"
    nothing = record(RunOutcome())
    assert (nothing.samples, nothing.wall_s, nothing.best_value) == (0, 0.0, None)
    assert json.loads(json.dumps(nothing.line())) == nothing.line()


@pytest.mark.parametrize(
    ("train_s", "disturbed_s", "is_disturbed"),
    [(2.0, 0.49, False), (2.0, 0.51, True), (0.1, 0.049, False), (0.1, 0.051, True)],
)
def test_a_run_is_disturbed_above_a_share_and_a_number_of_seconds(
    train_s, disturbed_s, is_disturbed
):
    ledger = {"train": train_s, "disturbed": disturbed_s}
    assert record(ended_outcome(ledger=ledger)).is_disturbed == is_disturbed


PURPOSES = ("measurement", "comparison", "importance")


@pytest.mark.parametrize(
    ("outcome", "stopped_by", "state", "stop", "counts_for"),
    [
        (ended_outcome(), "scheduler", "complete", "target", PURPOSES),
        (
            ended_outcome(evaluation=evaluation(stop="epochs")),
            "cap",
            "complete",
            "epochs",
            PURPOSES,
        ),
        (UNDECIDED, "scheduler", "stopped", "scheduler", PURPOSES[2:]),
        (UNDECIDED, "cap", "stopped", "cap", PURPOSES[1:]),
        (UNDECIDED, "time_budget", "stopped", "time_budget", ()),
        (RunOutcome(), "interrupted", "stopped", "interrupted", ()),
        (ended_outcome(failure="nan"), "cap", "failed", None, PURPOSES),
        (ended_outcome(failure="worker_lost"), "cap", "failed", None, ()),
    ],
)
def test_the_state_and_use_of_a_record_follow_its_outcome(
    outcome, stopped_by, state, stop, counts_for
):
    ended = record(outcome, stopped_by=stopped_by)
    assert (ended.state, ended.stop) == (state, stop)
    assert tuple(filter(ended.counts_for, PURPOSES)) == counts_for


@pytest.mark.parametrize("failure", ["oom", "worker_lost"])
def test_a_failure_has_the_worst_score_and_no_time_to_target(failure):
    ended = record(ended_outcome(failure=failure, message="why"))
    assert ended.score == worst_score(OBJECTIVE)
    assert ended.time_to_target_s is None
    assert (ended.failure, ended.message) == (failure, "why")
    assert ended.samples == 4000, "values measured before the failure are kept"
    assert ended.best_value == 0.9


MEASURED = {
    "value_error": 0.01,
    "rank_s": (0.5, 0.75),
    "rank_parts": ((0.5, 0.0, 0.25), (0.75, 0.125, 0.0)),
    "steps": StepTimes.of([0.25, 0.5]),
    "input_s": 0.125,
    "evenness": 0.9,
    "memory_peak_bytes": 123_456_789,
    "gpu_utilization": 0.5,
    "bytes_exchanged_per_step": 1_609_768,
    "flops_per_sample": 1.5e9,
    "tokens_per_sample": 256,
    "noise_scale": NoiseSums.of([NoiseTerms(1.0, 10.0)]),
    "skipped_steps": 3,
}


def test_optional_fields_are_in_the_line_if_present():
    assert tuple(MEASURED) == OPTIONAL_KEYS
    line = evaluation(**MEASURED).line("0007")
    assert set(line) == {"kind", "trial", *CURVE_KEYS, *OPTIONAL_KEYS}
    read = TypeAdapter(Evaluation).validate_python(json.loads(json.dumps(line)))
    assert {key: getattr(read, key) for key in OPTIONAL_KEYS} == MEASURED
    on_a_cpu = evaluation(**(MEASURED | {"gpu_utilization": None})).line("0007")
    assert "gpu_utilization" not in on_a_cpu
    assert on_a_cpu["steps"]["max_s"] == 0.5
