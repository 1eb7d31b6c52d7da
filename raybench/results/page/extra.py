"""What a command knows of a study beyond its records: it stands in the page as a part."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True)
class Extra:
    """A part of its own: predictions and plans of a scaling study."""

    title: str
    lines: Sequence[str] = ()
    tables: Sequence[tuple[str, pd.DataFrame]] = field(default_factory=tuple)
    """Captions and tables; columns in words, with their units."""
