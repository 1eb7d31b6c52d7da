"""Parameters of Optuna, and a resumed session whose journal is rebuilt from the records."""

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from raybench.data.load import load_dataset
from raybench.report.console import make_console
from raybench.runs.preflight import first_values
from raybench.search.factorisation import Factors, speed_values
from raybench.search.reference import reference_spec
from raybench.search.resolve import StudyPlan
from raybench.search.sampling.optuna_study import (
    JOURNAL_FILE,
    PLACEMENT,
    distributions,
    encode,
    params_of,
    real_trials,
)
from raybench.search.search import Search
from raybench.spec.run import RunSpec
from raybench.spec.space import num_configurations, parse_space
from raybench.spec.study import build_study
from raybench.stats.record import RunRecord
from tests.search.made_up import (
    RATES,
    STUDY,
    ask,
    evaluation,
    journal_of,
    make_search,
    parts_of,
    record,
    run_all,
    trained,
)

SHARE = "learning_rate [share of its range]"


def test_ranges_by_optimizer_are_one_parameter_that_comes_back_exactly():
    _, space = build_study(RATES, "test")
    assert set(distributions(space)) == {"optimizer", SHARE}
    for optimizer, rate, share in (
        ("adam", 1e-4, 0.0),
        ("adam", 1e-1, 1.0),
        ("adam", 1e-2, 2 / 3),
        ("adam", 1.0, 4 / 3),
        ("lars", 10.0, 1.0),
        ("lars", 0.1, 1 / 3),
    ):
        params = encode(space, {}, {"optimizer": optimizer, "learning_rate": rate})
        assert params[SHARE] == pytest.approx(share)
        assert share > 1 or 0.0 <= params[SHARE] <= 1.0


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("changes", "is_inside"),
    [
        ({}, True),
        ({"optimizer": "lars", "learning_rate": 10.0}, True),
        ({"optimizer": "lars", "learning_rate": 1e-3}, False),
        ({"optimizer": "sgd"}, False),  # no case of the rate holds for it
        ({"batch_size_per_worker": 65}, False),  # no power of two, and not the next one either
        ({"batch_size_per_worker": 1024}, False),
        ({"weight_decay": 0.1}, False),
        ({"eval_every_samples": 77}, True),
    ],
)
def test_params_of_runs_inside_and_outside_the_space(changes, is_inside, apart):
    study, space, factors = parts_of(STUDY, apart=apart)
    sampled = space if factors is None else factors.sampled
    spec = study.run_spec(
        {"num_workers": 2, "batch_size_per_worker": 64, "optimizer": "adam", "learning_rate": 0.01}
        | changes
    )
    params = params_of(spec, study, sampled)
    assert (params is not None) == is_inside
    if params is not None:
        values = {"optimizer": spec.optimizer, "learning_rate": spec.learning_rate}
        values |= (
            {"global_batch_size": 128} if apart else {"num_workers": 2, "batch_size_per_worker": 64}
        )
        assert params == encode(sampled, {}, values)


LISTS: dict[str, list[Any]] = {
    "framework": ["torch", "tensorflow"],
    "num_workers": [1, 2],
    "optimizer": ["adam", "radam", "lars", "lamb", "sgd"],
    "precision": ["fp32", "bf16"],
    "schedule": ["constant", "cosine"],
    "accumulate": [1, 2],
    "learning_rate_scaling": ["none", "linear", "sqrt"],
    "cpus_per_worker": [1, 2],
}
RANGES: dict[str, Any] = {
    "batch_size_per_worker": {"low": 16, "high": 256, "log2": True},
    "weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "momentum": {"low": 0.5, "high": 0.99},
}
RATE_RANGES = [{"low": 1e-4, "high": 1e-2, "log": True}, {"low": 1e-3, "high": 1.0, "log": True}]


