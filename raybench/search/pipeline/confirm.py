"""The confirm phase: the best trials again, with new seeds, alone on the machine, interleaved."""

from raybench.core.spec import RunSpec
from raybench.search.pipeline.single_run import SingleRun

SEEDS_FROM = 1000
"""How far the seeds of confirming runs are from the search's: never the same."""


def confirm(
    chosen: dict[str, RunSpec],
    *,
    repeats: int,
    search_seed: int,
    already: set[str],
    single_run: SingleRun,
) -> None:
    """Train every candidate `repeats` times, in the order ABCABC, one run at a time.

    `chosen` are run specs by the name of their trial; runs named in `already` are kept from an
    earlier session.
    """
    for repeat in range(repeats):
        for trial, spec in chosen.items():
            name = f"{trial}-confirm{repeat}"
            if name in already or single_run.deadline.over:
                continue
            seed = (search_seed + SEEDS_FROM + repeat) % 2**32
            again = spec.model_copy(update={"seed": seed})
            single_run.train(again, name, "confirm", source=trial, test=True)
