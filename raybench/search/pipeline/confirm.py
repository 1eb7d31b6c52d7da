"""The confirm phase: the best trials again, with new seeds, alone on the machine, interleaved."""

from typing import Any

from raybench.core.documents import validate
from raybench.core.spec import RunSpec
from raybench.search.pipeline.single_run import SingleRun

SEEDS_FROM = 1000
"""How far the seeds of confirming runs are from the search's: never the same."""


def confirm(
    candidates: dict[str, dict[str, Any]],
    *,
    repeats: int,
    search_seed: int,
    already: set[str],
    alone: SingleRun,
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
            seed = (search_seed + SEEDS_FROM + repeat) % 2**32
            spec = validate(RunSpec, document | {"seed": seed}, trial)
            alone.train(spec, name, "confirm", test=True)