@st.composite
def studies(draw: st.DrawFn) -> dict[str, Any]:
    """A study of some keys, whose learning rate may depend on one of them or on a fixed key."""
    lists = draw(st.sets(st.sampled_from(sorted(LISTS)), max_size=4))
    space: dict[str, Any] = {
        key: draw(st.lists(st.sampled_from(LISTS[key]), min_size=1, unique=True))
        for key in sorted(lists)
    }
    for key in sorted(draw(st.sets(st.sampled_from(sorted(RANGES)), max_size=2))):
        space[key] = RANGES[key]
    fixed: dict[str, Any] = {}
    conditional = draw(st.sampled_from([None, *sorted(LISTS)]))
    if conditional is None:
        space["learning_rate"] = draw(st.sampled_from([*RATE_RANGES, [1e-3, 1e-2]]))
    else:  # searched, fixed, or neither: then its default decides
        if conditional not in space and draw(st.booleans()):
            fixed[conditional] = draw(st.sampled_from(LISTS[conditional]))
        values = LISTS[conditional]
        cut = draw(st.integers(1, len(values) - 1))
        space["learning_rate"] = [
            {"when": {conditional: part}, **rate}
            for part, rate in zip((values[:cut], values[cut:]), RATE_RANGES, strict=True)
        ]
    kind = draw(st.sampled_from(["time_to_target", "best_at_budget"]))
    objective = {"kind": kind, "target": 0.9 if kind == "time_to_target" else None}
    sampler = draw(st.sampled_from(["tpe", "tpe", "random", "qmc"]))
    search = {"sampler": sampler, "seed": draw(st.integers(0, 99)), "trials": 10}
    return {"objective": objective, "search": search, "space": space, "fixed": fixed}


@given(content=studies())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_valid_space_is_planned_and_sampled(content):
    study, space = build_study(content, "generated")
    study.run_spec(first_values(study, space))
    reference_spec(study, space)
    plan = StudyPlan.of(study, space)
    plan.show(make_console(file=io.StringIO()), load_dataset(study.dataset), "out", None)
    apart = plan.factors if isinstance(plan.factors, Factors) else None
    with TemporaryDirectory() as folder:
        search = Search(study, space, Path(folder), factors=apart)
        ended = run_all(search, trained, most=4)  # fewer where the space is exhausted
    assert ended


@pytest.mark.parametrize(
    "values",
    [
        [None, "relu"],
        ["auto", 1, 0.5],
        [1, 1.0, True, "1"],
        [64, [64, 32]],
        [{"kernel": 3, "stride": 1}, {"kernel": 5, "stride": 2}],
        [None, [1, [2]], {"a": None}],
    ],
)
def test_choices_of_mixed_types_are_kept(values):
    space = parse_space({"model.n": values}, {}, "s.yaml")
    assert num_configurations(space) == len(values)
    (distribution,) = distributions(space).values()
    encoded = [encode(space, {}, {"model.n": value})["model.n"] for value in values]
    assert list(distribution.choices) == encoded
    assert [distribution.to_internal_repr(choice) for choice in encoded] == list(range(len(values)))


def study(trials: int = 12, **search: Any) -> dict[str, Any]:
    return STUDY | {"search": {"trials": trials, "sampler": "tpe"} | search}


def mixed(name: str, spec: RunSpec) -> RunRecord:
    """End the trials in turn at the target, early, by NaN and by lost workers."""
    ends: list[dict[str, Any]] = [
        {"score": 0.5},
        {"stop": None, "stopped_by": "cap", "score": 0.5},
        {"failure": "nan"},
        {"failure": "worker_lost"},
    ]
    return record(name, spec, 2.0, **ends[int(name) % 4])


def names_in(search: Search) -> list[str]:
    return [trial.user_attrs["trial"] for trial in real_trials(journal_of(search))]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_interrupted_trials_return_after_any_number_of_sessions(is_recorded, tmp_path):
    """Trials keep their names and placements, whether the driver was interrupted or killed."""
    first = make_search(tmp_path, study(3), apart=True)
    before = [ask(first) for _ in range(3)]
    ended = [record(*trial, stop=None, stopped_by="interrupted") for trial in before]
    attributes: dict[str, Any] = {"unfinished": dict(before)}
    if is_recorded:
        attributes = {"runs": ended}
        for ended_trial in ended:
            first.on_end(ended_trial)
    second = make_search(tmp_path, study(3), apart=True, **attributes)
    assert (second.num_finished, ask(second)) == (0, before[0])
    last = make_search(tmp_path, study(6), apart=True, **attributes)
    proposals = [ask(last) for _ in range(6)]
    assert proposals[:3] == before
    assert [name for name, _ in proposals[3:]] == ["0003", "0004", "0005"]
    placements = [trial.user_attrs[PLACEMENT] for trial in real_trials(journal_of(last))]
    assert placements[:3] == [speed_values(spec.placement) for _, spec in before]


