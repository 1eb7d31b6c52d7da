import json
from pathlib import Path

from raybench.core.documents import OTHER_NAMES
from raybench.core.schema import study_schema
from raybench.core.space import NOT_SEARCHED
from raybench.core.spec import RunSpec

SPACES = Path(__file__).parents[2] / "search_spaces"


def test_the_published_schema_is_the_present_one() -> None:
    published = json.loads((SPACES / "schema.json").read_text())
    assert published == study_schema(), "run: python -m raybench.core.schema"


def test_every_searchable_key_is_described() -> None:
    space = study_schema()["properties"]["space"]["properties"]
    assert set(space) == {*RunSpec.model_fields, *OTHER_NAMES} - set(NOT_SEARCHED)
    assert all(entry["description"] for entry in space.values())
