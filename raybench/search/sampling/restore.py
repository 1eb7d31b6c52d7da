"""Trials that Optuna's journal has lost, told again from the records, which are the truth."""

import math
import re
from typing import Any

import optuna
from optuna.trial import TrialState, create_trial

from raybench.core.objective import worst_score
from raybench.core.record import MACHINE_FAULTS
from raybench.core.space import Space
from raybench.core.study import StudySpec
from raybench.search.sampling.optuna_space import distributions
from raybench.search.sampling.transfer import params_of
from raybench.speed.factorisation import split_of

TRIAL_NAME = re.compile(r"\d{4,}")
"""Trials that the searcher has named; finalists and confirming runs are none of its own."""


def restore(
    journal: optuna.Study, recorded: dict[str, dict[str, Any]], study: StudySpec, space: Space
) -> int:
    """Add the recorded trials that the journal does not hold; return how many.

    `space` is what the sampler samples. A run that was interrupted is proposed again.
    """
    held = {trial.user_attrs.get("trial") for trial in journal.get_trials(deepcopy=False)}
    known = distributions(space)
    missing = [name for name in recorded if TRIAL_NAME.fullmatch(name) and name not in held]
    for name in missing:
        record = recorded[name]
        spec = record["spec"]
        params = params_of(spec, study, space, known)
        if params is None:
            continue
        attributes = {"split": split_of(spec).values()}
        if record["stop"] == "interrupted":
            journal.enqueue_trial(params, user_attrs=attributes)
            continue
        failure = record["failure"]
        attributes |= {"trial": name, "spec": spec} | ({"failure": failure} if failure else {})
        state, values, course = TrialState.COMPLETE, None, None
        if failure in MACHINE_FAULTS:
            state = TrialState.FAIL
        elif record["state"] == "stopped" and len(journal.directions) == 1:
            state, values = TrialState.PRUNED, [record["score"]]
            course = {int(1000 * record["ledger"]["train"]): record["score"]}
        else:
            score = worst_score(study.objective) if failure else record["score"]
            values = [score, score + math.log(spec["num_workers"])][: len(journal.directions)]
        journal.add_trial(
            create_trial(
                state=state,
                params=params,
                distributions={key: known[key] for key in params},
                values=values,
                intermediate_values=course,
                user_attrs=attributes,
            )
        )
    return len(missing)
