"""The confirm phase: the best trials again, with new seeds, alone on the machine, interleaved."""

from typing import Any

from raybench.core.documents import validate
from raybench.core.spec import RunSpec
from raybench.search.alone import Alone

FIRST_SEED = 1000
"""Seeds of confirming runs begin here, far from those of searches."""


def confirm(
    candidates: dict[str, dict[str, Any]],
    *,
    repeats: int,
    already: set[str],
    alone: Alone,
) -> None:
    """Train every candidate `repeats` times, in the order ABCABC, one run at a time.

    `candidates` are run specs by the name of their trial; runs named in `already` are kept
    from an earlier session.
    """
    for repeat in range(repeats):
        for trial, document in candidates.items():
            name = f"{trial}-confirm{repeat}"
            if name in already or alone.control.over:
                continue
            spec = validate(RunSpec, document | {"seed": FIRST_SEED + repeat}, trial)
            alone.train(spec, name, "confirm", test=True)
