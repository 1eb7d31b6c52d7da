"""Generated spaces: each is refused in a sentence, or all that can be drawn of it is a run spec."""

import pytest

from raybench.spec.documents import validate
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.spec.space import (
    SEARCHABLE,
    combinations,
    known_values,
    num_configurations,
    parse_space,
)

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

VALUES = {
    "framework": ["torch", "tensorflow"],
    "num_workers": [1, 2, 4],
    "accumulate": [1, 2],
    "optimizer": ["adam", "lars", "sgd"],
    "schedule": ["constant", "cosine", "ramp_decay"],
    "warmup_epochs": [0, 1, 2.5],
    "precision": ["fp32", "bf16"],
    "momentum": [0.0, 0.9],
}


@st.composite
def studies(draw):
    """A space and what is fixed; conditions name any key, above or below, searched or not."""
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    some = st.sampled_from
    space = {}
    for key in keys:
        values = draw(st.lists(some(VALUES[key]), min_size=1, unique=True))
        condition = draw(some(sorted(VALUES)))
        if draw(st.booleans()):
            space[key] = values
            continue
        allowed = VALUES[condition]
        cut = draw(st.integers(0, len(allowed)))
        cases = [
            {"when": {condition: part}, "values": draw(st.permutations(VALUES[key]))[:2]}
            for part in (allowed[:cut], allowed[cut:])
            if part
        ]
        space[key] = cases
    rest = [key for key in sorted(VALUES) if key not in keys]
    fixed = {key: draw(some(VALUES[key])) for key in rest if draw(st.booleans())}
    return space, fixed


@settings(max_examples=300, deadline=None)
@given(studies())
def test_a_space_is_refused_in_a_sentence_or_all_of_it_can_run(study):
    raw, fixed = study
    problem = ""
    try:
        space = parse_space(raw, fixed, "s.yaml")
    except UserError as error:
        problem = str(error)
    if problem:
        assert problem.startswith(("s.yaml: 'space", "s.yaml: fixed: "))
        return
    drawn = [
        tuple(values[key] for key in space) for values in combinations(space, fixed, list(space))
    ]
    assert len(set(drawn)) == len(drawn) == num_configurations(space, fixed)
    for values in drawn:
        content = known_values(fixed, dict(zip(space, values, strict=True)))
        assert set(content) == set(SEARCHABLE)
        validate(RunSpec, content, "drawn")
