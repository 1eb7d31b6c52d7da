"""`raybench plan`: choose which machines to rent for a training, how many, and at what cost."""

import sys
from pathlib import Path

from raybench.report.console import make_console, say
from raybench.report.scaling_report import PlanReport, print_part
from raybench.results.study import load
from raybench.runs.options import PlanOptions
from raybench.scaling.fits import Terms
from raybench.spec.errors import DONE, NOT_REACHED, Ended
from raybench.spec.prices import read_prices


def plan(options: PlanOptions) -> Ended:
    """Print the plan and write its page; exit code 3 means that no configuration qualifies."""
    report, console = planned(options), make_console(sys.stdout)
    for part in report.parts:
        print_part(console, part)
    page = report.write(Path(options.out))
    say(console, f"page: {page}")
    plans = [
        {"series": one.series, "answers": one.answers.to_dict("records")} for one in report.plans
    ]
    code = DONE if any(one["answers"] for one in plans) else NOT_REACHED
    return Ended(code, answer=report.words, details={"plans": plans, "page": page})


def planned(options: PlanOptions) -> PlanReport:
    """Return the plan for the given scaling studies; raise UserError for invalid input."""
    machines = None if options.prices is None else read_prices(options.prices)
    budget = options.budget
    studies = [load(one) for one in options.folders]
    own = studies[0].scaling_study
    budget = budget if machines or budget else own.budget
    terms = Terms(machines or own.price, budget, options.deadline)
    return PlanReport.of(studies, terms, options.predict)
