"""`raybench import`: runs of other tools become a study with unknown timing."""

import json
from pathlib import Path
from typing import Any

import optuna
import pytest

import raybench
from raybench.commands import cli
from raybench.results.foreign import read_mlflow
from raybench.results.store import IMPORTED
from raybench.search.sampling.earlier import load_earlier
from raybench.search.sampling.optuna_study import NOT_RUN
from raybench.spec.errors import ErrorCode
from raybench.spec.study import build_study
from tests.refusals import refused
from tests.search.made_up import ask, journal_of, make_search

pytestmark = pytest.mark.usefixtures("elsewhere", "one_picture")
Capture = pytest.CaptureFixture[str]
TABLE = """lr,batch_size,dropout,val_accuracy,train_accuracy,duration,name,state
0.1,32,0.1,0.91,0.99,12.5,a,finished
0.01,64,0.1,0.95,0.99,30,b,finished
0.001,64,0.3,,,,c,finished
0.5,64,0.3,0.2,0.2,3,d,failed
"""
NAMED = ("--column", "dropout=model.dropout", "--column", "train_accuracy=none")


def imported(capsys: Capture, *words: object, code: int = 0) -> dict[str, Any]:
    """Import as the study `old`; return the JSON document of the command."""
    assert cli.main(["import", *map(str, words), "--as", "old", "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refusal(capsys: Capture, *words: object) -> tuple[str, str]:
    """Return the code and the message of a refused import, which writes nothing."""
    error = imported(capsys, *words, code=2)["error"]
    assert not Path("results").exists()
    return error["code"], error["message"]


def test_rows_of_a_table_become_a_study(capsys):
    Path("runs.csv").write_text(TABLE)
    document = imported(capsys, "runs.csv", "--metric", "accuracy", *NAMED)
    assert document["configurations"] == [], "no winner without known timing"
    assert document["details"]["imported"]["from"] == "runs.csv"
    assert "0001" in document["answer"][0]
    assert "95.0 %" in document["answer"][0]
    assert any("runs.csv" in note for note in document["notes"])
    assert any("2 runs" in note for note in document["notes"]), "one failed, one has no value"
    study = raybench.load("results/old")
    assert study.study[IMPORTED]["columns"]["lr"] == "learning_rate"
    assert study.trials["learning_rate"].tolist() == [0.1, 0.01]
    assert study.trials["model.dropout"].tolist() == [0.1, 0.1]
    assert study.trials["train_s"].tolist() == [12.5, 30.0]
    assert study.trials["samples_per_s"].isna().all(), "samples are unknown"
    assert study.trials["config"].tolist() == [
        "learning_rate 0.1 batch_size_per_worker 32 dropout 0.1",
        "learning_rate 0.01 batch_size_per_worker 64 dropout 0.1",
    ]
    with refused(ErrorCode.NO_RESULT, "0001"):
        _ = study.best
    assert not Path("results/old/best.yaml").exists()
    assert Path("results/old/report.html").exists()
    assert cli.main(["report", "results/old", "--verbose"]) == 0
    assert "0001" in capsys.readouterr().out


EXPORTS = {
    "mlflow": """run_id,status,artifact_uri,metrics.val_acc,params.lr,params.opt,tags.user
a,FINISHED,file:x,0.9,0.1,adam,me
b,FAILED,file:x,0.8,0.2,adam,me
""",
    "optuna": """number,value,duration,params_lr,params_opt,system_attrs_x,state
0,0.9,0 days 00:00:01,0.1,adam,1,COMPLETE
1,0.8,0 days 00:00:01,0.2,adam,1,PRUNED
""",
    "ray": "acc,config/lr,config/opt,pid,time_total_s,date\n0.9,0.1,adam,3,2.5,now\n",
}


@pytest.mark.parametrize("tool", EXPORTS)
def test_exports_of_known_tools_need_no_column_names(tool, capsys):
    Path("runs.csv").write_text(EXPORTS[tool])
    named = ("--column", "value=accuracy") if tool == "optuna" else ()
    imported(capsys, "runs.csv", *named)
    study = raybench.load("results/old")
    assert study.trials["config"].tolist() == ["learning_rate 0.1 opt adam"]
    assert study.trials["best_accuracy"].tolist() == [0.9]


def test_unusual_columns_and_values_are_imported(capsys):
    """Unnamed index, class names of optimizers, huge numbers, percentages."""
    Path("runs.csv").write_text(",optimizer,lr,loss,samples\n0,AdamW,0.1,2,1e30\n1,SGD,0.1,1,5\n")
    imported(capsys, "runs.csv")
    trials = raybench.load("results/old").trials
    assert trials["optimizer"].tolist() == ["adamw", "sgd"]
    assert trials["samples"].tolist() == [2**53, 5]
    Path("percents.csv").write_text("lr,accuracy\n0.1,91\n0.01,95.5\n")
    assert cli.main(["import", "percents.csv", "--as", "percents"]) == 0
    assert raybench.load("results/percents").trials["best_accuracy"].tolist() == [0.91, 0.955]


@pytest.mark.parametrize(
    ("table", "words", "code", "names"),
    [
        (TABLE, ("--metric", "accuracy"), "missing", ("dropout", "train_accuracy")),
        (TABLE, ("--metric", "dice", *NAMED), "unknown_name", ("--metric", "val_accuracy")),
        ("lr,x\n1,2\n", (), "missing", ("--metric", "x")),
        ("", (), "missing", ("runs.csv",)),
        ("lr,loss,accuracy\n1,2,1\n", (), "missing", ("loss", "accuracy")),
        ("lr,dice\n1,1\n", ("--metric", "dice"), "missing", ("--direction", "dice")),
        ("loss\n1\n", (), "missing", ("--column",)),
        ("lr,loss\n1,2\n", ("--column", "rate=x"), "unknown_name", ("rate",)),
        ("lr,loss\n1,2\n", ("--column", "lr=rate"), "unknown_key", ("lr",)),
        ("lr,loss\n1,2\n", ("--column", "lr"), "invalid_option", ("lr",)),
        ("lr,learning_rate,loss\n1,1,2\n", (), "missing", ("learning_rate",)),
        ("lr,accuracy\n1,200\n", (), "invalid_value", ("accuracy",)),
        ("lr,loss\n1,none\n", (), "invalid_value", ("loss",)),
        ("optimizer,loss\nmine,1\n", (), "unknown_name", ("optimizer", "mine", "run 1")),
        ("lr,loss,time_to_target_s\n1,2,3\n", (), "missing", ("--target", "time_to_target_s")),
        ("lr,loss\n1,2\n", ("--target", "1"), "missing", ("--target", "time_to_target_s")),
        ("lr,loss\n1,2\n", ("--direction", "max", "--metric", "loss"), "conflict", ("loss",)),
    ],
)
def test_missing_information_is_refused_with_the_option_to_give(table, words, code, names, capsys):
    Path("runs.csv").write_text(table)
    error_code, sentence = refusal(capsys, "runs.csv", *words)
    assert error_code == code, sentence
    assert [name for name in names if name not in sentence] == []


def test_unreadable_sources_and_other_studies_are_refused(capsys):
    Path("empty").mkdir()
    Path("no.db").write_text("{")
    codes = [refusal(capsys, source)[0] for source in ("nowhere", "empty", "no.db")]
    assert codes == ["not_found", "not_found", "invalid_file"]
    Path("runs.csv").write_text("lr,loss\n1,2\n")
    imported(capsys, "runs.csv")
    assert imported(capsys, "runs.csv", code=2)["error"]["code"] == "study_changed"


TIMED = "lr,accuracy,time_to_target_s\n0.1,0.95,3.5\n0.01,0.9,\n0.03,0.96,2\n"
SPACE: dict[str, Any] = {
    "objective": {"target": 0.95, "max_train_seconds": 10.0},
    "space": {"learning_rate": {"low": 1e-4, "high": 1.0, "log": True}},
}


def test_imported_seconds_order_the_first_trials_only(capsys, tmp_path):
    Path("runs.csv").write_text(TIMED)
    answer = imported(capsys, "runs.csv", "--target", "0.95")["answer"][0]
    assert "0002" in answer
    assert "2.00 s" in answer
    study, _ = build_study(SPACE, "test")
    search = make_search(tmp_path / "new", SPACE)
    assert search.learn_from(load_earlier("results/old", study)) is not None
    learned = [trial for trial in journal_of(search).get_trials() if NOT_RUN in trial.user_attrs]
    assert learned == []
    rates = [ask(search)[1].learning_rate for _ in range(4)]
    assert rates[0] == 0.03
    assert 0.1 in rates
    for changes, names in (
        ({"search": {"sampler": "tpe"}}, ("tpe",)),
        ({"objective": {"target": 0.9, "max_train_seconds": 10.0}}, ("target", 0.95)),
        ({"objective": {"metric": "loss", "target": 0.95}}, ("metric", "accuracy", "loss")),
    ):
        with refused(ErrorCode.CONFLICT, "results/old", *names):
            load_earlier("results/old", build_study(SPACE | changes, "test")[0])


def test_imported_values_are_learned_by_the_sampler(capsys, tmp_path):
    Path("runs.csv").write_text("lr,accuracy\n0.1,0.95\n0.01,0.9\n")
    imported(capsys, "runs.csv")
    budget = SPACE | {"objective": {"kind": "best_at_budget", "max_train_seconds": 10.0}}
    search = make_search(tmp_path / "new", budget)
    search.learn_from(load_earlier("results/old", build_study(budget, "test")[0]))
    assert sorted(trial.value for trial in journal_of(search).get_trials()) == pytest.approx(
        [0.05, 0.1]
    )


def test_comparing_imported_runs_is_refused(capsys):
    Path("runs.csv").write_text(TIMED)
    imported(capsys, "runs.csv", "--target", "0.95")
    for words in (("report", "--compare"), ("compare", "--dry-run")):
        assert cli.main([*words, "results/old", "results/old", "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "conflict"
        assert "results/old" in error["message"]


def test_runs_of_mlflow_are_imported(capsys, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(str(Path("mlruns").absolute()))
    experiment = client.create_experiment("mine")
    ends = ("FINISHED", "FINISHED", "FAILED", "FINISHED")
    for rate, end in zip((0.1, 0.01, 0.5, 0.7), ends, strict=True):
        run = client.create_run(experiment).info.run_id
        for name, value in {"lr": rate, "opt/kind": None, "epochs": 3}.items():
            client.log_param(run, name, value)
        client.log_metric(run, "gpu", 2.0)
        client.log_metric(run, "val_accuracy", 0.0, step=0)
        client.log_metric(run, "val_accuracy", rate, step=1)
        client.set_terminated(run, end)
    client.delete_run(run)
    imported(capsys, "mlruns")
    study = raybench.load("results/old")
    assert sorted(study.trials["best_accuracy"]) == [0.01, 0.1]
    for spec in study.specs.values():
        assert (spec.epochs, spec.model) == (3.0, {"opt_kind": None})
    assert (study.trials["train_s"] > 0).all()
    client.create_run(other := client.create_experiment("other"))
    with refused(ErrorCode.NOT_FOUND, f"mlruns/{experiment}", f"mlruns/{other}"):
        read_mlflow(Path("mlruns"))
    assert len(read_mlflow(Path(f"mlruns/{other}")).rows) == 0


def test_trials_of_optuna_are_imported(capsys):
    study = optuna.create_study(storage="sqlite:///optuna.db", direction="maximize")

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_categorical("act", ["relu", "gelu"])
        rate = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
        trial.set_user_attr("host", "mine")
        if trial.number == 2:
            raise optuna.TrialPruned
        return rate

    study.optimize(objective, n_trials=3)
    assert refusal(capsys, "optuna.db")[0] == "missing"
    assert refusal(capsys, "optuna.db", "--metric", "loss")[0] == "conflict"
    document = imported(capsys, "optuna.db", "--metric", "dice")
    assert any("1 run " in note for note in document["notes"])
    trials = raybench.load("results/old").trials
    assert trials["best_dice"].tolist() == pytest.approx(trials["learning_rate"].tolist())
    assert raybench.load("results/old").metric.direction == "max"
