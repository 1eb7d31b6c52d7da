"""How many runs confirm a study: the race's number, and what files of earlier versions say."""

from typing import Any

import pytest

from raybench.core.errors import UserError
from raybench.core.study import ConfirmSpec, apply_settings_to_study, build_study

STUDY: dict[str, Any] = {"objective": {"target": 0.9}, "space": {"num_workers": [1, 2]}}


def confirm(content: dict[str, Any] | None, *settings: str) -> ConfirmSpec:
    given = STUDY if content is None else STUDY | {"confirm": content}
    return build_study(apply_settings_to_study(given, list(settings)), "test")[0].confirm


@pytest.mark.parametrize(
    ("content", "settings", "numbers"),
    [
        (None, [], (24, 3)),
        ({"race": 0}, [], (0, 3)),
        ({"top": 2, "repeats": 4}, [], (8, 3)),
        ({"top": 2}, [], (6, 3)),
        ({"repeats": 1, "fresh": 2}, [], (3, 2)),
        ({"top": 0, "race": 0}, [], (0, 3)),
        ({"top": 1000}, [], (200, 3)),
        ({"race": 10, "fresh": 5}, ["confirm.top=3", "confirm.repeats=3"], (9, 5)),
        ({"race": 10}, ["confirm.top=0"], (0, 3)),
        ({"top": 3, "repeats": 3}, ["confirm.race=40"], (40, 3)),
    ],
)
def test_the_race_is_named_or_the_product_of_the_older_keys(
    content: dict[str, Any] | None, settings: list[str], numbers: tuple[int, int]
) -> None:
    found = confirm(content, *settings)
    assert (found.race, found.fresh) == numbers
    assert found.model_dump() == {"race": numbers[0], "fresh": numbers[1]}, "what is written"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"race": 24, "top": 3}, r"'confirm': names race as well as top and repeats; leave out"),
        ({"race": 24, "top": 0}, r"'confirm': names race as well as top and repeats; leave out"),
        ({"race": 201}, r"'confirm\.race': input should be less than or equal to 200"),
        ({"fresh": 0}, r"'confirm\.fresh': input should be greater than 0"),
        ({"top": "x"}, r"'confirm\.top': input should be a valid integer"),
        ({"top": 2, "repeats": 0}, r"'confirm\.repeats': input should be greater than 0"),
        ({"rase": 3}, r"unknown key 'confirm\.rase'; did you mean 'race'"),
    ],
)
def test_what_cannot_be(content: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        confirm(content)
