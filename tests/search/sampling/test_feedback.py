"""Results of trials as reported to Optuna, and configurations predicted to fail."""

import math
from typing import Any

import pytest

from raybench.search.sampling.feedback import FailurePredictor
from raybench.search.sampling.optuna_study import real_trials
from raybench.spec.objective import worst_score
from raybench.spec.run import Placement, RunSpec
from tests.search.made_up import (
    STUDY,
    ask,
    journal_of,
    make_search,
    outcome,
    record,
    run_all,
    seconds_on,
    trained,
)


@pytest.mark.parametrize(
    ("failure", "is_own"),
    [("timeout", True), ("worker_lost", False), ("oom", True), ("nan", True), ("error", True)],
)
def test_failures_are_reported_unless_the_machine_caused_them(failure, is_own, tmp_path):
    search = make_search(tmp_path)
    (ended,) = run_all(search, lambda name, spec: record(name, spec, failure=failure), most=1)
    (trial,) = journal_of(search).get_trials()
    worst = worst_score(ended.spec.objective)
    assert trial.state.name == ("PRUNED" if is_own else "FAIL")
    assert trial.intermediate_values == ({0: worst} if is_own else {})


@pytest.mark.parametrize("stop", [None, "max_train_seconds"])
@pytest.mark.parametrize(("sampler", "state"), [("tpe", "PRUNED"), ("cmaes", "COMPLETE")])
def test_stopped_and_missed_trials_have_predicted_seconds(sampler, state, stop, tmp_path):
    """A stopped trial at its samples, a miss at none; as values for samplers of COMPLETE ones."""
    search = make_search(tmp_path, STUDY | {"search": {"trials": 9, "sampler": sampler}})
    good, (name, spec) = ask(search), ask(search)
    search.on_result(good[0], outcome(1.0, value=0.5, samples=500))
    search.on_end(record(*good, 2.0, index=1, samples=1000))
    for index in range(2):
        value, samples = 0.25 * (index + 1), 500 * (index + 1)
        search.on_result(name, outcome(1.0 + index, index=index, value=value, samples=samples))
    search.on_end(record(name, spec, 2.0, index=1, value=0.5, samples=1000, stop=stop))
    _, trial = journal_of(search).get_trials()
    assert trial.state.name == state
    assert math.log(2.0) < trial.value < math.log(20.0), "half of the way in as many seconds"
    if state == "PRUNED":
        assert list(trial.intermediate_values) == [1000 if stop is None else 0]


def test_optuna_gets_the_seconds_and_worker_seconds_of_the_best_placements(tmp_path):
    """The fastest placement of a batch of 128 is too inefficient for a trial."""
    space = STUDY["space"] | {"num_workers": [1, 4], "batch_size_per_worker": [32, 128]}
    content = STUDY | {"space": space, "search": {"trials": 16, "sampler": "nsga2"}}
    search = make_search(tmp_path, content, apart=True)
    run_all(search, trained)
    seconds = {k: seconds_on(Placement("torch", k, 128 // k)) for k in (1, 4)}
    expected = [math.log(seconds[4]), math.log(seconds[1])]
    reported = [
        (spec.num_workers, trial.values)
        for trial in real_trials(journal_of(search))[6:]  # then all placements are measured
        if (spec := RunSpec(**trial.user_attrs["spec"])).global_batch_size == 128
    ]
    assert reported
    assert reported == [(1, pytest.approx(expected, abs=0.05))] * len(reported)


SCALED: dict[str, Any] = {"learning_rate_scaling": "linear"}
TWO, WIDE = SCALED | {"num_workers": 2}, SCALED | {"batch_size_per_worker": 256}


@pytest.mark.parametrize(
    ("failure", "failed", "changes", "is_feasible"),
    [
        ("oom", {}, {}, False),
        ("oom", {}, {"batch_size_per_worker": 256, "learning_rate": 1e-4}, False),
        ("oom", {}, {"batch_size_per_worker": 64}, True),
        ("oom", {}, {"batch_size_per_worker": 64, "num_workers": 4}, True),
        ("oom", {}, {"optimizer": "sgd"}, True),
        ("oom", {}, {"framework": "tensorflow"}, True),
        ("error", {"compile": "default"}, {"compile": "default", "learning_rate": 0.5}, False),
        ("error", {"compile": "default"}, {}, True),
        ("error", {"compile": "default"}, {"compile": "reduce-overhead"}, True),
        ("nan", {}, {"learning_rate": 0.2}, False),
        ("nan", {}, {"learning_rate": 0.05}, True),
        ("nan", {}, {"batch_size_per_worker": 32}, False),
        # Adam's rate grows with the square root of the batch: 0.2 at 512 samples.
        ("nan", {}, {"batch_size_per_worker": 512, "learning_rate": 0.19}, True),
        ("nan", {}, {"batch_size_per_worker": 512, "learning_rate": 0.21}, False),
        ("nan", {}, {"optimizer": "lars"}, True),
        ("nan", TWO, WIDE | {"cpus_per_worker": 4}, True),
        ("nan", TWO, WIDE | {"learning_rate": 0.2, "framework": "tensorflow"}, False),
        *((failure, {}, {}, True) for failure in ("worker_lost", "timeout", "error")),
    ],
)
def test_configurations_that_a_failure_rules_out(failure, failed, changes, is_feasible):
    values = {"batch_size_per_worker": 128, "learning_rate": 0.1}
    failures = FailurePredictor(equal_frameworks=True)
    failures.add(failure, RunSpec(**values | failed))
    assert failures.is_feasible(RunSpec(**values | changes)) == is_feasible
