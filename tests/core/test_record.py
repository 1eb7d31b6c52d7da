import json
import math
from dataclasses import fields
from typing import get_args

import pytest

from raybench.core.clock import PHASES
from raybench.core.objective import Objective, worst_score
from raybench.core.outcome import RunOutcome
from raybench.core.record import CURVE_KEYS, PHASE_OF, Evaluation, Phase, Role, RunRecord
from raybench.core.spec import RunSpec

OBJECTIVE = Objective(target=0.9, max_train_seconds=10.0)


def evaluation(**changes):
    return Evaluation(
        **{
            "index": 3,
            "epoch": 1.5,
            "samples": 1500,
            "train_s": 2.5,
            "train_loss": 0.25,
            "accuracy": 0.875,
            "learning_rate": 1e-3,
            "samples_per_s": 600.0,
            "ledger": {"train": 2.5},
            "best_accuracy": 0.9,
            "time_to_target_s": 2.0,
            "stop": "target",
        }
        | changes
    )


def record(outcome, **changes):
    spec = RunSpec(objective=OBJECTIVE)
    options = {"role": "trial", "source": None, "stopped_by": "scheduler"} | changes
    return outcome.record("0007", spec, **options)


def known(stop="target", **changes):
    last = evaluation(samples=1500, time_to_target_s=2.0, best_accuracy=0.95, stop=stop)
    return RunOutcome(evaluation=last, is_over=True, chance=0.1, **changes)


def test_a_line_of_an_evaluation_holds_the_curve_and_nothing_else():
    line = evaluation().line("0007")
    assert set(line) == {"kind", "trial", *CURVE_KEYS}
    assert (line["kind"], line["trial"], line["accuracy"]) == ("eval", "0007", 0.875)
    assert json.loads(json.dumps(line)) == line


def test_a_line_of_a_run_is_plain_data_with_every_field():
    line = record(known(ledger={"train": 2.5, "report": 0.5})).line()
    assert set(line) == {"kind", "phase", *(field.name for field in fields(RunRecord))}
    assert line["kind"] == "run"
    assert json.loads(json.dumps(line)) == line
    assert line["spec"]["optimizer"] == "adam"


def test_an_unknown_phase_of_the_ledger_is_zero():
    ledger = record(known(ledger={"train": 2.5})).ledger
    assert set(ledger) == {*PHASES, "input", "other"}
    assert ledger["train"] == 2.5
    assert sum(ledger.values()) == 2.5


@pytest.mark.parametrize(
    ("result", "state", "stop"),
    [
        (known(), "complete", "target"),
        (known(stop="max_train_seconds"), "complete", "max_train_seconds"),
        (known(stop=None), "stopped", "scheduler"),
        (RunOutcome(), "stopped", "scheduler"),
        (known(failure="oom"), "failed", None),
        (known(failure="nan", stop="epochs"), "failed", None),
    ],
)
def test_states(result, state, stop):
    found = record(result)
    assert (found.state, found.stop) == (state, stop)


@pytest.mark.parametrize("failure", ["oom", "nan", "timeout", "error", "worker_lost"])
def test_a_failure_scores_worst_and_has_reached_nothing(failure):
    found = record(known(failure=failure, message="why"))
    assert found.score == worst_score(OBJECTIVE)
    assert found.time_to_target_s is None
    assert (found.failure, found.message) == (failure, "why")
    assert found.samples == 1500, "what was measured before the failure stays"
    assert found.best_accuracy == 0.95


def test_a_run_of_which_nothing_is_known_is_a_whole_record():
    found = record(RunOutcome())
    assert found.score == worst_score(OBJECTIVE)
    assert (found.samples, found.wall_s, found.best_accuracy) == (0, 0.0, None)
    assert json.loads(json.dumps(found.line())) == found.line()


@pytest.mark.parametrize(("role", "phase"), PHASE_OF.items())
def test_the_role_tells_the_phase_and_stands_in_the_line(role, phase):
    found = record(known(), role=role, source="0003")
    assert (found.role, found.source, found.phase) == (role, "0003", phase)
    line = found.line()
    assert (line["role"], line["source"], line["phase"]) == (role, "0003", phase)


def test_every_role_is_of_one_phase_and_a_trial_is_of_the_search():
    assert set(PHASE_OF) == set(get_args(Role))
    assert set(PHASE_OF.values()) == set(get_args(Phase))
    assert record(known()).phase == "search"
    assert record(known()).source is None


def test_what_was_measured_is_in_the_record():
    outcome = known(
        num_parameters=10,
        batch_statistics=False,
        test_accuracy=0.5,
        concurrent=2,
        hosts=("a", "b"),
        devices=("cpu", "cpu"),
        wall_s=3.0,
    )
    found = record(outcome)
    assert (found.num_parameters, found.batch_statistics, found.test_accuracy) == (10, False, 0.5)
    assert (found.concurrent, found.wall_s, found.time_to_target_s) == (2, 3.0, 2.0)
    assert (found.hosts, found.devices) == (["a", "b"], ["cpu", "cpu"])
    assert found.score == pytest.approx(math.log(2.0))
    assert found.spec.objective == OBJECTIVE


def test_the_score_of_a_run_that_goes_on_follows_its_accuracy():
    missed = [
        RunOutcome(
            evaluation=evaluation(stop=None, time_to_target_s=None, best_accuracy=best), chance=0.1
        ).score(OBJECTIVE)
        for best in (0.3, 0.8)
    ]
    assert missed[1] < missed[0] < worst_score(OBJECTIVE) == RunOutcome().score(OBJECTIVE)
