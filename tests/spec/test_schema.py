import json
from pathlib import Path

from raybench.spec.documents import OTHER_NAMES
from raybench.spec.run import RunSpec
from raybench.spec.schema import study_schema
from raybench.spec.space import NOT_SEARCHED

SPACES = Path(__file__).parents[2] / "search_spaces"


def test_the_published_schema_is_the_present_one() -> None:
    published = json.loads((SPACES / "schema.json").read_text())
    assert published == study_schema(), "run: python -m raybench.spec.schema"


def test_every_searchable_key_is_described() -> None:
    space = study_schema()["properties"]["space"]["properties"]
    assert set(space) == {*RunSpec.model_fields, *OTHER_NAMES} - set(NOT_SEARCHED)
    assert all(entry["description"] for entry in space.values())
