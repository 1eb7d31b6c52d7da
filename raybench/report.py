"""`python -m raybench.report DIR`: rebuild tables and pictures of a results folder, print them."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from raybench import cli
from raybench.results.export import export
from raybench.results.load import load
from raybench.results.plots import curves_figure, ledger_figure, pareto_figure
from raybench.results.show import show
from raybench.results.store import Store


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench report", description=__doc__)
    result.add_argument("folder", type=Path, metavar="DIR", help="a results folder")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    return cli.run_command(lambda: report(options.folder))


def report(folder: Path) -> int:
    """Write the derived files anew from the records, draw, and print the tables."""
    results = load(folder)
    with Store(folder) as store:
        export(results, store)
    for name, figure in (
        ("curves", curves_figure(results)),
        ("pareto", pareto_figure(results)),
        ("ledger", ledger_figure(results)),
    ):
        figure.savefig(folder / f"{name}.png", dpi=100)
    show(Console(file=sys.stdout), results)
    return cli.DONE


if __name__ == "__main__":
    sys.exit(main())
