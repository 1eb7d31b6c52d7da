"""`python -m raybench.report DIR`: rebuild tables and page of a results folder; print them.

Of several folders, `--compare` writes one page with all of them side by side.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from raybench.commands import cli
from raybench.loggers.processes import Loggers, check_loggers
from raybench.report.console import make_console, say
from raybench.report.export import export, write_plots
from raybench.report.page import try_page
from raybench.report.page.document import write_comparison
from raybench.report.show import show
from raybench.results.store import StudyFiles
from raybench.results.study import load
from raybench.spec.errors import Ended, UserError

COMPARISON = "compare.html"


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench report", description=__doc__)
    result.add_argument(
        "folders", metavar="DIR", nargs="+", help="a results folder, or the URL of one"
    )
    result.add_argument("--verbose", action="store_true", help="print every table")
    result.add_argument(
        "--compare", action="store_true", help="write one page of several folders side by side"
    )
    result.add_argument(
        "--out", metavar="FILE", help=f"where --compare writes it (default {COMPARISON} here)"
    )
    result.add_argument(
        "--png", action="store_true", help="write every figure as a PNG file into the folder too"
    )
    help_ = "write the runs to tensorboard, mlflow or wandb too; repeatable"
    result.add_argument("--log", action="append", default=[], metavar="TOOL", help=help_)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return parser().run(arguments, _asked)


def _asked(options: argparse.Namespace) -> Ended:
    if options.compare:
        return compare(options.folders, Path(options.out or COMPARISON))
    if options.out is not None:
        raise UserError(
            f"--out {options.out}: is of --compare; a single report is written into its folder."
        )
    if len(options.folders) > 1:
        raise UserError(
            f"{len(options.folders)} folders were named; add --compare for one page of all, or "
            "name one."
        )
    return report(options.folders[0], options.log, verbose=options.verbose, png=options.png)


def report(
    place: str | Path, tools: Sequence[str] = (), *, verbose: bool = False, png: bool = False
) -> Ended:
    """Write the derived files anew from the records, with `png` the figures as pictures too, and
    print the last screen, or with `verbose` all tables. Then bring to other
    `tools` what they lack of the study.

    A study that is running may be reported on: its records are read, never written. Of a URL the
    files are written into this machine's copy.
    """
    check_loggers(tools)
    results, console = load(place), make_console(sys.stdout)
    # Not a Store: the study may be running, and its records are not ours.
    files, warn = StudyFiles(results.folder), partial(say, console)
    if results.is_scaling:
        from raybench.report.scaling_report import ScalingReport

        report = ScalingReport.of(results)
        written = report.write(files)
        written += write_plots(results, results.folder) if png else []
        written += try_page(results, results.folder, warn, report.parts())
        report.show(console, written=written, verbose=verbose)
    else:
        export(results, files)
        plots = write_plots(results, results.folder) if png else []
        try_page(results, results.folder, warn)
        show(console, results, plots=plots, verbose=verbose)
    with Loggers(tools, results.folder, place=results.place, say=warn, close_s=None) as loggers:
        loggers.start()
        loggers.end()
    return Ended(cli.FAILED if loggers.has_failed else cli.DONE, results.place)


def compare(places: Sequence[str], file: Path) -> Ended:
    """Write one page of several studies; UserError for a single one."""
    if len(places) < 2:
        raise UserError(f"--compare: needs two folders or more, found {places[0]} alone.")
    page = write_comparison([load(place) for place in places], file)
    say(make_console(sys.stdout), f"page: {page}")
    return Ended(cli.DONE, details={"page": page})
