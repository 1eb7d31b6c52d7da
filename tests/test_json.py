"""`--json`: one document of the published schema on stdout, whatever a command ends with."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from raybench.commands import cli
from raybench.spec.objective import Objective
from tests.fitted_once import fitted_once as fitted_once
from tests.fitted_once import without_pollux as without_pollux
from tests.made_results import results_folder, run_line

pytestmark = pytest.mark.usefixtures("one_picture", "fitted_once", "without_pollux")
Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "docs/answer.schema.json").read_text())
FIXTURES = ROOT / "tests/fixtures"


def asked(capsys: Capture, *words: object, code: int = 0) -> dict[str, Any]:
    """Run a command with `--json`; return its document, which is all that it printed."""
    try:
        found = cli.main([*map(str, words), "--json"])
    except SystemExit as ended:  # of an argument that there is not
        found = int(ended.code or 0)
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert (found, document["exit_code"], document["command"]) == (code, code, words[0])
    return document


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, folder / name))


def test_of_a_search_it_has_the_winners_as_its_files_do(capsys: Capture, tmp_path: Path) -> None:
    found = asked(capsys, "report", copied("digits_race", tmp_path))
    fastest, cheapest, *tied = found["configurations"]
    assert [fastest["role"], cheapest["role"]] == ["fastest", "cheapest"]
    assert {one["role"] for one in tied} == {"tied"}
    assert fastest["spec"]["learning_rate"] == pytest.approx(0.0145155975492)
    assert fastest["low_s"] < fastest["seconds"] < fastest["high_s"]
    assert fastest["configuration"] == "tensorflow 1x64 adam 0.0145"
    assert "0.55 s" in found["answer"][0]
    assert any("best.yaml" in step["do"] for step in found["next"])
    assert not found["details"]["is_running"]


def test_of_a_scaling_study_it_has_the_cells(capsys: Capture, tmp_path: Path) -> None:
    found = asked(capsys, "report", copied("scaling", tmp_path))
    cells = found["details"]["cells"]
    assert len(cells) > 1
    assert all(cell["samples_per_s"] > 0 for cell in cells)


def test_of_a_budget_it_has_the_value(capsys: Capture, tmp_path: Path) -> None:
    budget = Objective(kind="best_at_budget", max_train_seconds=60.0)
    results_folder(tmp_path, [run_line("0000", objective=budget)], objective=budget)
    best = asked(capsys, "report", tmp_path)["configurations"][0]
    assert (best["value"], best["seconds"], best["is_confirmed"]) == (0.8, None, False)


def test_what_has_no_answer_yet_is_a_document(capsys: Capture, tmp_path: Path) -> None:
    results_folder(tmp_path / "none", [])
    none = asked(capsys, "report", tmp_path / "none")
    assert (len(none["answer"]), none["configurations"]) == (1, [])
    results_folder(tmp_path / "failed", [run_line("0000", failure="oom")])
    found = asked(capsys, "report", tmp_path / "failed")
    assert (found["details"]["failed"], found["configurations"]) == (1, [])


def test_a_diagnosis_is_read_again(capsys: Capture, tmp_path: Path) -> None:
    results_folder(tmp_path, [run_line("as_it_is-0", role="scaling")])
    (tmp_path / "diagnosis.yaml").write_text("{sentence: It computes., verdict: compute}")
    found = asked(capsys, "report", tmp_path)
    assert (found["answer"], found["details"]["verdict"]) == (["It computes."], "compute")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("tune", "digits", "--trials", "7"), ("search", "trials", 7)),
        (("train", "--set", "dataset.name=digits"), ("dataset", "name", "digits")),
        (("diagnose", "--seed", "3"), ("seed", None, 3)),
        (("scale", "--set", "repeats=2", "--set", "base.dataset=digits"), ("repeats", None, 2)),
    ],
    ids=lambda one: one[0],
)
def test_a_plan_is_what_would_run(
    words: tuple[str, ...], key: tuple[str, str | None, Any], capsys: Capture
) -> None:
    plan = asked(capsys, *words, "--dry-run")["details"]["plan"]
    part = plan[key[0]]
    assert (part if key[1] is None else part[key[1]]) == key[2]


@pytest.mark.parametrize("command", ["train", "scale", "compare", "diagnose", "tune"])
def test_a_plan_has_the_warnings(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    for module in ("compare", "preflight", "scale", "train"):
        name = f"raybench.runs.{module}.check_starts"
        monkeypatch.setattr(name, lambda *specs: ["A sentence of warning."])
    words: list[object] = []
    if command == "compare":
        content = "{dataset: digits, objective: {target: 0.5}}"
        words = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
        for file in words:
            Path(str(file)).write_text(content)
    found = asked(capsys, command, *words, "--dry-run")["answer"]
    assert ("A sentence of warning." in found) == (command != "diagnose")


def test_a_fit_has_its_predictions(capsys: Capture, tmp_path: Path) -> None:
    rows = ["1,1,32,0.05", "2,1,32,0.06", "4,1,32,0.065", "1,1,64,0.08"]
    file = tmp_path / "measured.csv"
    file.write_text("\n".join(["num_workers,num_nodes,batch_size_per_worker,step_s", *rows]))
    found = asked(capsys, "scale", "--fit", file, "--predict", "8")
    assert any("Leave-one-out error" in one for one in found["answer"])
    rows_of_8 = found["details"]["predictions"]
    assert {one["batch_size_per_worker"] for one in rows_of_8} == {32, 64}
    assert all(one["low_s"] < one["step_s"] < one["high_s"] for one in rows_of_8)


def test_data_are_looked_at(capsys: Capture, tmp_path: Path) -> None:
    rows = [f"{number},{number % 7},{'ab'[number % 2]}" for number in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y,kind", *rows]))
    out = tmp_path / "space.yaml"
    found = asked(capsys, "init", tmp_path / "table.csv", "--label", "kind", "--out", out)
    assert found["details"] == {"wrote": str(out)}
    assert "classification" in found["answer"][-1]
    assert "entries" in asked(capsys, "data")["details"]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("tune", "nowhere.yaml"), "not_found", "nowhere.yaml"),
        (("scale", "--frobnicate"), "invalid_option", "--frobnicate"),
        (("tunes",), "unknown_name", "tune"),
    ],
    ids=lambda one: one[0],
)
def test_a_mistake_is_a_document_too(
    words: tuple[str, ...], code: str, part: str, capsys: Capture
) -> None:
    error = asked(capsys, *words, code=2)["error"]
    assert error["kind"] == "user"
    assert error["code"] == code
    assert part in error["message"]
