"""How winners are confirmed: the runs of the race, and those of a winner alone."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from raybench.core.documents import Document, NonNegativeInt, PositiveInt

TOP, REPEATS = 3, 3
"""What the older form has where it names only one of its keys."""
MOST = 200
"""Runs of a race at most."""
RACE_KEY = "confirm.race"
OLDER_KEYS = ("confirm.top", "confirm.repeats")


class ConfirmSpec(Document):
    """How winners are confirmed: contenders race with new seeds, then winners run alone.

    Files of earlier versions have `top` and `repeats`; `race` is then the product of the two.
    """

    race: Annotated[int, Field(ge=0, le=MOST)] = 24
    """Runs with new seeds that the best few of the search share out to find the fastest, and as
    many to find the cheapest (most of them are the same runs); 0 leaves the result unconfirmed.
    Within a time budget, as many of them as there is time for."""
    fresh: PositiveInt = 3
    """Runs of each winner alone on the machine, for the time that is printed."""
    top: NonNegativeInt | None = Field(default=None, exclude=True)
    """The older form: configurations trained again; write `race`."""
    repeats: PositiveInt | None = Field(default=None, exclude=True)
    """The older form: trainings of each; write `race`."""

    @model_validator(mode="before")
    @classmethod
    def _race_of_older_form(cls, content: Any) -> Any:
        if not isinstance(content, dict) or not {"top", "repeats"} & content.keys():
            return content
        top, repeats = content.get("top", TOP), content.get("repeats", REPEATS)
        if top == 0 and not content.get("race"):
            return content | {"race": 0}
        if "race" in content:
            raise ValueError(
                "names race as well as top and repeats; leave out the latter, race is the number "
                "of runs"
            )
        if type(top) is not int or type(repeats) is not int:
            return content  # their own fields say what is wrong
        return content | {"race": min(max(top * repeats, 0), MOST)}
