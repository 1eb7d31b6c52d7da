"""The pictures that a study leaves in its folder; the figures are those of `results.figures`."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from raybench.results.figures.curves import curves_figure as curves_figure
from raybench.results.figures.curves import repeats_figure as repeats_figure
from raybench.results.figures.pareto import pareto_figure as pareto_figure
from raybench.results.figures.timeline import ledger_figure as ledger_figure
from raybench.results.load import StudyResults
from raybench.results.store import StudyFiles

DPI = 150
"""Of a picture: as sharp as the page's on a screen of today."""
WRITTEN = {"curves": curves_figure, "pareto": pareto_figure, "ledger": ledger_figure}
"""Those that stand in the folder; `docs/pictures.py` writes all, the page has them, too."""


def write_plots(results: StudyResults, folder: Path) -> list[Path]:
    """Draw a study's figures into its folder and return their files."""
    files = StudyFiles(folder)
    written = []
    for name, draw in WRITTEN.items():
        files.write_bytes(f"{name}.png", png(draw(results)))
        written.append(folder / f"{name}.png")
    return written


def png(figure: Figure) -> bytes:
    """Return a figure as a picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    return picture.getvalue()
