"""Studies of Ray Tune and Optuna: what their files tell, and what they do not."""

import json
import shutil
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

import raybench
from raybench.core.errors import UserError
from raybench.results.other_study import OtherStudy

FIXTURES = Path(__file__).parents[1] / "fixtures"
TUNE = FIXTURES / "tune_experiment"


def objective(trial):
    rate = trial.suggest_float("lr", 1e-4, 1.0, log=True)
    optimizer = trial.suggest_categorical("optimizer", ["adam", "sgd<b>"])
    trial.suggest_int("num_workers", 1, 4)
    if trial.number == 2:
        raise ValueError("broke")
    value = 1.0 + rate + (optimizer == "adam")
    for step in range(3):
        trial.report(value - step / 10, step)
        if trial.number == 1:
            raise optuna.TrialPruned
    return value


@pytest.fixture(scope="module")
def storages(tmp_path_factory):
    """A journal and an SQLite file, as the installed Optuna writes them; the second has two."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = tmp_path_factory.mktemp("optuna")
    files = {"journal": folder / "any.log", "sqlite": folder / "any.db"}
    kinds = {
        "journal": JournalStorage(JournalFileBackend(str(files["journal"]))),
        "sqlite": RDBStorage(f"sqlite:///{files['sqlite']}"),
    }
    for storage in kinds.values():
        sampler = optuna.samplers.RandomSampler(seed=0)
        study = optuna.create_study(study_name="größe", storage=storage, sampler=sampler)
        study.optimize(objective, n_trials=6, catch=(ValueError,))
        study.ask()
    two = optuna.create_study(
        study_name="two", storage=kinds["sqlite"], directions=["minimize", "maximize"]
    )
    two.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 2.0), n_trials=2)
    return files


@pytest.mark.parametrize("kind", ["journal", "sqlite", "url"])
def test_a_study_of_optuna_is_read(storages, kind):
    place = f"sqlite:///{storages['sqlite']}" if kind == "url" else storages[kind]
    study = raybench.load(place, metric="loss", study_name="größe")
    assert isinstance(study, OtherStudy)
    assert (study.name, study.open_trials, len(study.trials)) == ("größe", 1, 6)
    assert list(study.trials["state"][:4]) == ["complete", "stopped", "failed", "complete"]
    assert study.searched == ("lr", "optimizer", "config/num_workers")
    row = study.trials.iloc[0]
    assert row["best_loss"] == 1.0 + row["lr"] + (row["optimizer"] == "adam")
    for missing in ("num_workers", "train_s", "wall_s", "worker_seconds", "crossed_s"):
        assert study.trials[missing].isna().all(), missing
    assert len(study.curves) == 4 * 3 + 1
    assert list(study.curves["step"][:3]) == [0.0, 1.0, 2.0]
    assert study.curves["train_s"].isna().all()
    best = study.best
    assert best.value == study.trials["best_loss"].min()
    assert best.params["lr"] == study.trials.set_index("trial").loc[best.trial, "lr"]
    assert repr(study).startswith(f"Best loss: {best.value:.6g} with lr ")
    assert "<b>" not in study._repr_html_()


def test_the_best_is_the_one_that_optuna_names(tmp_path):
    def reports_less_midway(trial):
        x = trial.suggest_float("x", 0.5, 1.0)
        trial.report(x - 10.0 * trial.number, 0)
        if trial.number == 3:
            raise optuna.TrialPruned
        return float("nan") if trial.number == 4 else x  # NaN: Optuna lets it fail

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    place = f"sqlite:///{tmp_path / 'any.db'}"
    theirs = optuna.create_study(storage=place, sampler=optuna.samplers.RandomSampler(seed=0))
    theirs.optimize(reports_less_midway, n_trials=5)
    best = raybench.load(place).best
    assert (best.trial, best.value) == (str(theirs.best_trial.number), theirs.best_value)


def test_what_optuna_does_not_tell_is_said(storages):
    study = raybench.load(storages["journal"])
    assert study.metric.name == "value"
    for ask in (study.best_at_every_budget, lambda: study.time_to(1.0)):
        with pytest.raises(UserError, match="nothing is known of 'train_s'"):
            ask()
    with pytest.raises(UserError, match="nothing is known of 'wall_s'"):
        study.ledger()
    for name in ("winners", "confirmed", "plot"):
        with pytest.raises(UserError, match=f"'{name}' is of raybench's own studies, Optuna"):
            getattr(study, name)
    with pytest.raises(UserError, match="there is no run spec"):
        study.best.train()
    assert study.importance.empty, "of six trials nothing is said"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "holds 2 studies: say study_name= of größe, two"),
        ({"study_name": "x"}, "holds no study 'x', 2 studies"),
        ({"study_name": "two"}, "has 2 objectives; say metric= of values_0, values_1"),
        ({"study_name": "größe", "time": "s"}, "Optuna records no seconds"),
        ({"study_name": "größe", "mode": "max"}, "the study says min, not max"),
    ],
)
def test_what_has_to_be_named_is_asked_for(storages, given, words):
    with pytest.raises(UserError, match=words):
        raybench.load(storages["sqlite"], **given)


def test_files_that_optuna_cannot_read_are_the_users(storages, tmp_path):
    torn = tmp_path / "torn.log"
    text = storages["journal"].read_text()
    torn.write_text(text[: len(text) // 2].rpartition("\n")[0] + '\n{"op_code": 5, "wor')
    assert 0 < len(raybench.load(torn).trials) < 6
    torn.write_text(text.replace('"op_code":4', '"op_code":99', 1))
    with pytest.raises(UserError, match="Optuna cannot read it"):
        raybench.load(torn)
    other = tmp_path / "other.db"
    other.write_bytes(b"SQLite format 3\0" + b"x" * 100)
    with pytest.raises(UserError, match="Optuna cannot read it"):
        raybench.load(other)
    with pytest.raises(UserError, match="there is no such file"):
        raybench.load(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()


def test_an_experiment_of_tune_is_read():
    study = raybench.load(TUNE, metric="acc")
    assert (study.metric.direction, study.name) == ("max", "tune_experiment")
    table = study.trials.set_index("trial")
    assert len(table) == 6
    assert table["state"].value_counts().to_dict() == {"complete": 5, "failed": 1}
    failed = table[table["state"] == "failed"].iloc[0]
    assert failed["message"] == "RuntimeError: no memory for <b>width 3</b>"
    assert (failed["model/width"], failed["config/num_workers"]) == (3, 4)
    one = table.loc["adad3_00001"]
    points = [json.loads(line) for line in next(TUNE.glob("*_00001_*/result.json")).open()]
    assert one["best_acc"] == max(point["acc"] for point in points)
    assert one["train_s"] == points[-1]["time_total_s"]
    assert str(one["finished_at"]).startswith("2026-11-23 12:16:19+00:00")
    own = study.curves[study.curves["trial"] == "adad3_00001"]
    assert list(own["acc"]) == [point["acc"] for point in points]
    assert list(own["step"]) == list(range(1, 9))
    assert len(study.curves[study.curves["trial"] == "adad3_00003"]) == 8, "of its progress.csv"
    assert study.best.trial == "adad3_00007"
    assert study.best_at_every_budget()["acc"].is_monotonic_increasing
    assert study.time_to(0.5)["seconds"].notna().sum() == 3
    assert table["num_workers"].isna().all(), "of a trial's own parameters nobody knows the meaning"


def test_a_nested_metric_and_another_time_column():
    study = raybench.load(TUNE, metric="eval/loss", time="time_this_iter_s")
    assert study.metric.direction == "min"
    assert study.best.value == pytest.approx(1 - raybench.load(TUNE, metric="acc").best.value)
    assert study.curves["train_s"].max() < 0.05


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "Say metric=... of acc, eval/loss"),
        ({"metric": "accuracy"}, "no result has a number 'accuracy'; there are acc"),
        ({"metric": "acc", "time": "seconds"}, "no result has a number 'seconds'"),
        ({"metric": "timestamp"}, "is more or less of 'timestamp' better"),
        ({"metric": "acc", "mode": "most"}, "must be 'min' or 'max'"),
    ],
)
def test_what_tune_does_not_say_is_asked_for(given, words):
    with pytest.raises(UserError, match=words):
        raybench.load(TUNE, **given)


def test_torn_and_broken_files_of_tune(tmp_path):
    folder = shutil.copytree(TUNE, tmp_path / "study")
    file = next(folder.glob("*_00001_*/result.json"))
    whole = file.read_text()
    file.write_text(whole + '{"acc": 0.9')
    assert raybench.load(folder, metric="acc").curves["trial"].eq("adad3_00001").sum() == 8
    file.write_text("{torn\n" + whole)
    with pytest.raises(UserError, match=r"result\.json, line 1: is not JSON"):
        raybench.load(folder, metric="acc")
    file.write_text(whole.replace('"done": true', '"done": false'))
    states = raybench.load(folder, metric="acc").trials.set_index("trial")["state"]
    assert states["adad3_00001"] == "stopped", "it was killed"


def test_studies_of_three_tools_are_compared(storages):
    studies = raybench.load([FIXTURES / "digits_study", storages["journal"]])
    table = studies.winners
    assert list(table["metric"]) == ["accuracy", "value"]
    assert table["seconds"].isna().tolist() == [False, True]
    assert "größe: Best value: " in repr(studies)
