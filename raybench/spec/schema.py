"""JSON Schema of a search-space file, for editors; it is stored in `search_spaces/schema.json`."""

import json
import sys
from typing import Any

from raybench.spec.run import OPEN, RunSpec
from raybench.spec.space import NOT_SEARCHED, RangeForm
from raybench.spec.study import AUTO, COMMON, StudySpec

_RANGE = RangeForm.model_json_schema()
_SIMPLE: list[dict[str, Any]] = [
    {"type": ["number", "string", "boolean", "null"], "description": "one value"},
    {"type": "array", "minItems": 1, "description": "one of a list"},
    _RANGE,
]
_WHEN = {"type": "object", "description": "key: value or list of values"}
_CASE: dict[str, Any] = {
    "type": "object",
    "required": ["when"],
    "properties": {"when": _WHEN, "values": {"type": "array"}} | _RANGE["properties"],
    "additionalProperties": False,
}
_CASES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "description": "a range or a list of values for each case of other keys",
    "items": _CASE,
}


_DIMENSION = [{"$ref": "#/$defs/Dimension"}, {"$ref": "#/$defs/Cases"}]


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a search-space file, which allows the keys of a run spec under
    `space` and `fixed`."""
    schema = StudySpec.model_json_schema()
    schema["$defs"] |= {"Dimension": {"oneOf": _SIMPLE}, "Cases": _CASES}
    run = RunSpec.model_json_schema()
    keys = {key: value for key, value in run["properties"].items() if key not in COMMON}
    schema["properties"]["fixed"] |= {"properties": keys, "additionalProperties": False}
    target = schema["$defs"]["Objective"]["properties"]["target"]
    target["anyOf"].append({"const": AUTO, "description": "set by reference runs"})
    seconds = schema["$defs"]["Objective"]["properties"]["max_train_seconds"]
    number = {key: seconds.pop(key) for key in ("type", "exclusiveMinimum")}
    seconds["anyOf"] = [number, {"const": AUTO, "description": "from a reference run"}]
    for key in ("auto", "is_set"):  # not for files
        del schema["properties"][key]
    dataset = schema["properties"]["dataset"]
    names = schema["$defs"]["DatasetSpec"]["properties"]["name"]["enum"]
    dataset["anyOf"] = [{"$ref": dataset.pop("$ref")}, {"enum": names, "description": "its name"}]
    schema["properties"]["space"] |= {
        "properties": {
            key: {"description": value.get("description", ""), "anyOf": _DIMENSION}
            for key, value in keys.items()
            if key not in NOT_SEARCHED
        }
        | {
            key: {
                "type": "object",
                "description": keys[key].get("description", ""),
                "additionalProperties": {"anyOf": _DIMENSION},
            }
            for key in OPEN
        },
        "patternProperties": {f"^({'|'.join(OPEN)})\\.": {"anyOf": _DIMENSION}},
        "additionalProperties": False,
    }
    return schema


if __name__ == "__main__":
    json.dump(study_schema(), sys.stdout, indent=1)
    sys.stdout.write("\n")
