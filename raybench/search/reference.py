"""`target: auto`: what a usual configuration reaches, set as the target before the search.

The reference is the space's first optimizer at its usual rate; it trains with seeds of its own
for as long as a trial may. The target is the median of the best validation accuracies less half
a point, and stays as it is from then on.
"""

import statistics
from typing import Any

from raybench.core.errors import UserError
from raybench.core.space import Cases, Space, possible_values
from raybench.core.spec import Objective, RunSpec
from raybench.core.study import StudySpec
from raybench.results.load import describe
from raybench.search.alone import Alone
from raybench.search.priors import priors

RUNS = 3
FIRST_SEED = 2000
"""Seeds of reference runs begin here, far from those of searches and confirming runs."""
BELOW = 0.005
"""How far below the reference the target lies: half a point."""


def set_target(
    study: StudySpec, space: Space, alone: Alone, *, num_classes: int
) -> tuple[StudySpec, str] | None:
    """Train the reference, and return the study with its target and how that was set.

    None if the user, or the time budget, ended it before.
    """
    spec = reference_spec(study, space)
    alone.screen.begin("reference", RUNS)
    accuracies: list[float] = []
    for number in range(RUNS):
        run_spec = spec.model_copy(update={"seed": FIRST_SEED + number})
        record = alone.train(run_spec, f"reference{number}", "reference")
        if alone.control.over:
            return None
        if record.failure:
            raise UserError(
                f"target: auto: the reference run failed ({record.failure}: {record.message}); "
                "name a target instead."
            )
        accuracies.append(record.best_accuracy or 0.0)
    target = target_from(accuracies, 1.0 / num_classes)
    objective = study.objective.model_copy(update={"target": target})
    how = (
        f"auto: median of {', '.join(f'{one:.4f}' for one in accuracies)} (best validation "
        f"accuracy of {describe(spec.document())}) less half a point"
    )
    return study.model_copy(update={"objective": objective}), how


def reference_spec(study: StudySpec, space: Space) -> RunSpec:
    """Return the configuration that a user of the space would try first, without a target."""
    hints = next(iter(priors(space, study.fixed)), {})
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Cases):
            dimension = dimension.choose(study.fixed | hints | values).dimension
        values[key] = hints.get(key, possible_values(dimension)[0])
    seconds = study.objective.max_train_seconds
    objective = Objective(kind="accuracy_at_budget", max_train_seconds=seconds)
    return study.run_spec(values).model_copy(update={"objective": objective})


def target_from(accuracies: list[float], chance: float) -> float:
    """Return the target, in tenths of a point; UserError where the reference learnt nothing."""
    median = statistics.median(accuracies)
    target = round(median - BELOW, 3)
    if target <= chance + BELOW:
        raise UserError(
            f"target: auto: the reference runs reached {median:.1%}, hardly above chance; "
            "raise objective.max_train_seconds, or name a target."
        )
    return target


def earlier_target(study: StudySpec, folder_study: dict[str, Any]) -> StudySpec:
    """Return the study with the target that an earlier session of it has set, if one has."""
    earlier = folder_study.get("study", {})
    if not (study.auto_target and earlier.get("auto_target")):
        return study
    target = earlier.get("objective", {}).get("target")
    objective = study.objective.model_copy(update={"target": target})
    return study.model_copy(update={"objective": objective})
