"""`python -m raybench.report DIR`: rebuild tables and pictures of a results folder, print them."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from raybench import cli
from raybench.results.console import make_console, say
from raybench.results.export import export
from raybench.results.files import StudyFiles
from raybench.results.load import StudyResults, load
from raybench.results.place import is_url
from raybench.results.plots import write_plots
from raybench.results.remote import publish
from raybench.results.show import show


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench report", description=__doc__)
    result.add_argument("folder", metavar="DIR", help="a results folder, or the URL of one")
    result.add_argument("--verbose", action="store_true", help="print every table")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    return cli.run_command(lambda: report(options.folder, verbose=options.verbose))


def report(place: str | Path, *, verbose: bool = False) -> int:
    """Write the derived files anew from the records, draw, and print the last screen: one of SCREEN
    lines, or with `verbose` all tables.

    A study that is running may be reported on: its records are read, never written. Of a URL the
    files are written below it, too, unless a driver is there, which writes them itself; who may
    only read there gets them in the local folder.
    """
    results = load(place)
    if results.is_scaling:
        return _report_scaling(place, results)
    # Not a Store: the study may be running, and its records are not ours.
    tables = export(results, StudyFiles(results.folder))
    plots = write_plots(results, results.folder)
    console = make_console(sys.stdout)
    show(console, results, plots=plots, verbose=verbose)
    if is_url(place) and (why := publish(str(place), results.folder, [*tables, *plots])):
        say(console, why)
    return cli.DONE


def _report_scaling(place: str | Path, results: StudyResults) -> int:
    """Do the same for a scaling study."""
    from raybench.studies.report import ScalingReport

    report = ScalingReport.of(results)
    written = report.write(StudyFiles(results.folder))
    console = make_console(sys.stdout)
    report.show(console, written=written)
    if is_url(place) and (why := publish(str(place), results.folder, written)):
        say(console, why)
    return cli.DONE


if __name__ == "__main__":
    sys.exit(main())
