import pandas as pd
import pytest

from raybench.report.export import export
from raybench.results.store import StudyFiles
from raybench.spec.documents import read_mapping, validate
from raybench.spec.run import RunSpec
from tests.made_results import confirmed_trial, curve, results_folder, run_line

WIDE = {"num_workers": 4, "optimizer": "lamb", "learning_rate": 1e-4, "framework": "tensorflow"}
NARROW = {"num_workers": 1, "optimizer": "lars", "learning_rate": 2.5}


def write(folder, lines, **options):
    results = results_folder(folder, lines, **options)
    export(results, StudyFiles(folder))
    return results


@pytest.fixture
def exported(tmp_path):
    lines = [
        *curve("0000", [0.5, 0.9]),
        *confirmed_trial("0000", [3.0] * 3, **WIDE),
        *curve("0001", [0.9]),
        *confirmed_trial("0001", [6.0] * 3, **NARROW),
    ]
    return write(tmp_path, lines)


@pytest.mark.parametrize(
    ("name", "trial", "what", "defaults"),
    [
        ("best.yaml", "0000", "fastest", (None, 0.999, 1e-6)),
        ("cheapest.yaml", "0001", "cheap", (0.9, None, None)),
    ],
)
def test_winners_are_complete_run_specs(exported, name, trial, what, defaults):
    path = exported.folder / name
    spec = validate(RunSpec, read_mapping(path), str(path))
    assert spec.without_defaults() == exported.specs[trial].without_defaults()
    assert (spec.momentum, spec.beta2, spec.epsilon) == defaults, "defaults are written as numbers"
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert comment[0].startswith(f"# {what}")
    assert any("confirmed by 3 of 3" in line for line in comment)
    assert comment[-1].endswith("raybench.train THIS_FILE")


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "'=1", "''@x", " =1", "\t=1", "\r=1", "\uff1d1"]


def test_exported_cells_are_never_formulas(tmp_path):
    lines = [
        run_line(f"{number:04d}", failure="error", workload=text) | {"message": text}
        for number, text in enumerate([*FORMULAS, "'", "plain", "1e5", "nan", "NA", 'a,"b"'])
    ]
    lines += [run_line("0099", 2.0, weight_decay=0.1), *curve("=1", [0.5]), run_line("=1", 2.0)]
    space = {"weight_decay": {}, "schedule": ["constant", "cosine"]}
    results = write(tmp_path, lines, study={"space": space})
    plain = pd.read_csv(tmp_path / "trials.csv", dtype=str, keep_default_na=False)
    for name in results.trials.select_dtypes(exclude="number").columns.intersection(plain.columns):
        for cell in plain[name]:
            assert not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d")), (name, cell)
    scores = pd.read_csv(tmp_path / "trials.csv")["score"]
    assert list(scores) == pytest.approx(results.trials["score"]), "negative values stay numbers"
    assert pd.read_csv(tmp_path / "curves.csv")["accuracy"].tolist() == [0.5]
