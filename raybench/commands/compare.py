"""`python -m raybench.compare A B`: is B better than A? Pairs of runs until it is decided."""

import argparse
from collections.abc import Sequence

from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.spec.errors import Ended


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench compare", description=__doc__)
    result.add_argument(
        "sides",
        nargs="*",
        metavar="A B",
        help="what there is, then what would replace it: run specs, folders of studies (their "
        "best.yaml), or spaces of one configuration",
    )
    cli.add_common(result, out="results/compare")
    result.add_argument("--runs", type=int, default=20, metavar="N", help="pairs at most (20)")
    result.add_argument(
        "--time-budget", type=float, metavar="SECONDS", help="seconds for everything"
    )
    result.add_argument(
        "--smallest",
        default="2%",
        metavar="SHARE",
        help="the least difference that matters; 0 looks for any (default 2%%)",
    )
    result.add_argument(
        "--session",
        metavar="FILE",
        help="keep the error of many comparisons together below 5 %%: each spends a part of it",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return cli.run_interruptible(parser(), arguments, _run)


def _run(options: argparse.Namespace, interrupt: Interrupt) -> Ended:
    from raybench.runs.compare import compare

    return compare(options, interrupt)
