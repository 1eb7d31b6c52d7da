"""`python -m raybench.diagnose`: say what bounds a training, and what a change would bring."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.spec.errors import Ended


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench diagnose", description=__doc__)
    result.add_argument(
        "spec", nargs="?", type=Path, metavar="SPEC.yaml", help="run spec; none: the defaults"
    )
    result.add_argument(
        "--repeats",
        type=int,
        default=4,
        metavar="ROUNDS",
        help="rounds of all probes, from 3 (default %(default)s); where their spread hides the "
        "answer, up to twice as many",
    )
    result.add_argument(
        "--seconds",
        type=float,
        default=0.5,
        help="of training between two readings of a probe, of which it has four "
        "(default %(default)s)",
    )
    cli.add_common(result, out="results/diagnose-<name of the spec>")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return cli.run_interruptible(parser(), arguments, _run)


def _run(options: argparse.Namespace, interrupt: Interrupt) -> Ended:
    from raybench.runs.diagnose import diagnose

    return diagnose(options, interrupt)
