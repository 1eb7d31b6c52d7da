"""The shipped notebooks run on the stored studies, without Ray and without a framework.

Their committed outputs are made by `python tests/notebooks/executing.py`.
"""

import base64
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbformat import NotebookNode

import raybench
from raybench.report.scaling_report import claims_table, published_claims
from raybench.scaling.published import STUDIES
from raybench.spec.errors import UserError
from tests.notebooks.executing import FOLDER, PNG, STUDY_VARIABLE, execute, outputs

ROOT = FOLDER.parent
FIXTURES = ROOT / "tests" / "fixtures"
NAMES = ("tune_results", "scaling", "seed_studies")
CHECK = "import sys; print(sorted({'ray', 'torch', 'tensorflow', 'keras'} & set(sys.modules)))"
MOST_BYTES = 80_000
"""Of a committed picture."""
MOST_LINES = 5
"""Of a code cell, beside imports: what is longer belongs into the package."""
SAYS = {
    "tune_results": (
        "Opened: ../tests/fixtures/digits_race",
        "9 configurations ran again",
        "No setting lies at an end of its range.",
    ),
    "scaling": (
        "Each worker keeps its batch (weak scaling): 2 workers train 1.27 times",
        "so it may be no gain",
        "Never measured on more than one node",
        "the critical batch is about 53.2",
    ),
    "seed_studies": ("../tests/fixtures/batch_size_vs_workers",),
}
"""What each prints of its stored study, lines joined."""


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def committed(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def executed(name: str) -> NotebookNode:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CHECK))
    return execute(notebook)


def kinds(notebook: NotebookNode) -> list[list[str]]:
    return [
        [
            output.get("name") or ",".join(sorted(output.get("data", {})))
            for output in cell.get("outputs", [])
        ]
        for cell in notebook.cells
    ]


def printed(notebook: NotebookNode) -> list[str]:
    return [output["text"] for output in outputs(notebook) if output.output_type == "stream"]


def test_neither_ray_nor_a_framework_is_imported(executed: NotebookNode) -> None:
    assert printed(executed)[-1].strip() == "[]"


def test_the_story_is_told(name: str, executed: NotebookNode) -> None:
    text = " ".join(" ".join(printed(executed)).split())
    assert [sentence for sentence in SAYS[name] if sentence not in text] == []
    assert not [output for output in outputs(executed) if output.get("name") == "stderr"]


def test_committed_outputs_are_those_of_the_committed_cells(
    committed: NotebookNode, executed: NotebookNode
) -> None:
    assert kinds(committed) == kinds(executed)[:-1]
    assert printed(committed) == printed(executed)[:-1]
    tables = [
        [output["data"].get("text/html") for output in outputs(one) if "data" in output]
        for one in (committed, executed)
    ]
    assert tables[0] == tables[1]


def test_pictures_are_small_and_there(committed: NotebookNode) -> None:
    pictures = [
        base64.b64decode(output["data"][PNG])
        for output in outputs(committed)
        if PNG in output.get("data", {})
    ]
    assert pictures
    assert max(map(len, pictures)) < MOST_BYTES


def test_cells_are_thin(committed: NotebookNode) -> None:
    for cell in committed.cells:
        lines = [line for line in cell.source.splitlines() if line]
        own = [line for line in lines if not line.startswith(("import ", "from "))]
        assert cell.cell_type == "markdown" or len(own) <= MOST_LINES, cell.source


def test_committed_outputs_tell_nothing_of_the_machine_that_made_them(
    name: str, committed: NotebookNode
) -> None:
    text = (FOLDER / f"{name}.ipynb").read_text()
    for private in ("/home/", "/root/", "/tmp/", "/work/", "/Users/", "site-packages"):
        assert private not in text
    assert "execution" not in str([cell.metadata for cell in committed.cells])


def run_here(name: str) -> None:
    """Run all cells in this process; raises what a cell raises."""
    names: dict[str, Any] = {"display": lambda *values: None}
    with pd.option_context("display.precision", 6, "display.max_colwidth", 50):  # which cells set
        for cell in nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells:
            if cell.cell_type == "code":
                lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
                exec("\n".join(lines), names)


@pytest.mark.parametrize(
    ("name", "study"),
    [("tune_results", "digits_study"), ("scaling", "batch_size_vs_workers")],
)
def test_ones_own_study_is_opened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, study: str
) -> None:
    monkeypatch.setenv(STUDY_VARIABLE, str(FIXTURES / study))
    run_here(name)
    assert f"Opened: {FIXTURES / study}\n" in capsys.readouterr().out


def test_claims_of_studies_that_nobody_has_run_are_the_published_ones() -> None:
    for name in STUDIES:
        table = published_claims(name)
        assert len(table) > 3
        assert set(table["holds"]) == {"not told here"}
    run = claims_table(raybench.load(FIXTURES / "batch_size_vs_workers"))
    unrun = published_claims("batch_size_vs_workers")
    assert run[["claim", "published"]].equals(unrun[["claim", "published"]])
    assert set(run["holds"]) == {"yes", "no", "not told here"}
    with pytest.raises(UserError, match="is no named study"):
        claims_table(raybench.load(FIXTURES / "scaling"))
