"""Metrics that are called as libraries print them: in tables, sentences and on the page."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

import raybench
from raybench.commands import cli
from raybench.results.records import read_study
from raybench.runs.preflight import check_task
from raybench.spec.errors import UserError
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = ["val/acc", "metrics/mAP50-95(B)", "Top1.acc [%] {x}: <b>$y$", "valid_0's AUC"]


def renamed(folder: Path, fixture: str, name: str) -> Path:
    """A study of the fixtures that is judged by a metric of that name."""
    shutil.copytree(FIXTURES / fixture, folder)
    naming = {"metric": name, "direction": "max", "is_share": True}
    study = yaml.safe_load((folder / "study.yaml").read_text())
    study["study"]["objective"] |= naming
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    lines = []
    for line in map(json.loads, (folder / "records.jsonl").read_text().splitlines()):
        if "spec" in line:
            line["spec"]["objective"] = line["spec"].get("objective", {}) | naming
        lines.append(json.dumps(line))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.usefixtures("one_picture")
@pytest.mark.parametrize("name", NAMES)
def test_a_metric_is_shown_as_it_is_called(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = renamed(tmp_path / "study", "digits_race", name)
    assert read_study(folder / "study.yaml")["study"]["objective"]["metric"] == name
    study = raybench.load(folder)
    assert f"best_{name}" in study.trials
    assert name in study.curves
    assert cli.main(["report", str(folder)]) == 0
    assert f"trials to {name} 95 %" in re.sub(r"\s+", " ", capsys.readouterr().out)
    with (folder / "trials.csv").open() as file:
        assert f"best_{name}" in next(csv.reader(file))
    page = (folder / "report.html").read_text()
    assert name in page or "&lt;b&gt;$y$" in page
    assert "<b>$y$" not in page


def test_names_that_no_table_can_have_are_refused() -> None:
    for name in ("", " acc", "a\nb", "samples", "x" * 81):
        objective = Objective(metric=name, direction="max", target=0.9)
        spec = RunSpec(workload="$ true", objective=objective)
        with pytest.raises(UserError, match=r"objective\.metric: "):
            check_task(spec, ["python"])
