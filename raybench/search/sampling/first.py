"""Configurations of `search.first`: they run before all others and may lie outside the space."""

from typing import Any

from raybench.search.sampling.default_rates import usual_values
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import RunSpec, flat, value_of
from raybench.spec.space import Space, known_values, lies_in
from raybench.spec.study import StudySpec
from raybench.spec.values import identity


def first_specs(study: StudySpec, space: Space) -> dict[str, RunSpec]:
    """Return the run specs of `search.first` in order, by the `identity` of the given values.

    A searched key that the user did not give gets its value from a typical configuration
    (`usual_values`).

    Raises:
        UserError: A configuration is invalid.
    """
    found = {}
    for number, given in enumerate(study.search.first):
        try:
            values = usual_values(study, space, given=flat(given))
            found[identity(given)] = study.run_spec(values)
        except ValueError as problem:  # UserError too
            reason = str(problem).removeprefix("configuration: ").rstrip(".")
            code = problem.code if isinstance(problem, UserError) else ErrorCode.INVALID_VALUE
            raise UserError(f"search.first[{number}]: {reason}.", code) from None
    return found


def is_in_space(spec: RunSpec, study: StudySpec, space: Space) -> bool:
    """Return whether a run spec lies in the space and has the study's fixed values."""
    values: dict[str, Any] = {key: value_of(spec, key) for key in space}
    known = known_values(study.fixed, values)
    if not all(lies_in(key, space[key], value, known) for key, value in values.items()):
        return False
    return study.run_spec(values, seed=spec.seed) == spec


def num_outside(study: StudySpec, space: Space) -> int:
    """Return how many configurations of `search.first` lie outside the space."""
    firsts = first_specs(study, space).values()
    return sum(not is_in_space(spec, study, space) for spec in firsts)
