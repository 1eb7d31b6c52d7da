"""A session that goes on: the journal is brought in line with the records, which are the truth."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from raybench.search.factorisation import speed_values
from raybench.search.sampling.optuna_study import (
    JOURNAL_FILE,
    PLACEMENT,
    PRIOR,
    real_trials,
)
from raybench.search.search import Search
from raybench.spec.run import Placement, RunSpec
from raybench.stats.record import RunRecord
from tests.search.made_up import (
    STUDY,
    ask,
    by_name,
    evaluation,
    journal_of,
    make_search,
    record,
    run_all,
)


def study(trials: int = 12, **search: Any) -> dict[str, Any]:
    return STUDY | {"search": {"trials": trials, "sampler": "tpe"} | search}


def mixed(name: str, spec: RunSpec) -> RunRecord:
    """Of four trials one is stopped, one diverges and one loses its workers."""
    number = int(name) % 4
    if number == 1:
        return record(name, spec, 2.0, stop=None, stopped_by="cap", score=0.5)
    failure = {2: "nan", 3: "worker_lost"}.get(number)
    return record(name, spec, 2.0, failure=failure, score=None if failure else 0.5)  # type: ignore[arg-type]


def states(search: Search) -> dict[str, tuple[str, list[float] | None]]:
    trials = real_trials(journal_of(search))
    assert len({trial.user_attrs["trial"] for trial in trials}) == len(trials)
    return {trial.user_attrs["trial"]: (trial.state.name, trial.values) for trial in trials}


def lines_of(folder: Path) -> list[str]:
    """Every trial of the journal, as it stands on the disk."""
    found: list[FrozenTrial] = journal_of(make_search(folder, study())).get_trials()
    return [repr(trial) for trial in found]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_interrupted_trial_runs_again_on_its_placement(
    is_recorded: bool, tmp_path: Path
) -> None:
    """Whether it was ended in good order, with a record, or killed."""
    killed = make_search(tmp_path, study(3), apart=True)
    before = [ask(killed) for _ in range(3)]
    runs: dict[str, RunRecord] = {}
    if is_recorded:
        runs = by_name([record(*one, stop=None, stopped_by="interrupted") for one in before])
        for ended in runs.values():
            killed.on_end(ended)
    flags = [PRIOR in trial.user_attrs for trial in journal_of(killed).get_trials()]
    assert any(flags)
    again = make_search(tmp_path, study(3), apart=True, runs=runs)
    assert again.num_finished == 0
    assert [again.suggest() for _ in range(3)] == before
    trials = real_trials(journal_of(again))
    assert [PRIOR in trial.user_attrs for trial in trials] == flags[-3:]
    placements = [trial.user_attrs[PLACEMENT] for trial in trials]
    assert placements == [speed_values(spec.placement) for _, spec in before]


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_was_interrupted_is_proposed_once_however_many_sessions_follow(
    is_asked: bool, tmp_path: Path
) -> None:
    """Each of them may be ended before it comes to the last of them, or at once."""
    first = make_search(tmp_path, study(3))
    before = [ask(first) for _ in range(3)]
    runs = by_name([record(*one, stop=None, stopped_by="interrupted") for one in before])
    for _ in range(3):
        short = make_search(tmp_path, study(3), runs=runs)
        if is_asked:
            asked = ask(short)
            assert asked in before
            short.on_end(record(*asked, stop=None, stopped_by="interrupted"))
    last = make_search(tmp_path, study(6), runs=runs)
    waiting = [t for t in journal_of(last).get_trials() if t.state.name == "WAITING"]
    assert len(waiting) == 3
    comes = [last.suggest() for _ in range(6)]
    assert sorted(comes[:3], key=str) == sorted(before, key=str)
    assert [one[0] for one in comes[3:] if one is not None] == ["0003", "0004", "0005"]


def test_a_new_trial_does_not_take_the_name_of_one_that_comes_back(tmp_path: Path) -> None:
    """Of 0000 to 0002, 0001 was killed: with its own name comes its own configuration."""
    killed = make_search(tmp_path, study(3))
    asked = [ask(killed) for _ in range(3)]
    runs = by_name([record(*one, stop=None, stopped_by="interrupted") for one in asked[1:]])
    again = make_search(tmp_path, study(3), runs=runs)
    comes = [ask(again) for _ in range(3)]
    assert dict(comes) == dict(asked)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda content: content[:-25],
    "half": lambda content: content[: len(content) // 2],
    "damaged": lambda content: content[:200] + b"#garbage#" + content[210:],
    "empty": lambda content: b"",
    "another shape": lambda content: b"[1, 2]\n" + content,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_mended_from_the_records(damage: str, tmp_path: Path) -> None:
    ended = run_all(make_search(tmp_path, study()), mixed, most=8)
    known = states(make_search(tmp_path, study()))
    assert [state for state, _ in known.values()] == 2 * ["COMPLETE", "PRUNED", "PRUNED", "FAIL"]
    journal = tmp_path / JOURNAL_FILE
    journal.write_bytes(DAMAGES[damage](journal.read_bytes()))
    again = make_search(tmp_path, study(), runs=by_name(ended))
    assert {name: state for name, (state, _) in states(again).items()} == {
        name: state for name, (state, _) in known.items()
    }
    assert again.num_finished == 8
    names = [asked[0] for _ in range(4) if (asked := again.suggest()) is not None]
    assert names == [f"{number:04d}" for number in range(8, 12)]


@pytest.mark.parametrize("apart", [False, True])
def test_a_lost_journal_is_made_anew_from_the_records(apart: bool, tmp_path: Path) -> None:
    """Other runs than trials are none of the search's, and what was interrupted runs again."""
    first = make_search(tmp_path, study(), apart=apart)
    ended = run_all(first, mixed, most=4)
    asked = ask(first)
    ended.append(record(*asked, stop=None, stopped_by="interrupted"))
    spec = ended[0].spec
    ended += [
        record("0000.torch1", spec, role="placement_check", source="0000"),
        record("0000-confirm0", spec, role="confirm", source="0000"),
        record("reference0", spec, role="reference"),
    ]
    (tmp_path / JOURNAL_FILE).unlink()
    again = make_search(tmp_path, study(), apart=apart, runs=by_name(ended))
    assert list(states(again)) == ["0000", "0001", "0002", "0003"]
    assert again.num_finished == 4
    assert again.suggest() == asked
    assert ask(again)[0] == "0005"


