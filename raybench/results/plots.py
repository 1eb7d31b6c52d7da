"""A study's figures as PNG files: for `raybench report --png`, and for the documentation."""

import io
from pathlib import Path

from matplotlib.figure import Figure

from raybench.results.figures.kinds import kinds_of
from raybench.results.load import StudyResults
from raybench.results.store import StudyFiles

DPI = 150
"""Of a picture: as sharp as the page's on a screen of today."""


def write_plots(results: StudyResults, folder: Path) -> list[Path]:
    """Draw every figure that a study has something for into its folder; return the files."""
    files, written = StudyFiles(folder), []
    for name, kind in kinds_of(results).items():
        if kind.applies(results):
            file = f"{results.metric.name if name == 'values' else name}.png"
            files.write_bytes(file, png(kind.draw(results)))
            written.append(folder / file)
    return written


def png(figure: Figure) -> bytes:
    """Return a figure as a picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    return picture.getvalue()
