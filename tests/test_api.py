"""`raybench.tune(...)` and the other Python functions without Ray: arguments and results."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import raybench
from raybench.api import call_options
from raybench.cluster.signals import Interrupt
from raybench.runs import scale as body
from raybench.runs.options import OPTIONS
from raybench.runs.train import names_target, read_spec
from raybench.search.resolve import study_content
from raybench.spec.documents import to_yaml
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.spec.study import build_study
from tests.factories import options_given
from tests.refusals import refused
from tests.runs.test_scale import _no_ray, made_up_runs, no_pictures, study_file

SPACE = {
    "objective": {"target": 0.9},
    "space": {"learning_rate": [0.01, 0.001], "optimizer": ["adam", "lamb"]},
}
_fixtures = (_no_ray, made_up_runs, no_pictures)


def tuned(space: Any = SPACE, **changes: Any) -> Any:
    """Return the study of a call, and the name of its results."""
    content, source, name = study_content(call_options("tune", {"space": space} | changes))
    return build_study(content, source)[0], name


def test_a_space_is_a_file_a_mapping_or_a_study(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(SPACE))
    study, name = tuned(file)
    assert name == "mine"
    assert tuned(str(file)) == (study, "mine")
    assert tuned(SPACE) == tuned(study) == (study, "space")
    assert tuned("digits")[1] == "digits"
    folder = tmp_path / "there"
    folder.mkdir()
    # Keys set by reference runs become `auto` again.
    is_set = study.model_copy(update={"auto": ["target", "eval_every_samples"], "is_set": True})
    (folder / "study.yaml").write_text(to_yaml({"study": is_set.document(), "command": "x.py"}))
    reset, name = tuned(folder / "study.yaml")
    assert (name, reset.needs_target, reset.space) == ("there", True, study.space)


@pytest.mark.parametrize("name", ["tune", "train", "scale", "diagnose", "compare"])
def test_parameters_of_a_function_are_options_of_its_command(name):
    options = OPTIONS[name].model_fields
    parameters = inspect.signature(getattr(raybench, name)).parameters
    for parameter in parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "data":
            assert parameter.default == options[parameter.name].default, parameter.name
    assert list(parameters)[-1] == "changes"


def test_keyword_arguments_are_options_of_the_command_line_or_keys():
    for name in ("tune", "train", "scale", "diagnose", "compare"):
        assert options_given(name, []) == call_options(name, {}) == OPTIONS[name]()
    words = "s.yaml --trials 7 --time-budget 1min --workers 1,2 --confirm race=12,fresh=1 --seed 3"
    keys = "--target 0.8 --set optimizer=adam --set objective.hold=2 --set warmup_epochs=1.5"
    changes = {"trials": 7, "time_budget": 60.0, "workers": range(1, 3), "seed": 3, "target": 0.8}
    changes |= {"confirm": {"race": 12, "fresh": 1}, "optimizer": "adam", "objective.hold": 2}
    changes |= {"warmup_epochs": 1.5}
    options = options_given("tune", [*words.split(), *keys.split()])
    for given in (changes, changes | {"time_budget": "60s", "workers": [1, 2]}):
        assert call_options("tune", {"space": "s.yaml"} | given) == options
    assert call_options("tune", {"time_budget": None}) == OPTIONS["tune"]()
    study, _ = tuned(**changes)
    assert (study.search.trials, study.search.time_budget_s, study.search.seed) == (7, 60, 3)
    assert study.space == {"learning_rate": [0.01, 0.001], "num_workers": [1, 2]}
    assert study.fixed == {"optimizer": "adam", "warmup_epochs": 1.5}
    assert (study.objective.target, study.objective.hold) == (0.8, 2)
    assert (study.confirm.race, study.confirm.fresh) == (12, 1)
    assert SPACE["space"]["optimizer"] == ["adam", "lamb"], "the given space is not changed"


def test_confirm_may_be_a_truth_value():
    given = {"confirm": False}, {"no_confirm": True}, {"confirm": True}, {}
    plans = [raybench.tune(SPACE, dry_run=True, **changes).plan["confirm"] for changes in given]
    assert plans[0] == plans[1] != plans[2] == plans[3]


INTERACTIVE = {}
exec(compile("def train(run): ...", "/tmp/ipykernel_1/2.py", "exec"), INTERACTIVE)


@pytest.mark.parametrize(
    ("changes", "code", "name"),
    [
        ({"trails": 7}, ErrorCode.UNKNOWN_KEY, "'trails'"),
        ({"verbose": True}, ErrorCode.INVALID_OPTION, "verbose"),
        ({"space": 3}, ErrorCode.INVALID_VALUE, "raybench.tune: 'space"),
        ({"log": "tensorbord"}, ErrorCode.UNKNOWN_NAME, "'tensorboard'"),
        (
            {"workload": type("Mine", (), {"__module__": "__main__"})},
            ErrorCode.USER_CODE,
            "Mine",
        ),
        ({"train": lambda run: None}, ErrorCode.USER_CODE, "<lambda>"),
        ({"train": INTERACTIVE["train"]}, ErrorCode.USER_CODE, "top level of a file"),
        ({"data": 3}, ErrorCode.INVALID_VALUE, "data"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(changes, code, name):
    arguments = {"space": SPACE} | changes
    with refused(code, name):
        raybench.tune(**arguments)
    assert list(Path().iterdir()) == [], "nothing is left behind"


def test_a_dry_run_returns_the_plan_and_prints_nothing(capsys):
    grid = SPACE | {"search": {"sampler": "grid"}}
    plan = raybench.tune(grid, dry_run=True, out="here")
    assert capsys.readouterr().out == ""
    assert str(plan) == plan.text
    assert "4 trials" in plan.text
    assert "best 4" in plan.text, "there are only 4"
    assert (plan.plan["num_trials"], plan.plan["results"]) == (4, "here")
    assert plan.plan["at_most_s"] > 4
    with_first = raybench.tune(grid, dry_run=True, first={"learning_rate": 0.5})
    assert with_first.plan["search"]["first"] == [{"learning_rate": 0.5}]
    assert (with_first.plan["num_trials"], "first: " in with_first.text) == (5, True)
    assert raybench.tune(grid, dry_run=True, time_budget=9).plan["at_most_s"] == 9
    training = raybench.train(learning_rate=0.5, dry_run=True)
    assert training.plan["learning_rate"] == 0.5
    assert "learning_rate: 0.5" in str(training)
    assert list(Path().iterdir()) == [], "nothing is written"


def test_a_run_spec_is_a_file_a_mapping_or_a_spec(tmp_path):
    spec = RunSpec(learning_rate=0.002, epochs=3.0)
    (tmp_path / "a.yaml").write_text(to_yaml(spec.document()))
    for given in (tmp_path / "a.yaml", str(tmp_path / "a.yaml"), spec.document(), spec):
        options = call_options("train", {"spec": given, "epochs": 5, "seed": 4})
        spec_read = read_spec(options)
        assert spec_read == spec.model_copy(update={"epochs": 5.0, "seed": 4})
        assert names_target(options) == (given is not spec)
    none = call_options("train", {"batch_size_per_worker": 32})
    assert not names_target(none)
    assert read_spec(none).dataset.image_size == 28


@pytest.mark.usefixtures("no_pictures")
def test_a_call_returns_the_results_of_its_folder(made_up_runs, capsys):
    results = raybench.scale(study_file(), repeats=3, out=Path("here"), progress="jsonl")
    assert type(results).__name__ == "StudyResults"
    assert (results.name, len(results.scaling)) == ("here", 4)
    assert made_up_runs[0].repeats == 3
    captured = capsys.readouterr()
    assert "Weak scaling" in captured.out
    assert all(json.loads(line) for line in captured.err.splitlines())
    content = {"base": {"epochs": 3}, "num_workers": [1, 2], "batch_sizes": [64], "repeats": 2}
    assert raybench.scale(content).name == "scaling"


@pytest.mark.usefixtures("no_pictures")
def test_ctrl_c_is_raised_after_results_are_written(monkeypatch, made_up_runs):
    run = body.run_study

    def interrupted(study: Any, single_run: Any, progress: Any) -> None:
        run(study, single_run, progress)
        single_run.deadline._interrupt.is_set = True

    monkeypatch.setattr(body, "run_study", interrupted)
    with pytest.raises(KeyboardInterrupt):
        raybench.scale(study_file())
    assert len(raybench.load("results/my").scaling) == 4


@pytest.mark.usefixtures("no_pictures", "made_up_runs")
def test_signals_are_left_alone_outside_the_main_thread():
    import signal
    import threading

    before, results = signal.getsignal(signal.SIGINT), []
    file = study_file()
    thread = threading.Thread(target=lambda: results.append(raybench.scale(file)))
    thread.start()
    thread.join()
    assert len(results[0].scaling) == 4
    assert signal.getsignal(signal.SIGINT) == before
    assert not Interrupt(owns_process=False).is_set
