"""`search.first`: the user's own configurations run first, also outside of the space."""

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from raybench.search.reference import reference_spec
from raybench.search.search import Search
from raybench.spec.errors import ErrorCode
from raybench.spec.study import build_study
from tests.refusals import refused
from tests.search.made_up import STUDY, ask, journal_of, make_search, record, run_all

GRID: dict[str, Any] = {
    "objective": {"target": 0.95, "max_train_seconds": 10},
    "space": {"learning_rate": [0.1, 0.01], "model": {"n": [1, 2]}},
    "fixed": {"weight_decay": 0.1},
}
INSIDE = {"learning_rate": 0.1, "model": {"n": 2}}
OUTSIDE = {"learning_rate": 0.02, "model": {"n": 7}}
OTHERWISE = {"learning_rate": 0.1, "model": {"n": 1}, "weight_decay": 0.0}


def search_in(folder: Path, first: list[dict[str, Any]], runs: Any = (), **search: Any) -> Search:
    settings = {"sampler": "grid", "first": first} | search
    return make_search(folder, GRID | {"search": settings}, runs=runs)


def values_of(records: Any) -> list[tuple[float, Any, float]]:
    specs = [record.spec for record in records]
    return [(spec.learning_rate, spec.model.get("n"), spec.weight_decay) for spec in specs]


def test_first_configurations_run_first_and_once_in_a_grid(tmp_path):
    rate = {"learning_rate": 0.02, "model": {"n": 1}}
    search = search_in(tmp_path, [INSIDE, OUTSIDE, OTHERWISE, rate])
    values = values_of(run_all(search))
    assert values[:4] == [(0.1, 2, 0.1), (0.02, 7, 0.1), (0.1, 1, 0.0), (0.02, 1, 0.1)]
    assert sorted(values[4:]) == [(0.01, 1, 0.1), (0.01, 2, 0.1), (0.1, 1, 0.1)]
    assert search.num_trials == search.num_finished == 7


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_first_configurations_count_as_trials_and_any_sampler_continues(tmp_path, sampler):
    ended = run_all(search_in(tmp_path, [OUTSIDE, INSIDE], sampler=sampler, trials=4))
    assert [record.trial for record in ended] == ["0000", "0001", "0002", "0003"]
    assert values_of(ended)[:2] == [(0.02, 7, 0.1), (0.1, 2, 0.1)]
    assert all(n in (1, 2) for _, n, _ in values_of(ended)[2:])


def test_missing_keys_of_a_first_configuration_get_typical_values():
    content = STUDY | {"search": {"first": [{"learning_rate": 5.0, "optimizer": "adam"}]}}
    spec, plain = (reference_spec(*build_study(each, "test")) for each in (content, STUDY))
    assert (spec.learning_rate, spec.optimizer) == (5.0, "adam")
    assert spec.num_workers == plain.num_workers


def test_a_resumed_session_runs_the_remaining_first_configurations(tmp_path):
    first = [OUTSIDE, OTHERWISE, INSIDE]
    search = search_in(tmp_path, first)
    ended = run_all(search, most=1)
    interrupted = record(*ask(search), stop="interrupted")
    resumed = search_in(tmp_path, first, runs=[*ended, interrupted])
    remaining = run_all(resumed)
    assert values_of(remaining)[:2] == [(0.1, 1, 0.0), (0.1, 2, 0.1)]
    assert remaining[0].trial == interrupted.trial
    assert resumed.num_finished == resumed.num_trials == len(remaining) + 1 == 6


@pytest.mark.parametrize(("seconds", "runs"), [(2.0, 3), (None, 4)])
def test_a_reference_run_of_a_first_configuration_counts_as_its_trial(tmp_path, seconds, runs):
    """If it ended before the target, the configuration runs again."""
    study, space = build_study(GRID | {"search": {"first": [INSIDE]}}, "test")
    spec = reference_spec(study, space).model_copy(
        update={"seed": 2000, "objective": study.objective}
    )
    ended = record("reference0", spec, stop="target" if seconds else "max_train_seconds")
    search = search_in(tmp_path, [INSIDE], runs=[ended])
    assert len(run_all(search)) == runs


def test_a_first_configuration_outside_a_factorized_space_runs(tmp_path):
    first = [{"learning_rate": 50.0, "optimizer": "lars", "batch_size_per_worker": 48}]
    search = make_search(tmp_path, STUDY | {"search": {"trials": 12, "first": first}}, apart=True)
    ended = run_all(search, lambda name, spec: record(name, spec, 2.0, samples=1000))
    assert (ended[0].spec.learning_rate, ended[0].spec.batch_size_per_worker) == (50.0, 48)
    assert journal_of(search).get_trials()[0].state == TrialState.FAIL


@pytest.mark.parametrize(
    ("first", "key", "code"),
    [
        ({"learning_rat": 0.1}, "learning_rate", ErrorCode.UNKNOWN_KEY),
        ({"learning_rate": -1}, "learning_rate", ErrorCode.INVALID_VALUE),
        ({"seed": 1}, "seed", ErrorCode.CONFLICT),
        ({"workload": "x"}, "workload", ErrorCode.CONFLICT),
        ({"n": 1}, "n", ErrorCode.UNKNOWN_KEY),
    ],
)
def test_invalid_first_configurations_are_refused(first, key, code):
    with refused(code, "search.first.0", key):
        build_study(GRID | {"search": {"first": [first]}}, "s.yaml")
