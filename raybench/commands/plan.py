"""`python -m raybench.plan DIR`: say which machines to hire, how many, and for how much.

By the cells and runs of scaling studies of one training: one folder, or one for each kind of
machine, of which some may be short runs without a target.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raybench.commands import cli
from raybench.report.console import make_console, say
from raybench.report.plan_report import PlanReport
from raybench.report.scaling_report import print_part
from raybench.results.study import load
from raybench.scaling.fits import Terms
from raybench.spec.errors import Ended, UserError
from raybench.spec.prices import read_prices
from raybench.spec.text import clean, seconds_of

PAGE = "plan.html"


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench plan", description=__doc__)
    result.add_argument("folders", metavar="DIR", nargs="+", help="of a scaling study, or its URL")
    result.add_argument(
        "--prices",
        metavar="FILE",
        help="prices.yaml: machines and what they cost (default: the study's own price, or "
        "worker-seconds)",
    )
    result.add_argument("--budget", type=float, metavar="MONEY", help="what a job may cost")
    result.add_argument("--deadline", metavar="TIME", help="when it must be done: 90s, 30min, 2h")
    result.add_argument(
        "--predict",
        metavar="8,16,64|FILE.csv",
        help="what to look at beside what was measured (default: the next two doublings)",
    )
    result.add_argument(
        "--out", metavar="FILE", default=PAGE, help="where the page goes (default %(default)s)"
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 3 where there is nothing to plan with."""
    return parser().run(arguments, _asked)


def _asked(options: argparse.Namespace) -> Ended:
    given = {name: getattr(options, name) for name in ("prices", "budget", "deadline", "predict")}
    report, console = planned(options.folders, **given), make_console(sys.stdout)
    for part in report.parts:
        print_part(console, part)
    page = report.write(Path(options.out))
    say(console, f"page: {page}")
    plans = [
        {"series": one.series, "answers": one.answers.to_dict("records")} for one in report.plans
    ]
    code = cli.DONE if any(one["answers"] for one in plans) else cli.NOT_REACHED
    return Ended(code, answer=report.words, details={"plans": plans, "page": page})


def planned(
    folders: Sequence[str | Path],
    prices: str | Path | dict[str, Any] | None = None,
    budget: float | None = None,
    deadline: str | float | None = None,
    predict: str | None = None,
) -> PlanReport:
    """Read the studies, and plan; UserError for what is asked wrong."""
    machines = None if prices is None else read_prices(prices)
    seconds = None if deadline is None else seconds_of(str(deadline))
    if deadline is not None and seconds is None:
        wrong = clean(str(deadline))[:40]
        raise UserError(f"--deadline {wrong}: write it as 90s, 30min, 2h or 1d.")
    if budget is not None and not 0 < budget < float("inf"):
        raise UserError(f"--budget {budget:g}: must be more than 0.")
    studies = [load(one) for one in folders]
    own = studies[0].scaling_study
    terms = Terms(machines or own.price, budget if machines or budget else own.budget, seconds)
    return PlanReport.of(studies, terms, predict)
