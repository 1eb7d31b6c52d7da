"""Execute the shipped notebooks and store their outputs: `python tests/notebooks/executing.py`.

Without arguments all notebooks are executed, otherwise those named.
"""

import base64
import io
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parents[2] / "notebooks"
PNG = "image/png"
STUDY_VARIABLE = "RAYBENCH_STUDY"
"""Environment variable that selects another study than the stored one."""


class ThisPython(KernelSpecManager):
    """Start kernels in the interpreter of the test, regardless of installed kernels."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name=kernel_name, language="python")


class ThisPythonsKernels(AsyncKernelManager):
    def __init__(self, **options: Any) -> None:
        super().__init__(kernel_spec_manager=ThisPython(), **options)


def execute(notebook: NotebookNode) -> NotebookNode:
    """Run all cells in place on the stored study, without timing metadata."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisPythonsKernels,  # created and ended by the client
        timeout=600,
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute(env={name: text for name, text in os.environ.items() if name != STUDY_VARIABLE})
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def outputs(notebook: NotebookNode) -> list[Any]:
    """Return the outputs of all cells."""
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def with_few_colors(png: str) -> str:
    """Return a base64 PNG reduced to 64 colors, which is a quarter of the size."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    written = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(written, format="PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def keep(path: Path) -> None:
    """Execute a notebook and write it with its outputs."""
    notebook = execute(nbformat.read(path, as_version=4))
    for output in outputs(notebook):
        if PNG in output.get("data", {}):
            output["data"][PNG] = with_few_colors(output["data"][PNG])
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        keep(FOLDER / f"{name}.ipynb")
