"""Writes the results of a benchmark, with the machine and the versions of libraries."""

import os
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
    write_lines(file, [f"# {title}", "", about, "", *lines])


def write_lines(file: Path, lines: Sequence[str]) -> None:
    """Print lines and write them to a file."""
    text = "\n".join(lines) + "\n"
    print(text, end="")
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def conditions() -> str:
    """Return the processor, its cores, their load and the versions of libraries on one line."""
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return f"{machine()['processor']}, {machine()['cores']} cores, load {load}, {versions()}"
