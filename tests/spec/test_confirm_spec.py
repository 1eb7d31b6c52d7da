"""How many runs confirm a study."""

from typing import Any

import pytest

from raybench.spec.errors import UserError
from raybench.spec.study import ConfirmSpec, apply_settings_to_study, build_study

STUDY: dict[str, Any] = {"objective": {"target": 0.9}, "space": {"num_workers": [1, 2]}}


def confirm(content: dict[str, Any], *settings: str) -> ConfirmSpec:
    given = STUDY | {"confirm": content}
    return build_study(apply_settings_to_study(given, list(settings)), "test")[0].confirm


@pytest.mark.parametrize(
    ("content", "settings", "numbers"),
    [({}, [], (24, 3)), ({"race": 10}, ["confirm.race=40", "confirm.fresh=2"], (40, 2))],
)
def test_the_runs_of_the_race_and_of_the_winner(
    content: dict[str, Any], settings: list[str], numbers: tuple[int, int]
) -> None:
    found = confirm(content, *settings)
    assert (found.race, found.fresh) == numbers


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"race": 201}, r"'confirm\.race': input should be less than or equal to 200"),
        ({"fresh": 0}, r"'confirm\.fresh': input should be greater than 0"),
        ({"rase": 3}, r"unknown key 'confirm\.rase'; did you mean 'race'"),
        ({"top": 3}, r"unknown key 'confirm\.top'"),
    ],
)
def test_what_cannot_be(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        confirm(content)
