"""The shipped notebooks run on the stored studies, without Ray and without a framework.

Their committed outputs are written by `python tests/notebooks/executing.py`.
"""

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbformat import NotebookNode

import raybench
from raybench.spec.errors import UserError
from tests.notebooks.executing import FOLDER, STUDY_VARIABLE, execute, outputs

ROOT = FOLDER.parent
FIXTURES = ROOT / "tests" / "fixtures"
NAMES = ("tune_results", "scaling", "seed_studies")
CHECK = "import sys; print(sorted({'ray', 'torch', 'tensorflow', 'keras'} & set(sys.modules)))"
BELOW = re.compile(r"^\s*(?:from|import)\s+raybench\.", re.MULTILINE)
CODE = re.compile(r"^```python$(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def committed(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def executions() -> Iterator[dict[str, Future[NotebookNode]]]:
    """Each notebook executed in a new kernel, all at the same time: most of it is imports."""
    with ThreadPoolExecutor() as pool:
        futures = {}
        for name in NAMES:
            notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
            notebook.cells.append(nbformat.v4.new_code_cell(CHECK))
            futures[name] = pool.submit(execute, notebook)
        yield futures


@pytest.fixture(scope="module")
def executed(name: str, executions: dict[str, Future[NotebookNode]]) -> NotebookNode:
    return executions[name].result()


def kinds(notebook: NotebookNode) -> list[list[str]]:
    return [
        [
            output.get("name") or ",".join(sorted(output.get("data", {})))
            for output in cell.get("outputs", [])
        ]
        for cell in notebook.cells
    ]


def shown(notebook: NotebookNode) -> list[str]:
    """Return the texts that cells print or display."""
    texts = [output.get("text") or output["data"].get("text/plain") for output in outputs(notebook)]
    return [text for text in texts if text is not None]


def test_notebooks_and_docs_import_only_the_public_package():
    codes = {
        path: "\n".join(cell.source for cell in nbformat.read(path, 4).cells)
        for path in FOLDER.glob("*.ipynb")
    }
    pages: list[Path] = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    codes |= {path: "\n".join(CODE.findall(path.read_text())) for path in pages}
    codes |= {path: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    assert [path.name for path, code in codes.items() if BELOW.search(code)] == []
    assert BELOW.search("x\nfrom raybench.report import x"), "the pattern matches such an import"


def test_neither_ray_nor_a_framework_is_imported(executed):
    assert shown(executed)[-1].strip() == "[]"
    assert not [output for output in outputs(executed) if output.get("name") == "stderr"]


def test_committed_outputs_match_the_committed_cells(committed, executed):
    assert kinds(committed) == kinds(executed)[:-1]
    assert shown(committed) == shown(executed)[:-1]
    tables = [
        [output["data"].get("text/html") for output in outputs(notebook) if "data" in output]
        for notebook in (committed, executed)
    ]
    assert tables[0] == tables[1]


def test_committed_outputs_reveal_nothing_about_the_machine(name, committed):
    text = (FOLDER / f"{name}.ipynb").read_text()
    for private in ("/home/", "/root/", "/tmp/", "/work/", "/Users/", "site-packages"):
        assert private not in text
    assert "execution" not in str([cell.metadata for cell in committed.cells])


def run_here(name: str) -> None:
    """Run all cells in this process and raise their errors."""
    names: dict[str, Any] = {"display": lambda *values: None}
    # Cells change these options.
    with pd.option_context("display.precision", 6, "display.max_colwidth", 50):
        for cell in nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells:
            if cell.cell_type == "code":
                lines = [line for line in cell.source.splitlines() if not line.startswith("%")]
                exec("\n".join(lines), names)


@pytest.mark.parametrize(
    ("name", "study"), [("tune_results", "digits_study"), ("scaling", "batch_size_vs_workers")]
)
def test_the_study_of_the_environment_variable_is_opened(monkeypatch, capsys, name, study):
    monkeypatch.setenv(STUDY_VARIABLE, str(FIXTURES / study))
    run_here(name)
    assert f"Opened: {FIXTURES / study}\n" in capsys.readouterr().out


def test_claims_of_studies_without_runs_are_the_published_claims():
    published = raybench.published_claims()
    assert len(published) == 5
    for table in published.values():
        assert len(table) > 3
        assert set(table["holds"]) == {"not measured"}
    run = raybench.load(FIXTURES / "batch_size_vs_workers").claims
    unrun = published["batch_size_vs_workers"]
    assert run[["claim", "published"]].equals(unrun[["claim", "published"]])
    assert set(run["holds"]) == {"yes", "no", "not measured"}
    with pytest.raises(UserError, match="scaling"):
        _ = raybench.load(FIXTURES / "scaling").claims
