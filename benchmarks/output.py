"""Writes the results of a benchmark, with the machine and the versions of libraries."""

from collections.abc import Sequence
from pathlib import Path

from raybench.results.store import machine, versions


def write_results(file: Path, title: str, about: str, lines: Sequence[str]) -> None:
    """Print the results of a benchmark and write them to a file.

    Args:
        file: The file.
        title: Heading.
        about: Sentence on the measurement; the processor and the versions are added.
        lines: Lines of the results.
    """
    about = f"{about} {machine()['processor']}, {versions()}."
    text = "\n".join([f"# {title}", "", about, "", *lines, ""])
    print(text)
    file.write_text(text)