@pytest.mark.parametrize("apart", [False, True])
def test_a_journal_is_made_from_the_records(apart, tmp_path):
    """Only trials count, and those that were interrupted run again."""
    first = make_search(tmp_path, study(), apart=apart)
    ended = run_all(first, mixed, most=4)
    proposal = ask(first)
    ended.append(record(*proposal, stop=None, stopped_by="interrupted"))
    spec = ended[0].spec
    ended += [
        record("0000.torch1", spec, role="placement_check", source="0000"),
        record("0000-confirm0", spec, role="confirm", source="0000"),
        record("reference0", spec, role="reference"),
    ]
    (tmp_path / JOURNAL_FILE).write_bytes(b"damaged")
    resumed = make_search(tmp_path, study(), apart=apart, runs=ended)
    assert names_in(resumed) == ["0000", "0001", "0002", "0003"]
    assert resumed.num_finished == 4
    assert resumed.suggest() == proposal
    assert ask(resumed)[0] == "0005"


@pytest.mark.parametrize("number", range(4))
def test_records_are_restored_as_they_were_reported(number, tmp_path):
    original = make_search(tmp_path / "told", study())
    ended = run_all(original, mixed, most=4)[number]
    expected = real_trials(journal_of(original))[number]
    restored = make_search(tmp_path / "again", study(), runs=[ended])
    (trial,) = real_trials(journal_of(restored))
    assert trial.state == expected.state
    assert list(trial.intermediate_values) == list(expected.intermediate_values)
    if trial.state == TrialState.COMPLETE:
        assert trial.values == expected.values
    assert trial.user_attrs == expected.user_attrs


def test_a_record_outside_the_space_is_left_out(tmp_path):
    spec = RunSpec(optimizer="sgd", objective={"target": 0.95, "max_train_seconds": 10})  # type: ignore[arg-type]
    resumed = make_search(tmp_path, study(), runs=[record("0000", spec)])
    assert names_in(resumed) == []
    assert ask(resumed)[0] == "0000"


def test_a_new_session_restores_the_failures_of_the_previous_one(tmp_path):
    content = study() | {"space": {"batch_size_per_worker": [64, 128]}}
    first = parts_of(content)[0].run_spec({"batch_size_per_worker": 64})
    failed = record("0000", first, failure="oom")
    resumed = make_search(tmp_path, content, runs=[failed])
    assert resumed.num_finished == 1
    assert resumed.suggest() is None


def test_an_interrupted_repeat_returns_with_its_name_and_seed(tmp_path):
    """The sampler `model` repeats good configurations with other seeds."""
    content = STUDY | {"search": {"trials": 6}}
    name, spec = ask(make_search(tmp_path, content, apart=True))
    repeat = spec.model_copy(update={"seed": spec.seed + 7})
    state = {"runs": [record(name, spec)], "unfinished": {"0001": repeat}}
    resumed = make_search(tmp_path, content, apart=True, **state)
    assert ask(resumed) == ("0001", repeat)
    assert ask(resumed)[0] == "0002"


def test_a_resumed_trial_adds_its_evaluations_to_the_model(tmp_path):
    killed = make_search(tmp_path, apart=True)
    name, spec = ask(killed)
    curves = {name: [evaluation(samples=640, train_s=1.0, value=0.5)]}
    resumed = make_search(tmp_path, apart=True, curves=curves, unfinished={name: spec})
    assert ask(resumed)[0] == name
    assert resumed.curves.model.curves[name].amounts == [640]
