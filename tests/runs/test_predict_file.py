"""`--predict FILE.csv` of a study: read before it runs, matched with its series after it."""

import sys

import pytest
from rich.console import Console

from raybench.report.scaling_report import ScalingReport
from raybench.report.study import StudyResults, load
from raybench.results.store import StudyFiles
from raybench.scaling.fit_command import check_predict
from raybench.scaling.fits import fit_study, not_measured
from raybench.spec.errors import UserError
from tests.runs.made_up import law, run_of, study_of, write

pytestmark = pytest.mark.usefixtures("without_pollux")


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> StudyResults:
    study = study_of(num_workers=[1, 2, 4], batch_sizes=[32, 64])
    folder = tmp_path_factory.mktemp("study") / "made_up"
    return load(write(folder, study, *run_of(study, law)))


PAIRS = """model,gpu_type,num_workers,num_nodes,batch_size_per_worker
"torch, mnist_small",,8,1,64
,,8,1,32
,A100,16,1,32
bert,,8,1,64
bert,,16,1,64
"""


def test_a_file_that_names_pairs_is_matched_with_what_was_measured(results, tmp_path) -> None:
    asked = tmp_path / "asked.csv"
    asked.write_text(PAIRS)
    check_predict(str(asked))  # nothing is known yet of what will be measured
    (fitted,) = fit_study(results, predict=str(asked))
    assert [(c.num_workers, c.batch_size_per_worker) for c in fitted.asked] == [(8, 64), (8, 32)]
    lines = not_measured(results, str(asked))
    assert len(lines) == 2, "a pair is named once"
    assert "row 4: A100 was not measured" in lines[0]
    assert "row 5: bert was not measured" in lines[1]
    assert lines[1].endswith("has torch, mnist_small.")


def test_a_file_without_pairs_or_with_empty_ones_is_for_every_series(results, tmp_path) -> None:
    plain, empty = tmp_path / "plain.csv", tmp_path / "empty.csv"
    plain.write_text("num_workers,num_nodes,batch_size_per_worker\n8,1,64\n")
    empty.write_text("model,num_workers,num_nodes,batch_size_per_worker\n,8,1,64\n")
    for asked in (plain, empty):
        check_predict(str(asked))
        (fitted,) = fit_study(results, predict=str(asked))
        assert [cell.num_workers for cell in fitted.asked] == [8]
        assert not_measured(results, str(asked)) == []


def test_a_file_of_which_nothing_was_measured_is_said_and_costs_no_results(
    results, tmp_path, capsys
) -> None:
    asked = tmp_path / "asked.csv"
    asked.write_text("model,num_workers,num_nodes,batch_size_per_worker\nbert,8,1,64\n")
    report = ScalingReport.of(results, str(asked))
    console = Console(file=sys.stdout, width=200)
    report.show(console)
    assert "Not predicted:" in capsys.readouterr().out
    report.write(StudyFiles(tmp_path))
    assert (tmp_path / "scaling.csv").is_file()
    assert not (tmp_path / "predictions.csv").exists()


@pytest.mark.parametrize("row", ["0,1,64", "1,2,64", "x,1,64"])
def test_a_wrong_row_is_refused_before_anything_runs(row: str, tmp_path) -> None:
    asked = tmp_path / "asked.csv"
    asked.write_text(f"model,num_workers,num_nodes,batch_size_per_worker\nbert,{row}\n")
    with pytest.raises(UserError, match="row 2: num_"):
        check_predict(str(asked))