@pytest.mark.parametrize("number", range(4))
def test_records_are_told_as_the_session_would_have(number: int, tmp_path: Path) -> None:
    told = make_search(tmp_path / "told", study())
    runs = by_name([one for one in run_all(told, mixed, most=4) if int(one.trial) == number])
    killed = make_search(tmp_path / "killed", study())
    for _ in range(number + 1):
        killed.suggest()
    name = f"{number:04d}"
    again = make_search(tmp_path / "killed", study(), runs=runs)
    assert list(states(again)) == [name]
    (there,) = [t for t in real_trials(journal_of(told)) if t.user_attrs["trial"] == name]
    (here,) = real_trials(journal_of(again))
    assert here.state == there.state
    assert list(here.intermediate_values) == list(there.intermediate_values)
    if here.state == TrialState.COMPLETE:
        assert here.values == there.values
    assert here.user_attrs == there.user_attrs


def test_a_second_restore_changes_nothing_more(tmp_path: Path) -> None:
    first = make_search(tmp_path, study())
    ended = run_all(first, mixed, most=4)
    killed, interrupted, untold = (ask(first) for _ in range(3))
    ended.append(record(*interrupted, stop=None, stopped_by="interrupted"))
    ended.append(record(*untold, 2.0))
    runs = by_name(ended)
    once = make_search(tmp_path, study(), runs=runs)
    known, listed = states(once), lines_of(tmp_path)
    assert known["0006"][0] == "COMPLETE"
    assert once.num_finished == 5
    twice = make_search(tmp_path, study(), runs=runs)
    assert states(twice) == known
    assert lines_of(tmp_path) == listed
    comes = [twice.suggest(), twice.suggest()]
    assert sorted(comes, key=str) == sorted([killed, interrupted], key=str)


def test_a_record_outside_the_space_is_left_out(tmp_path: Path) -> None:
    """Somebody has changed the records by hand."""
    spec = RunSpec(optimizer="sgd", objective={"target": 0.95, "max_train_seconds": 10})  # type: ignore[arg-type]
    again = make_search(tmp_path, study(), runs=by_name([record("0000", spec)]))
    assert states(again) == {}
    assert ask(again)[0] == "0000"


def test_a_lock_that_a_killed_driver_left_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all(make_search(tmp_path, study()), mixed, most=1)
    (tmp_path / f"{JOURNAL_FILE}.lock").symlink_to(tmp_path / JOURNAL_FILE)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("Optuna waits for the lock"))
    assert make_search(tmp_path, study()).num_finished == 1


def test_a_new_session_knows_the_failures_of_the_one_before(tmp_path: Path) -> None:
    """Memory of the one configuration there is does not suffice: nothing is left to try."""
    content = study() | {"space": {"batch_size_per_worker": [64, 128]}}
    one = make_search(tmp_path, content)
    runs = run_all(one, lambda name, spec: record(name, spec, failure="oom"), most=1)
    assert runs[0].spec.placement.group == Placement("torch", 1)
    again = make_search(tmp_path, content, runs=by_name(runs))
    assert again.num_finished == 1
    assert not again._proposer._infeasible.is_feasible(runs[0].spec)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_interrupted_repeat_comes_back_with_its_name_and_seed(
    is_recorded: bool, tmp_path: Path
) -> None:
    """The sampler `model` repeats good configurations with other seeds, here by `again`."""
    content = STUDY | {"search": {"trials": 6}}
    killed = make_search(tmp_path, content, apart=True)
    name, spec = ask(killed)
    repeat = killed._proposer.again(spec.model_copy(update={"seed": spec.seed + 7}))
    assert repeat is not None
    ended = record(name, spec)
    killed.on_end(ended)
    runs = by_name([ended])
    if is_recorded:
        killed._open[repeat.name] = repeat
        last = record(repeat.name, repeat.spec, stop=None, stopped_by="interrupted")
        killed.on_end(last)
        runs |= by_name([last])
    resumed = make_search(tmp_path, content, apart=True, runs=runs)
    assert ask(resumed) == (repeat.name, repeat.spec)
    assert ask(resumed)[0] not in (name, repeat.name)


def test_a_resumed_trial_brings_its_evaluations_to_the_model(tmp_path: Path) -> None:
    killed = make_search(tmp_path, apart=True)
    name, _ = ask(killed)
    curves = {name: [evaluation(samples=640, train_s=1.0, value=0.5)]}
    resumed = make_search(tmp_path, apart=True, curves=curves)
    assert ask(resumed)[0] == name
    assert resumed.curves.model.curves[name].amounts == [640]
