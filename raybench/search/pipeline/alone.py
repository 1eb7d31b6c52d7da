"""Winners again with new seeds, alone on the machine: for the times that are printed.

The runs that chose a winner were lucky ones, and had company; these had neither.
"""

import math
from collections.abc import Mapping

from raybench.core.spec import RunSpec
from raybench.search.pipeline.single_run import SingleRun

SEEDS_FROM = 1000
"""How far the seeds of these runs are from the search's: never the same, nor a race's."""


def run_alone(
    winners: Mapping[str, RunSpec],
    *,
    caps_s: Mapping[str, float],
    times: int,
    search_seed: int,
    already: set[str],
    single_run: SingleRun,
) -> None:
    """Train every winner so often, in the order ABCABC, one run at a time.

    `winners` are run specs by the name of their trial; runs named in `already` are kept from an
    earlier session. The test split is measured in these runs alone. One that the time budget ends
    has missed (`cap`) if it has trained for longer than its winner's `caps_s`, where there is one:
    to leave out the unlucky ones would make the printed time too good.
    """
    for number in range(times):
        for trial, spec in winners.items():
            name = f"{trial}-confirm{number}"
            if name in already or single_run.deadline.over:
                continue
            seed = (search_seed + SEEDS_FROM + number) % 2**32
            again = spec.model_copy(update={"seed": seed})
            cap_s = caps_s.get(trial, math.inf)
            single_run.train(again, name, "confirm", source=trial, test=True, cap_s=cap_s)
