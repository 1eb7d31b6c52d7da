"""`python -m raybench.scale`: measure how a training scales, or predict it from measurements."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.spec.errors import Ended, UserError
from raybench.spec.text import clean


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench scale", description=__doc__)
    result.add_argument(
        "study",
        nargs="?",
        metavar="STUDY.yaml|NAME",
        help="a study's file, or a named study; none: the shipped small model, weak and strong",
    )
    cli.add_common(
        result,
        out="results/<name of the study>; with --fit a CSV file for the predictions",
    )
    cli.add_log(result)
    result.add_argument(
        "--quick", action="store_true", help="a named study small enough for two cores"
    )
    result.add_argument(
        "--predict",
        metavar="8,16,64|FILE.csv",
        help="numbers of workers: at every batch size measured, on nodes as full as the fullest "
        "measured; or a CSV of cells with the columns of --fit but step_s",
    )
    result.add_argument(
        "--fit",
        type=Path,
        metavar="FILE.csv",
        help="run nothing, fit these steps: columns num_workers, num_nodes, "
        "batch_size_per_worker, step_s; also read: accumulate (passes of a step), model, gpu_type "
        "(one fit for each pair of them); rows of the same cell are repeats. Predictions: step_s, "
        "low_s and high_s (90 %%), samples_per_s, efficiency",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return cli.run_interruptible(parser(), arguments, _run)


def _run(options: argparse.Namespace, interrupt: Interrupt) -> Ended:
    if options.fit is not None:
        return fit_file(options)
    from raybench.runs.scale import scale

    return scale(options, interrupt)


def fit_file(options: argparse.Namespace) -> Ended:
    """Do what `--fit` asks; UserError for arguments that are of a study alone."""
    for given, name in (
        (options.study, f"study {clean(str(options.study))}"),
        (options.quick, "--quick"),
        (options.dry_run, "--dry-run"),
        (options.settings, "--set"),
        (options.address, "--address"),
        (options.workload, "--workload"),
        (options.log, "--log"),
    ):
        if given:
            raise UserError(f"{name}: is of a study, and --fit runs none; leave one of them out.")
    from raybench.report.scaling_report import fit_to_files

    fit_to_files(options.fit, options.predict, None if options.out is None else Path(options.out))
    return Ended(cli.DONE)
