"""`raybench scale`: measure how training scales, or predict it from measurements."""

from pathlib import Path
from typing import TYPE_CHECKING

from raybench.cluster.signals import Interrupt
from raybench.spec.errors import DONE, Ended, ErrorCode, UserError
from raybench.spec.text import clean

if TYPE_CHECKING:
    from raybench.runs.options import ScaleOptions

FIT_OPTIONS = ("fit", "predict", "network", "out", "progress", "keep_code_change")
"""Options that can be combined with --fit."""


def scale(options: "ScaleOptions", interrupt: Interrupt) -> Ended:
    """Run a scaling study, or fit a file of measurements (`--fit`) without starting Ray."""
    if options.fit is not None:
        return fit_file(options, Path(options.fit))
    if options.network is not None:
        raise UserError(
            "--network: applies to --fit; a study measures the network itself.", ErrorCode.CONFLICT
        )
    from raybench.runs.scale import scale

    return scale(options, interrupt)


def fit_file(options: "ScaleOptions", file: Path) -> Ended:
    """Fit a file of measurements; raise UserError for options that only apply to a study."""
    words = {"study": f"study {clean(str(options.study))}", "settings": "--set"}
    for option in type(options).model_fields:
        if option in options.model_fields_set and option not in FIT_OPTIONS:
            name = words.get(option, f"--{option.replace('_', '-')}")
            raise UserError(
                f"{name}: applies to a study, and --fit runs none; leave out one of the two.",
                ErrorCode.CONFLICT,
            )
    from raybench.report.scaling_report import fit_to_files

    out = None if options.out is None else Path(options.out)
    answer, details = fit_to_files(file, options.predict, out, options.network)
    return Ended(DONE, answer=answer, details=details)
