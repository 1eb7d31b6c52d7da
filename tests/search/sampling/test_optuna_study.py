"""A resumed session: the journal is rebuilt from the records."""

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from raybench.search.factorisation import speed_values
from raybench.search.sampling.optuna_study import (
    JOURNAL_FILE,
    PLACEMENT,
    real_trials,
)
from raybench.search.search import Search
from raybench.spec.run import RunSpec
from raybench.stats.record import RunRecord
from tests.search.made_up import (
    STUDY,
    ask,
    by_name,
    evaluation,
    journal_of,
    make_search,
    parts_of,
    record,
    run_all,
)


def study(trials: int = 12, **search: Any) -> dict[str, Any]:
    return STUDY | {"search": {"trials": trials, "sampler": "tpe"} | search}


def mixed(name: str, spec: RunSpec) -> RunRecord:
    """End the trials in turn at the target, early, by NaN and by lost workers."""
    number = int(name) % 4
    if number == 1:
        return record(name, spec, 2.0, stop=None, stopped_by="cap", score=0.5)
    failure = {2: "nan", 3: "worker_lost"}.get(number)
    return record(name, spec, 2.0, failure=failure, score=None if failure else 0.5)  # type: ignore[arg-type]


def states(search: Search) -> dict[str, tuple[str, list[float] | None]]:
    trials = real_trials(journal_of(search))
    assert len({trial.user_attrs["trial"] for trial in trials}) == len(trials)
    return {trial.user_attrs["trial"]: (trial.state.name, trial.values) for trial in trials}


@pytest.mark.parametrize("is_recorded", [True, False])
def test_interrupted_trials_return_after_any_number_of_sessions(
    is_recorded: bool, tmp_path: Path
) -> None:
    """Trials keep their names and placements, whether the driver was interrupted or killed."""
    first = make_search(tmp_path, study(3), apart=True)
    before = [ask(first) for _ in range(3)]
    ended = [record(*trial, stop=None, stopped_by="interrupted") for trial in before]
    attributes: dict[str, Any] = {"unfinished": dict(before)}
    if is_recorded:
        attributes = {"runs": by_name(ended)}
        for ended_trial in ended:
            first.on_end(ended_trial)
    short = make_search(tmp_path, study(3), apart=True, **attributes)
    assert short.num_finished == 0
    assert ask(short) == before[0]
    last = make_search(tmp_path, study(6), apart=True, **attributes)
    proposals = [ask(last) for _ in range(6)]
    assert proposals[:3] == before
    assert [name for name, _ in proposals[3:]] == ["0003", "0004", "0005"]
    placements = [trial.user_attrs[PLACEMENT] for trial in real_trials(journal_of(last))]
    assert placements[:3] == [speed_values(spec.placement) for _, spec in before]


@pytest.mark.parametrize("apart", [False, True])
def test_a_journal_is_made_from_the_records(apart: bool, tmp_path: Path) -> None:
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
    resumed = make_search(tmp_path, study(), apart=apart, runs=by_name(ended))
    assert list(states(resumed)) == ["0000", "0001", "0002", "0003"]
    assert resumed.num_finished == 4
    assert resumed.suggest() == proposal
    assert ask(resumed)[0] == "0005"


@pytest.mark.parametrize("number", range(4))
def test_records_are_restored_as_they_were_reported(number: int, tmp_path: Path) -> None:
    original = make_search(tmp_path / "told", study())
    runs = by_name(
        [record for record in run_all(original, mixed, most=4) if int(record.trial) == number]
    )
    name = f"{number:04d}"
    restored = make_search(tmp_path / "again", study(), runs=runs)
    assert list(states(restored)) == [name]
    (expected,) = [t for t in real_trials(journal_of(original)) if t.user_attrs["trial"] == name]
    (trial,) = real_trials(journal_of(restored))
    assert trial.state == expected.state
    assert list(trial.intermediate_values) == list(expected.intermediate_values)
    if trial.state == TrialState.COMPLETE:
        assert trial.values == expected.values
    assert trial.user_attrs == expected.user_attrs


def test_a_record_outside_the_space_is_left_out(tmp_path: Path) -> None:
    spec = RunSpec(optimizer="sgd", objective={"target": 0.95, "max_train_seconds": 10})  # type: ignore[arg-type]
    resumed = make_search(tmp_path, study(), runs=by_name([record("0000", spec)]))
    assert states(resumed) == {}
    assert ask(resumed)[0] == "0000"


def test_a_new_session_restores_the_failures_of_the_previous_one(tmp_path: Path) -> None:
    content = study() | {"space": {"batch_size_per_worker": [64, 128]}}
    first = parts_of(content)[0].run_spec({"batch_size_per_worker": 64})
    failed = record("0000", first, failure="oom")
    resumed = make_search(tmp_path, content, runs=by_name([failed]))
    assert resumed.num_finished == 1
    assert resumed.suggest() is None


def test_an_interrupted_repeat_returns_with_its_name_and_seed(tmp_path: Path) -> None:
    """The sampler `model` repeats good configurations with other seeds."""
    content = STUDY | {"search": {"trials": 6}}
    name, spec = ask(make_search(tmp_path, content, apart=True))
    repeat = spec.model_copy(update={"seed": spec.seed + 7})
    state = {"runs": by_name([record(name, spec)]), "unfinished": {"0001": repeat}}
    resumed = make_search(tmp_path, content, apart=True, **state)
    assert ask(resumed) == ("0001", repeat)
    assert ask(resumed)[0] == "0002"


def test_a_resumed_trial_adds_its_evaluations_to_the_model(tmp_path: Path) -> None:
    killed = make_search(tmp_path, apart=True)
    name, spec = ask(killed)
    curves = {name: [evaluation(samples=640, train_s=1.0, value=0.5)]}
    resumed = make_search(tmp_path, apart=True, curves=curves, unfinished={name: spec})
    assert ask(resumed)[0] == name
    assert resumed.curves.model.curves[name].amounts == [640]
