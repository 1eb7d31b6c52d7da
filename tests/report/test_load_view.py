"""The repr of a loaded study, its winner and its figures, for complete and incomplete studies."""

import platform
import shlex
from pathlib import Path

import pytest

import raybench
from raybench.report.answer import summary_of
from raybench.report.confidence import next_steps
from raybench.report.study import arguments_of, load
from raybench.results.place import OWNER_FILE
from raybench.results.store import RECORDS_FILE
from raybench.results.verdict import verdict_of
from raybench.runs.train import read_spec
from raybench.spec.documents import to_yaml
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from tests.factories import options_given
from tests.made_results import curve, locked_by, results_folder, run_line
from tests.refusals import refused
from tests.report.page.pages import ParsedPage

FIXTURE = Path(__file__).parents[1] / "fixtures" / "digits_study"
MARKUP = "<script>alert(1)</script>[red]&\"'"


def test_the_repr_of_a_study_begins_with_the_answer():
    study = raybench.load(FIXTURE)
    first, tied, once, counted, folder_line = repr(study).split("\n")
    for words in ("PyTorch on 2 workers", "24 configurations", "(15 of them", "7 others"):
        assert words in first
    assert "0014" in tied
    assert "5 other configurations" in once
    assert [*study.answer, *study.remarks] == [first, tied, once]
    assert "3 configurations" in str(study.how_sure)
    assert counted == "33 runs, 206 evaluations"
    assert str(FIXTURE) in folder_line
    html = ParsedPage(study._repr_html_())
    assert html.text.startswith(first)
    assert set(html.tags) <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"} | {
        "small",
        "br",
    }


def test_odd_records_and_markup_are_shown_as_text(tmp_path):
    folder = tmp_path / MARKUP.replace("/", "") / "日本"
    lines = [line | {"value": None, "train_loss": None} for line in curve("0000", [0.1])]
    lines.append(run_line("0000", failure="nan") | {"message": f"broke at {MARKUP} Größe 日本"})
    results_folder(folder, [*lines, *curve("0001", [0.5, 0.92]), run_line("0001", 2.0)])
    with (folder / RECORDS_FILE).open("a") as file:
        file.write('{"kind": "run", "tri')
    study = load(folder)
    (first, *_) = study.answer
    assert "1.95 s" in first
    assert repr(study).startswith(first)
    html = ParsedPage(study._repr_html_())
    assert html.text.startswith(first)
    assert "script" not in html.tags


def test_a_running_study_is_loaded_and_marked(tmp_path):
    results_folder(tmp_path, [*curve("0000", [0.5]), *curve("0001", [0.5]), run_line("0001", 1.0)])
    locked_by(tmp_path)
    study = raybench.load(tmp_path)
    assert f"1 on {platform.node()}" in repr(study)
    assert list(study.trials["trial"]) == ["0001"]
    locked_by(tmp_path, pid=2**22 + 1)  # has ended
    assert "still running" not in repr(raybench.load(tmp_path))
    for content in ("{torn", "[]"):
        (tmp_path / OWNER_FILE).write_text(content)
        assert "still running" not in repr(raybench.load(tmp_path))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (run_line("0001"), "the best so far is 80.0 %"),
        (run_line("0001", failure="oom"), "1 of 1 run failed so far"),
    ],
)
def test_a_running_study_without_a_hit_is_not_judged(tmp_path, line, words):
    study = results_folder(tmp_path, [line], study={"search": {"trials": 10}})
    locked_by(tmp_path)
    answer = summary_of(study).lines[0]
    assert answer.startswith(f"No result yet, and the study is still running: {words}.")
    assert not next_steps(study, verdict_of(study)), "the folder is locked"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"learning_rate": 1e-5, "optimizer": "lamb", "num_workers": 2, "epsilon": 1e-8},
        {"objective": {"kind": "best_at_budget", "max_train_seconds": 3.0}},
        {"dataset": {"name": "csv", "path": "/a b/it's.csv", "label": "Größe"}},
        {"workload": "own:Class", "schedule": "cosine", "warmup_epochs": 2.0},
    ],
)
def test_the_printed_command_reproduces_the_spec(tmp_path, changes):
    content = RunSpec(objective=Objective(target=0.9, hold=2)).document() | changes
    spec = RunSpec.model_validate(content)
    arguments = shlex.split(shlex.join(arguments_of(spec)))
    assert read_spec(options_given("train", arguments)) == spec


def test_the_command_uses_best_yaml_if_it_matches(tmp_path):
    lines = [run_line("0000", 2.0), run_line("0001", 1.0, num_workers=4)]
    study = results_folder(tmp_path, lines)
    assert "best.yaml" not in study.best.command
    (tmp_path / "best.yaml").write_text(to_yaml(study.best.spec.complete()))
    assert study.best.command.endswith(f" {tmp_path / 'best.yaml'}")
    assert study.cheapest.trial == "0000"
    assert "best.yaml" not in study.cheapest.command


@pytest.mark.usefixtures("elsewhere")
def test_training_an_invalid_winner_is_refused_before_anything_starts(tmp_path):
    spec = {"dataset": {"name": "digits"}, "epochs": 1}
    objective = Objective(kind="best_at_budget", max_train_seconds=2.0)
    lines = [run_line("0000", objective=objective, **spec)]
    best = results_folder(tmp_path / "study", lines, objective=objective).best
    with refused(ErrorCode.USER_CODE, "nowhere"):
        best.train(out=tmp_path / "no", workload="nowhere:Model", say=False)
    with refused(ErrorCode.STUDY_CHANGED, tmp_path / "study"):
        best.train(out=tmp_path / "study")


def test_figures_are_methods_of_plot(tmp_path):
    study = results_folder(tmp_path, [*curve("0000", [0.5, 0.92]), run_line("0000", 2.0)])
    assert {"curves", "ledger", "pareto"} <= set(dir(study.plot))
    assert study.plot.curves().axes
    assert not hasattr(study.plot, "nonsense")
    empty = results_folder(tmp_path / "empty", [])
    assert "curves" not in dir(empty.plot)
    with refused(ErrorCode.NO_RESULT, "study.plot.curves", empty.place):
        empty.plot.curves()
