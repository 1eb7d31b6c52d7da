"""`--seed-from`: an earlier study's trials become the sampler's knowledge, or are refused."""

import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from raybench.core.errors import UserError
from raybench.core.objective import Objective
from raybench.core.outcome import run_record
from raybench.core.record import Prediction
from raybench.core.space import Space
from raybench.core.study import StudySpec, build_study
from raybench.results.provenance import machine
from raybench.results.store import STUDY_FILE, Store
from raybench.search.deadline import Deadline
from raybench.search.ray_tune.searcher import StudySearcher
from raybench.search.sampling.optuna_study import EARLIER_STUDY, NOT_RUN, real_trials
from raybench.search.sampling.transfer import load_earlier
from raybench.speed.factorisation import Factors, factorise
from raybench.speed.placement import Placer

STUDY: dict[str, Any] = {
    "objective": {"target": 0.95, "max_train_seconds": 10.0},
    "search": {"trials": 40},
    "space": {
        "num_workers": [1, 2],
        "batch_size_per_worker": [32, 64],
        "optimizer": ["adam", "lars"],
        "learning_rate": {"low": 1e-4, "high": 1.0, "log": True},
    },
}
RATE = 0.01


def build(**changes: Any) -> tuple[StudySpec, Space]:
    return build_study(STUDY | changes, "test")


def earlier_folder(folder: Path, *, processor: str | None = None, **changes: Any) -> Path:
    """A study of six trials near rate 0.01: reached in 4 s, stopped, out of memory, unlike."""
    study, _ = build(**changes)
    store = Store(folder)
    known = machine() | ({"processor": processor} if processor else {})
    store.write_yaml(STUDY_FILE, {"study": study.document(), "machine": known})

    def add(name: str, result: dict[str, Any], stop: str = "scheduler", **values: Any) -> None:
        given = {"num_workers": 1, "batch_size_per_worker": 64, "optimizer": "adam"}
        spec = study.run_spec(given | {"learning_rate": RATE} | values).document()
        evaluation = {"samples": 100, "best_accuracy": 0.9, "time_to_target_s": None}
        result = {"evaluation": evaluation | result.pop("evaluation", {})} | result
        ledger = {"ledger": {"train": 3.0}}
        objective = Objective(**STUDY["objective"])
        store.append(run_record(name, spec, ledger | result, objective, stop).line())

    reached = {"evaluation": {"time_to_target_s": 4.0}, "stop": "target", "score": 1.386}
    add("0000", reached)
    add("0001", {"score": 2.5}, learning_rate=0.5)
    add("0002", {"failure": "oom"}, optimizer="lars")
    add("0003", {"failure": "worker_lost"}, learning_rate=0.02)
    add("0004", dict(reached), batch_size_per_worker=128)
    add("0005", {"stop": "epochs", "score": 2.4}, learning_rate=3.0)
    prediction = Prediction(
        trial="0000",
        framework="torch",
        num_workers=2,
        batch_size_per_worker=32,
        time_to_target_s=2.0,
    )
    store.append(prediction.line())
    store.close()
    return folder


def searcher(folder: Path, study: StudySpec, space: Space, *, apart: bool) -> StudySearcher:
    folder.mkdir(exist_ok=True)
    factors = factorise(study, space, equal_frameworks=True)
    speed = Placer(factors) if apart and isinstance(factors, Factors) else None
    return StudySearcher(
        study, space, folder, Deadline(None, began=time.perf_counter()), None, speed
    )


@pytest.mark.parametrize("apart", [True, False])
def test_trials_inside_the_space_are_told(apart: bool, tmp_path: Path) -> None:
    folder = earlier_folder(tmp_path / "earlier")
    study, space = build()
    one = searcher(tmp_path / "new", study, space, apart=apart)
    told = one.tell_earlier(load_earlier(folder, study))
    assert told is not None
    # 64 on one worker is a batch of the space taken apart only with 32 on two; 128 with 64 on two.
    assert (told.num_told, told.num_outside) == ((4, 1) if apart else (3, 2))
    assert not told.is_other_machine
    assert "4 trials" in told.sentence(folder) or not apart
    known = one.optuna_study.get_trials()
    assert [t.user_attrs[NOT_RUN] for t in known] == [EARLIER_STUDY] * told.num_told
    states = [t.state for t in known]
    assert states.count(TrialState.PRUNED) == 1
    assert real_trials(one.optuna_study) == []
    assert one.num_finished == 0


def test_the_fastest_known_split_is_what_counts(tmp_path: Path) -> None:
    folder = earlier_folder(tmp_path / "earlier")
    study, space = build()
    one = searcher(tmp_path / "new", study, space, apart=True)
    one.tell_earlier(load_earlier(folder, study))
    assert one.optuna_study.best_value == pytest.approx(0.693, abs=1e-3)  # log 2 s


def test_a_continued_session_is_not_told_twice_and_priors_are_left_out(tmp_path: Path) -> None:
    folder = earlier_folder(tmp_path / "earlier")
    study, space = build()
    one = searcher(tmp_path / "new", study, space, apart=True)
    one.tell_earlier(load_earlier(folder, study))
    for number in range(6):
        one.suggest(str(number))
    assert not [t for t in one.optuna_study.get_trials() if "prior" in t.user_attrs]
    again = searcher(tmp_path / "new", study, space, apart=True)
    assert again.tell_earlier(load_earlier(folder, study)) is None


def test_another_machine_is_said(tmp_path: Path) -> None:
    folder = earlier_folder(tmp_path / "earlier", processor="of yesterday")
    study, space = build()
    one = searcher(tmp_path / "new", study, space, apart=True)
    told = one.tell_earlier(load_earlier(folder, study))
    assert told is not None
    assert "another machine" in told.sentence(folder)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objective": {"target": 0.9, "max_train_seconds": 10.0}}, "objective.target was 0.95"),
        ({"workload": "deep_mlp"}, "workload was mnist_small, is deep_mlp"),
        ({"objective": {"target": "auto", "max_train_seconds": 10.0}}, "target: auto"),
        ({"search": {"sampler": "nsga2"}}, "no use with search.sampler: nsga2"),
    ],
)
def test_a_study_of_another_task_is_refused(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    folder = earlier_folder(tmp_path)
    study, _ = build(**changes)
    with pytest.raises(UserError) as error:
        load_earlier(folder, study)
    assert sentence in str(error.value)
