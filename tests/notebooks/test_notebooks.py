"""The shipped notebook runs on the stored study, without Ray and without a framework.

Its committed outputs are made by this file: `python tests/notebooks/test_tune_results_notebook.py`.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "tune_results.ipynb"
STUDY = ROOT / "tests" / "fixtures" / "digits_study"
CHECK = "import sys; print(sorted({'ray', 'torch', 'tensorflow', 'keras'} & set(sys.modules)))"


class ThisPython(KernelSpecManager):
    """Starts kernels in the interpreter of the test, whatever kernels are installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


class ThisPythonsKernels(AsyncKernelManager):
    def __init__(self, **options: Any) -> None:
        super().__init__(kernel_spec_manager=ThisPython(), **options)


def execute(notebook: NotebookNode, *, folder: Path, study: str) -> NotebookNode:
    """Run all cells in place, in `folder`; no times and no machine in what is kept."""
    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisPythonsKernels,  # made and ended by the client
        timeout=120,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | {"RAYBENCH_STUDY": study})
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def outputs(notebook: NotebookNode) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


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


@pytest.fixture(scope="module")
def committed() -> NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    folder = tmp_path_factory.mktemp("notebook")
    shutil.copy(NOTEBOOK, folder)
    shutil.copytree(STUDY, folder / STUDY.name)
    notebook = nbformat.read(folder / NOTEBOOK.name, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    notebook.cells.append(nbformat.v4.new_code_cell(CHECK))
    return execute(notebook, folder=folder, study=STUDY.name)


def test_neither_ray_nor_a_framework_is_imported(executed: NotebookNode) -> None:
    assert printed(executed)[-1].strip() == "[]"


def test_figures_and_tables_come_out(executed: NotebookNode) -> None:
    found = [set(output.get("data", {})) for output in outputs(executed)]
    assert sum("image/png" in data for data in found) == 4
    assert sum("text/html" in data for data in found) == 5
    assert not [output for output in outputs(executed) if output.get("name") == "stderr"]


def test_verdict_names_the_confirmed_winner(executed: NotebookNode) -> None:
    assert "Fastest and cheapest: torch 2x64 adam 0.0109 (trial 0016)" in "".join(printed(executed))


def test_committed_outputs_are_those_of_the_committed_cells(
    committed: NotebookNode, executed: NotebookNode
) -> None:
    assert [cell.source for cell in committed.cells] == [
        cell.source for cell in executed.cells[:-1]
    ]
    assert kinds(committed) == kinds(executed)[:-1]
    assert printed(committed) == printed(executed)[:-1]


def test_committed_outputs_tell_nothing_of_the_machine_that_made_them(
    committed: NotebookNode,
) -> None:
    text = NOTEBOOK.read_text()
    for private in ("/home/", "/root/", "/tmp/", "/work/", "/Users/", "site-packages"):
        assert private not in text
    assert "execution" not in str([cell.metadata for cell in committed.cells])


if __name__ == "__main__":
    study = f"../{STUDY.relative_to(ROOT).as_posix()}"
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.write(execute(fresh, folder=NOTEBOOK.parent, study=study), NOTEBOOK)
