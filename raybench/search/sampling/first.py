"""`search.first`: configurations that the user names, run before all others, in a grid and beyond
the space's ranges too."""

from typing import Any

from raybench.search.sampling.default_rates import usual_values
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec, flat, value_of
from raybench.spec.space import Space, known_values, lies_in
from raybench.spec.study import StudySpec
from raybench.spec.values import identity


def first_specs(study: StudySpec, space: Space) -> dict[str, RunSpec]:
    """Return the run specs of `search.first` in their order, each by the `identity` of what the
    user has named of it.

    A searched key that is not named has the value that a reference run has.

    Raises:
        UserError: Where a named configuration cannot be run.
    """
    found = {}
    for number, given in enumerate(study.search.first):
        try:
            values = usual_values(study, space, given=flat(given))
            found[identity(given)] = study.run_spec(values)
        except ValueError as problem:  # UserError too
            reason = str(problem).removeprefix("configuration: ").rstrip(".")
            raise UserError(f"search.first[{number}]: {reason}.") from None
    return found


def is_in_space(spec: RunSpec, study: StudySpec, space: Space) -> bool:
    """Return whether a run spec is a configuration of the space, all that is fixed included."""
    values: dict[str, Any] = {key: value_of(spec, key) for key in space}
    known = known_values(study.fixed, values)
    if not all(lies_in(key, space[key], value, known) for key, value in values.items()):
        return False
    return study.run_spec(values, seed=spec.seed) == spec


def num_outside(study: StudySpec, space: Space) -> int:
    """Return how many of the user's own configurations are none of the space."""
    firsts = first_specs(study, space).values()
    return sum(not is_in_space(spec, study, space) for spec in firsts)
