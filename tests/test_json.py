"""`--json`: one document of the published schema on stdout, for every outcome of a command."""

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from raybench.cluster.session_files import Capture
from raybench.commands import cli
from raybench.report.answer import summary_of
from raybench.spec.objective import Objective
from tests.fitted_once import fitted_once as fitted_once
from tests.fitted_once import without_pollux as without_pollux
from tests.made_results import results_folder, run_line

pytestmark = pytest.mark.usefixtures("one_picture", "fitted_once", "without_pollux")
ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "docs/answer.schema.json").read_text())
FIXTURES = ROOT / "tests/fixtures"


def run_json(capsys: Capture, *words: object, code: int = 0) -> dict[str, Any]:
    """Run a command with `--json`; return its document, the only output."""
    try:
        exit_code = cli.main([*map(str, words), "--json"])
    except SystemExit as ended:  # an unknown argument
        exit_code = int(ended.code or 0)
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert (exit_code, document["exit_code"], document["command"]) == (code, code, words[0])
    return document


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / name, folder / name))


def test_json_of_a_search_has_the_winners(capsys, tmp_path):
    document = run_json(capsys, "report", copied("digits_race", tmp_path))
    fastest, cheapest, *tied = document["configurations"]
    assert [fastest["role"], cheapest["role"]] == ["fastest", "cheapest"]
    assert {row["role"] for row in tied} == {"tied"}
    assert fastest["spec"]["learning_rate"] == pytest.approx(0.0145155975492)
    assert fastest["low_s"] < fastest["seconds"] < fastest["high_s"]
    assert fastest["configuration"] == "tensorflow 1x64 adam 0.0145"
    assert "0.55 s" in document["answer"][0]
    assert any("best.yaml" in step["do"] for step in document["next"])
    assert not document["details"]["is_running"]


def test_json_of_a_scaling_study_has_the_cells(capsys, tmp_path):
    document = run_json(capsys, "report", copied("scaling", tmp_path))
    cells = document["details"]["cells"]
    assert len(cells) > 1
    assert all(cell["samples_per_s"] > 0 for cell in cells)


def test_json_at_a_budget_has_the_value(capsys, tmp_path):
    budget = Objective(kind="best_at_budget", max_train_seconds=60.0)
    results_folder(tmp_path, [run_line("0000", objective=budget)], objective=budget)
    best = run_json(capsys, "report", tmp_path)["configurations"][0]
    assert (best["value"], best["seconds"], best["is_confirmed"]) == (0.8, None, False)


def test_json_of_a_study_without_an_answer_is_valid(capsys, tmp_path):
    results_folder(tmp_path / "none", [])
    empty = run_json(capsys, "report", tmp_path / "none")
    assert (len(empty["answer"]), empty["configurations"]) == (1, [])
    results_folder(tmp_path / "failed", [run_line("0000", failure="oom")])
    failed = run_json(capsys, "report", tmp_path / "failed")
    assert (failed["details"]["failed"], failed["configurations"]) == (1, [])


def test_json_of_a_diagnosis_has_its_verdict(capsys, tmp_path):
    probes = [run_line("as_it_is-0", role="scaling")]
    results = results_folder(tmp_path, probes, study={"diagnosis": {"framework": "torch"}})
    assert "did not end" in summary_of(results).lines[0]
    (tmp_path / "diagnosis.yaml").write_text("{sentence: It computes., verdict: compute}")
    document = run_json(capsys, "report", tmp_path)
    assert (document["answer"], document["details"]["verdict"]) == (["It computes."], "compute")
    assert summary_of(results).lines == ["It computes."]


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (("tune", "digits", "--trials", "7"), "search", {"trials": 7}),
        (("train", "--set", "dataset.name=digits"), "dataset", {"name": "digits"}),
        (("diagnose", "--seed", "3"), "seed", 3),
        (("scale", "--set", "repeats=2", "--set", "base.dataset=digits"), "repeats", 2),
        (("compare", "a.yaml", "b.yaml", "--runs", "8"), "most_pairs", 8),
    ],
    ids=lambda argument: argument[0] if isinstance(argument, tuple) else "",
)
def test_json_of_a_dry_run_has_the_plan_and_the_warnings(
    words, key, value, monkeypatch, capsys, tmp_path
):
    for module in ("runs.compare", "runs.scale", "runs.train", "search.preflight"):
        name = f"raybench.{module}.check_starts"
        monkeypatch.setattr(name, lambda *specs: ["A sentence of warning."])
    monkeypatch.chdir(tmp_path)
    for file in ("a.yaml", "b.yaml"):
        Path(file).write_text("{dataset: digits, objective: {target: 0.5}}")
    document = run_json(capsys, *words, "--dry-run")
    found = document["details"]["plan"][key]
    assert found.items() >= value.items() if isinstance(value, dict) else found == value
    assert ("A sentence of warning." in document["answer"]) == (words[0] != "diagnose")


def test_json_of_a_fit_has_its_predictions(capsys, tmp_path):
    rows = ["1,1,32,0.05", "2,1,32,0.06", "4,1,32,0.065", "1,1,64,0.08"]
    file = tmp_path / "measured.csv"
    file.write_text("\n".join(["num_workers,num_nodes,batch_size_per_worker,step_s", *rows]))
    document = run_json(capsys, "scale", "--fit", file, "--predict", "8")
    assert any("Leave-one-out error" in sentence for sentence in document["answer"])
    predictions = document["details"]["predictions"]
    assert {row["batch_size_per_worker"] for row in predictions} == {32, 64}
    assert all(row["low_s"] < row["step_s"] < row["high_s"] for row in predictions)


def test_json_of_init_and_data_is_valid(capsys, tmp_path):
    rows = [f"{number},{number % 7},{'ab'[number % 2]}" for number in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y,kind", *rows]))
    out = tmp_path / "space.yaml"
    document = run_json(capsys, "init", tmp_path / "table.csv", "--label", "kind", "--out", out)
    assert document["details"] == {"wrote": str(out)}
    assert "classification" in document["answer"][-1]
    assert "entries" in run_json(capsys, "data")["details"]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("tune", "nowhere.yaml"), "not_found", "nowhere.yaml"),
        (("scale", "--frobnicate"), "invalid_option", "--frobnicate"),
        (("tunes",), "unknown_name", "tune"),
    ],
    ids=lambda argument: argument[0],
)
def test_json_of_an_error_has_its_code(words, code, part, capsys):
    error = run_json(capsys, *words, code=2)["error"]
    assert error["kind"] == "user"
    assert error["code"] == code
    assert part in error["message"]
