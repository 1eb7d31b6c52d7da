"""What a run's spec has that is not the default, as YAML: for a file, or for `--set`."""

import math
from collections.abc import Iterable
from typing import Any

from raybench.core.documents import to_yaml
from raybench.core.spec import RunSpec

Setting = tuple[str, str]
"""A key and its value in YAML."""


def settings_of(specs: Iterable[RunSpec]) -> list[list[Setting]]:
    """Return for every spec the settings from which `raybench train` makes it anew."""
    known: dict[tuple[str, str], str] = {}
    found = []
    for spec in specs:
        settings = []
        for key, value in spec.model_dump(mode="json", exclude_defaults=True).items():
            mark = key, repr(value)
            if mark not in known:
                known[mark] = _in_yaml(value)
            settings.append((key, known[mark]))
        found.append(settings)
    return found


def _in_yaml(value: Any) -> str:
    """Return a value in one line of YAML."""
    if isinstance(value, float) and math.isfinite(value):  # as PyYAML, at a hundredth of its time
        text = repr(value)
        return text.replace("e", ".0e", 1) if "." not in text else text
    return to_yaml({"x": value}, in_lines=False).strip()[len("{x: ") : -1]
