"""`python -m raybench.train`: train one run spec, print its curve and ledger, save the model."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.spec.errors import Ended


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench train", description=__doc__)
    result.add_argument(
        "spec", nargs="?", type=Path, metavar="SPEC.yaml", help="run spec; none: the defaults"
    )
    cli.add_common(result, out="results/train-<name of the spec>")
    cli.add_log(result)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return cli.run_interruptible(parser(), arguments, _run)


def _run(options: argparse.Namespace, interrupt: Interrupt) -> Ended:
    from raybench.runs.train import train

    return train(options, interrupt)
