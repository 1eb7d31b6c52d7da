"""`python -m raybench.report DIR`: rebuild tables and pictures of a results folder, print them."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from raybench import cli
from raybench.results.console import make_console, say
from raybench.results.export import export
from raybench.results.files import StudyFiles
from raybench.results.load import StudyResults, load
from raybench.results.loggers.kinds import check_loggers
from raybench.results.loggers.processes import Loggers
from raybench.results.place import is_url
from raybench.results.plots import write_plots
from raybench.results.remote import publish
from raybench.results.show import show


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench report", description=__doc__)
    result.add_argument("folder", metavar="DIR", help="a results folder, or the URL of one")
    result.add_argument("--verbose", action="store_true", help="print every table")
    cli.add_log(result)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    return cli.run_command(lambda: report(options.folder, options.log, verbose=options.verbose))


def report(place: str | Path, tools: Sequence[str] = (), *, verbose: bool = False) -> int:
    """Write the derived files anew from the records, draw, and print the last screen: one of SCREEN
    lines, or with `verbose` all tables. Then bring to other `tools` what they lack of the study.

    A study that is running may be reported on: its records are read, never written. Of a URL the
    files are written below it, too, unless a driver is there, which writes them itself; who may
    only read there gets them in the local folder.
    """
    check_loggers(tools)
    results = load(place)
    if results.is_scaling:
        _report_scaling(place, results)
        return _log(tools, results)
    # Not a Store: the study may be running, and its records are not ours.
    tables = export(results, StudyFiles(results.folder))
    plots = write_plots(results, results.folder)
    console = make_console(sys.stdout)
    show(console, results, plots=plots, verbose=verbose)
    if is_url(place) and (why := publish(str(place), results.folder, [*tables, *plots])):
        say(console, why)
    return _log(tools, results)


def _log(tools: Sequence[str], results: StudyResults) -> int:
    """Bring to other tools what they do not have of a study; return the exit code."""
    say_it = partial(say, make_console(sys.stdout))
    with Loggers(tools, results.folder, place=results.place, say=say_it, close_s=None) as loggers:
        loggers.start()
        loggers.end()
    return cli.FAILED if loggers.has_failed else cli.DONE


def _report_scaling(place: str | Path, results: StudyResults) -> None:
    """Do the same for a scaling study."""
    from raybench.studies.report import ScalingReport

    report = ScalingReport.of(results)
    written = report.write(StudyFiles(results.folder))
    console = make_console(sys.stdout)
    report.show(console, written=written)
    if is_url(place) and (why := publish(str(place), results.folder, written)):
        say(console, why)


if __name__ == "__main__":
    sys.exit(main())
