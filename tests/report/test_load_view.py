"""The repr of a loaded study, its winner and its figures, for complete and incomplete studies."""

import platform
import shlex
from pathlib import Path
from typing import Any

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


def odd_studies(folder):
    """Yield (name, study) of complete, empty, failed and damaged studies."""
    message = {"message": f"broke at {MARKUP} Größe 日本"}
    failed = [run_line(f"{n:04d}", failure="oom") | message for n in range(2)]
    reached = [*curve("0000", [0.5, 0.92]), run_line("0000", 2.0)]
    budget = Objective(kind="best_at_budget", max_train_seconds=7.0)
    yield "empty", results_folder(folder / "empty", [])
    yield "failures", results_folder(folder / "failures", failed)
    yield "missed", results_folder(folder / "missed", [*curve("0000", [0.5]), run_line("0000")])
    yield "one", results_folder(folder / MARKUP.replace("/", "") / "日本", reached)
    lines = [run_line(f"{n:04d}", objective=budget, best_value=0.5 + n / 100) for n in range(3)]
    yield "budget", results_folder(folder / "budget", lines, objective=budget)
    nan = [line | {"value": None, "train_loss": None} for line in curve("0000", [0.1])]
    yield "nan", results_folder(folder / "nan", [*nan, run_line("0000", failure="nan")])
    torn = results_folder(folder / "torn", reached).folder
    with (torn / RECORDS_FILE).open("a") as file:
        file.write('{"kind": "run", "tri')
    yield "torn", load(torn)
    yield "trained", results_folder(folder / "trained", reached, study={"run": True})


def test_every_kind_of_folder_is_shown_or_explained(tmp_path):
    for name, study in odd_studies(tmp_path):
        (first, *_) = study.answer
        assert repr(study).startswith(first)
        html = ParsedPage(study._repr_html_())
        assert html.text.startswith(first.replace("  ", " "))
        assert ("PyTorch on 1 worker" in first) == (name in ("missed", "one", "budget", "torn"))
        assert ("1.95 s" in first) == (name in ("one", "torn"))
        assert "script" not in html.tags
        for what in ("winners", "confirmed", "configurations", "verdict", "importance"):
            getattr(study, what)
        for what in ("best_at_every_budget", "ledger"):
            getattr(study, what)()  # must not raise
        for what in ("best", "cheapest"):
            if name in ("one", "torn", "budget", "trained"):
                assert getattr(study, what).spec in study.specs.values()
            else:
                with refused(ErrorCode.NO_RESULT, study.place):
                    getattr(study, what)


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
def test_a_running_study_without_a_hit_is_not_judged(
    tmp_path: Path, line: dict[str, Any], words: str
) -> None:
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
