"""`raybench scale`: measure how training scales, or predict it from measurements.

Also `raybench plan`: choose which machines to rent for a training, how many, and at what cost.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raybench.cluster.signals import Interrupt
from raybench.report.console import make_console, say
from raybench.runs.options import PlanOptions, ScaleOptions
from raybench.spec.errors import DONE, NOT_REACHED, Ended, ErrorCode, UserError
from raybench.spec.text import clean

if TYPE_CHECKING:
    from raybench.report.scaling_report import PlanReport

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
    """Fit a file of measurements; UserError for options that only apply to a study."""
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
    """Compute the plan from scaling studies; UserError for invalid input."""
    from raybench.report.scaling_report import PlanReport
    from raybench.results.study import load
    from raybench.scaling.fits import Terms
    from raybench.spec.scaling_study import read_prices

    machines = None if options.prices is None else read_prices(options.prices)
    budget = options.budget
    studies = [load(folder) for folder in options.folders]
    study = studies[0].scaling_study
    budget = budget if machines or budget else study.budget
    terms = Terms(machines or study.price, budget, options.deadline)
    return PlanReport.of(studies, terms, options.predict)
