"""The confirm phase: the best trials again, with new seeds, alone on the machine, interleaved."""

from typing import Any

from raybench.cluster.session import Session
from raybench.core.documents import validate
from raybench.core.spec import RunSpec
from raybench.results.store import Store
from raybench.search.alone import run_alone
from raybench.search.control import Control
from raybench.search.screen import Screen

FIRST_SEED = 1000
"""Seeds of confirming runs begin here, far from those of searches."""


def confirm(
    candidates: dict[str, dict[str, Any]],
    *,
    repeats: int,
    already: set[str],
    session: Session,
    store: Store,
    control: Control,
    screen: Screen,
) -> None:
    """Train every candidate `repeats` times, in the order ABCABC, one run at a time.

    `candidates` are run specs by the name of their trial; runs named in `already` are kept
    from an earlier session.
    """

    for repeat in range(repeats):
        for trial, document in candidates.items():
            name = f"{trial}-confirm{repeat}"
            if name in already or control.over:
                continue
            spec = validate(RunSpec, document | {"seed": FIRST_SEED + repeat}, trial)
            run_alone(
                spec,
                name,
                "confirm",
                session=session,
                store=store,
                control=control,
                screen=screen,
                test=True,
            )
