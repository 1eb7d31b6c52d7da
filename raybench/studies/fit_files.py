"""`raybench scale --fit`: anyone's measurements, fitted, shown, and the predictions written."""

import sys
from pathlib import Path

from raybench.core.errors import UserError
from raybench.core.text import clean
from raybench.results.console import make_console, say
from raybench.scaling.fit_command import check_out, fit_groups, write_predictions
from raybench.studies.show_fit import show_fit


def fit_to_files(file: Path, predict: str | None, out: Path | None) -> None:
    """Fit each group, print how good it is and what it predicts, write the predictions."""
    if out is not None:
        if predict is None:
            raise UserError(
                f"--out {clean(str(out))}: there is nothing to write without --predict."
            )
        check_out(out, file)
    console, tables = make_console(sys.stdout), []
    for fitted in fit_groups(file, predict):
        tables.append(fitted.predictions)
        show_fit(console, fitted, tables[-1])
    if out is not None:
        write_predictions(out, tables)
        say(console, f"predictions: {out}")
