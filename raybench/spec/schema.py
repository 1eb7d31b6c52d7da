"""The JSON Schema of a search-space file, for editors; `search_spaces/schema.json` is its copy."""

import json
import sys
from typing import Any

from raybench.spec.documents import OTHER_NAMES
from raybench.spec.run import RunSpec
from raybench.spec.space import NOT_SEARCHED
from raybench.spec.study import AUTO, StudySpec

_SIMPLE: dict[str, Any] = {
    "oneOf": [
        {"type": ["number", "string", "boolean"], "description": "one value"},
        {"type": "array", "minItems": 1, "description": "one of a list"},
        {
            "type": "object",
            "description": "a range, both bounds included",
            "properties": {
                "low": {"type": "number"},
                "high": {"type": "number"},
                "log": {"type": "boolean", "description": "sample the logarithm evenly"},
                "log2": {"type": "boolean", "description": "powers of two only"},
            },
            "required": ["low", "high"],
            "additionalProperties": False,
        },
    ]
}
_CASES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "description": "a range or a list of values for each case of other keys",
    "items": {
        "type": "object",
        "required": ["when"],
        "properties": {
            "when": {"type": "object", "description": "key: value or list of values"},
            "values": {"type": "array"},
            "low": {"type": "number"},
            "high": {"type": "number"},
            "log": {"type": "boolean"},
            "log2": {"type": "boolean"},
        },
        "additionalProperties": False,
    },
}


def study_schema() -> dict[str, Any]:
    """Return the schema, with the run spec's keys under `space` and `fixed`."""
    schema = StudySpec.model_json_schema()
    run = RunSpec.model_json_schema()
    keys = {
        key: value
        for key, value in run["properties"].items()
        if key not in ("workload", "dataset", "objective")
    }
    for other, name in OTHER_NAMES.items():
        keys[other] = keys[name] | {"description": f"Another name of `{name}`."}
    schema["properties"]["fixed"] |= {"properties": keys, "additionalProperties": False}
    target = schema["$defs"]["Objective"]["properties"]["target"]
    target["anyOf"].append({"const": AUTO, "description": "set by reference runs"})
    seconds = schema["$defs"]["Objective"]["properties"]["max_train_seconds"]
    number = {key: seconds.pop(key) for key in ("type", "exclusiveMinimum")}
    seconds["anyOf"] = [number, {"const": AUTO, "description": "from a reference run"}]
    for key in ("auto", "is_set"):  # what a study notes by itself
        del schema["properties"][key]
    dataset = schema["properties"]["dataset"]
    names = schema["$defs"]["DatasetSpec"]["properties"]["name"]["enum"]
    dataset["anyOf"] = [{"$ref": dataset.pop("$ref")}, {"enum": names, "description": "its name"}]
    schema["properties"]["space"] |= {
        "properties": {
            key: {"description": value.get("description", ""), "anyOf": [_SIMPLE, _CASES]}
            for key, value in keys.items()
            if key not in NOT_SEARCHED
        },
        "additionalProperties": False,
    }
    return schema


if __name__ == "__main__":
    json.dump(study_schema(), sys.stdout, indent=1)
    sys.stdout.write("\n")
