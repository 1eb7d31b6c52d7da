"""What analyses ask of the frames that they are given."""

from collections.abc import Iterable

import pandas as pd

from raybench.core.errors import UserError


def need(
    frame: pd.DataFrame, what: str, columns: Iterable[str], *, known: Iterable[str] = ()
) -> None:
    """Raise UserError where a column is missing, or nothing is told in one of `known`.

    `what` names the frame: `trials`, `curves`, `scaling`. Studies of other tools tell less.
    """
    for name in (*columns, *known):
        if name not in frame:
            raise UserError(
                f"{what}: has no column '{name}'; give the frame of raybench.load(...).{what}."
            )
    for name in known:
        if len(frame) and frame[name].isna().all():
            raise UserError(
                f"{what}: nothing is known of '{name}' there, so this cannot be told; raybench "
                "records it of its own runs."
            )
