"""Commands that compute from recorded runs: report, import, plan, and `scale --fit`.

`raybench report` rebuilds the tables and the page of a results folder, `raybench import` makes a
study of runs that another tool recorded, `raybench plan` chooses which machines to rent for a
training, and `raybench scale --fit` predicts how training scales.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from raybench.cluster.signals import Interrupt
from raybench.loggers.follow import Loggers, check_loggers
from raybench.report.console import make_console, say
from raybench.report.export import export, write_plots
from raybench.report.page import try_page
from raybench.report.page.document import write_comparison
from raybench.report.show import show
from raybench.results import foreign
from raybench.results.place import DEFAULT_FOLDER, check_folder
from raybench.results.store import StudyFiles
from raybench.results.study import load
from raybench.runs.options import ImportOptions, PlanOptions, ReportOptions, ScaleOptions
from raybench.spec.errors import DONE, FAILED, NOT_REACHED, Ended, ErrorCode, UserError
from raybench.spec.text import clean

if TYPE_CHECKING:
    from raybench.report.scaling_report import PlanReport

COMPARISON = "compare.html"


def report(options: ReportOptions) -> Ended:
    """Run the `report` command: write and print the report of a study, or write one page that
    compares several studies."""
    if options.compare:
        return _compare(options.folders, Path(options.out or COMPARISON))
    if options.out is not None:
        raise UserError(
            f"--out {options.out}: applies to --compare; a single report is written to its folder.",
            ErrorCode.CONFLICT,
        )
    if len(options.folders) > 1:
        raise UserError(
            f"{len(options.folders)} folders: add --compare for one page on all of them, or name "
            "a single one.",
            ErrorCode.CONFLICT,
        )
    return _report(options)


def _report(options: ReportOptions) -> Ended:
    """Rewrite the tables and the page of a study from its records, print them, and log the runs to
    the trackers of `--log`.

    The study may still be running, so its records are only read. If a URL is given, the files are
    written to the copy of the folder on this machine.
    """
    verbose, png, tools = options.verbose, options.png, options.log
    check_loggers(tools)
    results, console = load(options.folders[0]), make_console(sys.stdout)
    # No Store is opened, since it may write records while another process runs the study.
    study_files, warn = StudyFiles(results.folder), partial(say, console)
    if results.is_scaling:
        from raybench.report.scaling_report import ScalingReport

        report = ScalingReport.of(results)
        files_written = report.write(study_files)
        files_written += write_plots(results, results.folder) if png else []
        files_written += try_page(results, results.folder, warn, report.parts())
        report.show(console, written=files_written, verbose=verbose)
    else:
        export(results, study_files)
        plots = write_plots(results, results.folder) if png else []
        try_page(results, results.folder, warn)
        show(console, results, plots=plots, verbose=verbose)
    with Loggers(tools, results.folder, place=results.place, say=warn, close_s=None) as loggers:
        loggers.start(is_whole=True)
    return Ended(FAILED if loggers.has_failed else DONE, results.place)


def _compare(places: Sequence[str], file: Path) -> Ended:
    """Write one page that compares several studies.

    Raises:
        UserError: There is only one study, or one of them contains imported runs.
    """
    if len(places) < 2:
        raise UserError(
            f"--compare: needs two folders or more, found only {places[0]}.", ErrorCode.MISSING
        )
    studies = [load(place) for place in places]
    for study in studies:
        if study.is_imported:
            raise UserError(
                f"{study.place}: contains imported runs, whose seconds another tool measured; "
                "leave it out.",
                ErrorCode.CONFLICT,
            )
    page = write_comparison(studies, file)
    say(make_console(sys.stdout), f"page: {page}")
    return Ended(DONE, details={"page": page})


def import_runs(options: ImportOptions) -> Ended:
    """Run the `import` command: read runs that another tool recorded, write them as a study, and
    print its report."""
    table = _read_foreign(options.source)
    match = foreign.match_columns(table, options.columns, options.metric, options.direction)
    folder = Path(options.name)
    if folder.name == options.name:
        folder = Path(DEFAULT_FOLDER) / options.name
    if folder.exists():
        raise UserError(
            f"--as {options.name}: {folder} exists; name another, or delete it.",
            ErrorCode.STUDY_CHANGED,
        )
    check_folder(folder)
    foreign.write_imported(folder, table, *match, options.target)
    return report(ReportOptions(folders=[str(folder)]))


def _read_foreign(source: str) -> foreign.ForeignTable:
    """Read runs from a CSV file, an MLflow folder or an Optuna storage."""
    from raybench.search.sampling.earlier import DATABASE, TABLES, read_optuna

    path = Path(source.partition("#")[0])
    if not (DATABASE.match(source) or path.exists()):
        message = f"{source}: not found; name a CSV file, a folder of MLflow or an Optuna storage."
        raise UserError(message, ErrorCode.NOT_FOUND)
    if path.is_dir():
        return foreign.read_mlflow(path)
    is_table = path.suffix.lower() in TABLES
    return foreign.read_csv(path) if is_table else read_optuna(source)


FIT_OPTIONS = ("fit", "predict", "network", "out", "progress", "keep_code_change")
"""Options that can be combined with --fit."""


def scale(options: ScaleOptions, interrupt: Interrupt) -> Ended:
    """Run the `scale` command: run a scaling study, or fit a file of measurements (`--fit`) without
    starting Ray."""
    if options.fit is not None:
        return fit_file(options, Path(options.fit))
    if options.network is not None:
        raise UserError(
            "--network: applies to --fit; a study measures the network itself.", ErrorCode.CONFLICT
        )
    from raybench.runs.scale import scale

    return scale(options, interrupt)


def fit_file(options: ScaleOptions, file: Path) -> Ended:
    """Fit a file of measurements; raise UserError for options that only apply to a study."""
    names = {"study": f"study {clean(str(options.study))}", "settings": "--set"}
    for option in type(options).model_fields:
        if option in options.model_fields_set and option not in FIT_OPTIONS:
            name = names.get(option, f"--{option.replace('_', '-')}")
            raise UserError(
                f"{name}: applies to a study, and --fit runs none; leave out one of the two.",
                ErrorCode.CONFLICT,
            )
    from raybench.report.scaling_report import fit_to_files

    out = None if options.out is None else Path(options.out)
    answer, details = fit_to_files(file, options.predict, out, options.network)
    return Ended(DONE, answer=answer, details=details)


def plan(options: PlanOptions) -> Ended:
    """Run the `plan` command: print the plan, and write its page.

    The exit code is 3 if no configuration satisfies the limits.
    """
    from raybench.report.scaling_report import print_part

    report, console = planned(options), make_console(sys.stdout)
    for part in report.parts:
        print_part(console, part)
    page = report.write(Path(options.out))
    say(console, f"page: {page}")
    plans = [
        {"series": series_plan.series, "answers": series_plan.answers.to_dict("records")}
        for series_plan in report.plans
    ]
    code = DONE if any(series_plan["answers"] for series_plan in plans) else NOT_REACHED
    return Ended(code, answer=report.words, details={"plans": plans, "page": page})


def planned(options: PlanOptions) -> "PlanReport":
    """Compute the plan from scaling studies; raise UserError for invalid input."""
    from raybench.report.scaling_report import PlanReport
    from raybench.scaling.plan import Terms
    from raybench.spec.scaling_study import read_prices

    machines = None if options.prices is None else read_prices(options.prices)
    budget = options.budget
    studies = [load(folder) for folder in options.folders]
    study = studies[0].scaling_study
    budget = budget if machines or budget else study.budget
    terms = Terms(machines or study.price, budget, options.deadline)
    return PlanReport.of(studies, terms, options.predict)
