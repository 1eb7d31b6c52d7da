"""`python -m raybench.tune`: search a space for the configuration that gets there soonest."""

import argparse
import time
from collections.abc import Sequence

from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.spec.errors import Ended

DEFAULT_SPACE = "digits"


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench tune", description=__doc__)
    result.add_argument(
        "space",
        nargs="?",
        default=DEFAULT_SPACE,
        metavar="SPACE.yaml",
        help="search space: a file, or a shipped name (default: digits)",
    )
    cli.add_common(result, out="results/<name of the space>")
    cli.add_log(result)
    result.add_argument("--trials", type=int, help="number of trials")
    result.add_argument("--time-budget", type=float, metavar="SECONDS", help="for everything")
    result.add_argument("--workers", metavar="1,2,4", help="worker counts to search")
    result.add_argument("--gpus-per-worker", type=float, metavar="N", help="0, 1 or a part")
    result.add_argument(
        "--target", metavar="VALUE", help="of the metric on validation, as 0.95, or auto"
    )
    result.add_argument(
        "--seed-from",
        metavar="DIR",
        help="folder or URL of an earlier study of the same task: the sampler learns from it",
    )
    confirm = result.add_mutually_exclusive_group()
    confirm.add_argument(
        "--confirm",
        metavar="race=24,fresh=3",
        help="runs with new seeds: of the best few to find the winner, then of the winner alone",
    )
    confirm.add_argument(
        "--no-confirm", action="store_true", help="leave the result unconfirmed: one trial each"
    )
    result.add_argument(
        "--more",
        type=int,
        metavar="N",
        help="no search: N more runs of what is statistically tied in a finished study (where "
        "Ctrl-C or the time budget ends them, the same command runs those that are left)",
    )
    result.add_argument("--price", type=float, metavar="MONEY", help="per worker-hour")
    result.add_argument("--concurrency", type=int, help="trials at the same time")
    result.add_argument(
        "--isolation",
        choices=("none", "process"),
        default="none",
        help="process: new worker processes for every trial (slower; for code that leaks)",
    )
    result.add_argument("--verbose", action="store_true", help="print every table at the end")
    result.add_argument("--fresh", action="store_true", help="do not continue: start beside it")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    began = time.perf_counter()

    def run(options: argparse.Namespace, interrupt: Interrupt) -> Ended:
        from raybench.search.tune import tune

        return tune(options, interrupt, began=began)

    return cli.run_interruptible(parser(), arguments, run)
