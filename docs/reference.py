"""Write what the docs take from the code and from recorded results: `python docs/reference.py`.

That is `docs/keys.md` (every key of a file), `docs/words.md` (every word of screens and pages),
`docs/errors.md`, the schemas of search-space files and of what `--json` prints, the table of search
times in `docs/benchmarks.md` and the README's sentence on them. A test compares them with what
stands there.
"""

import ast
import inspect
import json
import textwrap
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from raybench.report.as_json import CommandResult
from raybench.report.page.document import glossary
from raybench.spec import errors
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.objective import Objective
from raybench.spec.run import OPEN, RunSpec
from raybench.spec.scaling_study import MachinePrice, ScalingStudy
from raybench.spec.space import NOT_SEARCHED, RangeForm
from raybench.spec.study import AUTO, COMMON, ConfirmSpec, SearchSpec, StudySpec

ROOT = Path(__file__).parents[1]
NOTE = "<!-- Written by `python docs/reference.py`; change the code, not this file. -->\n"
MODELS: dict[str, tuple[type[BaseModel], str]] = {
    "A run": (RunSpec, "All settings of one training; `best.yaml` is such a file."),
    "`dataset`": (DatasetSpec, "Training data, and how much of it to use; see [data](data.md)."),
    "`objective`": (Objective, "Metric, target and budget of a run."),
    "A search": (StudySpec, "The file of `raybench tune`; see [search](search.md)."),
    "`search`": (SearchSpec, "Length and method of a search."),
    "`confirm`": (ConfirmSpec, "Confirmation of the winners."),
    "A scaling study": (ScalingStudy, "The file of `raybench scale`; see [scaling](scaling.md)."),
    "A machine of `prices.yaml`": (
        MachinePrice,
        "`raybench plan --prices FILE` reads machines by name, as in `examples/prices.yaml`.",
    ),
}
START, END = "<!-- search times: python docs/reference.py -->\n", "<!-- end of search times -->"
RESULTS = ROOT / "benchmarks/results"
TABLES = {
    "mnist_conv": "MNIST, convolutions",
    "mnist_mlp": "MNIST, dense",
    "flights_mlp, by chance": "flights",
    "docstrings_text, by chance": "texts",
    "cifar_resnet, by chance": "CIFAR-10",
    "docstrings_throttled, by chance": "texts, slowed",
}
DATA = TABLES | {"flights_mlp, by chance": "flight-delay"}
"""Names of the data in the README's sentence."""
TOOLS = {
    "raybench, then its race": "raybench",
    "raybench": "its search alone",
    "Ray, ASHA by seconds": "Ray Tune: OptunaSearch, ASHA",
    "Optuna, Hyperband": "Optuna: TPE, Hyperband",
    "Syne Tune ASHA": "Syne Tune: ASHA",
    "FLAML BlendSearch": "FLAML: BlendSearch",
    "NePS PriorBand": "NePS: PriorBand",
    "SMAC3, budgets": "SMAC3",
    "random": "random",
}


def keys_page() -> str:
    """Return `docs/keys.md`."""
    parts = [NOTE, "# The keys of files\n"]
    parts.append(
        "Each key can be set in a file or by `--set KEY=VALUE`; nested keys are dotted: "
        "`--set dataset.limit=1000`. Unknown keys are errors.\n"
    )
    for title, (model, about) in MODELS.items():
        rows = [
            f"| `{name}` | {_values(field.annotation)} | {_default(field)} | {_text(field)} |"
            for name, field in model.model_fields.items()
            if not field.exclude and "Not for files" not in _text(field)
        ]
        head = "| key | value | default | |\n|---|---|---|---|"
        parts.append(f"## {title}\n\n{about}\n\n{head}\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def words_page() -> str:
    """Return `docs/words.md`."""
    parts = [NOTE, "# Words\n", "Terms on screens, pages and in tables.\n"]
    for title, words in glossary().items():
        rows = [f"| {word} | {_cell(text)} |" for word, text in words.items()]
        parts.append(f"## {title}\n\n| word | meaning |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def errors_page() -> str:
    """Return `docs/errors.md`: the members of `ErrorCode` with their docstrings."""
    tree = ast.parse(inspect.getsource(errors.ErrorCode))
    assert isinstance(tree.body[0], ast.ClassDef)
    texts = [
        node.value.value
        for node in tree.body[0].body[1:]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    rows = [
        f"| `{code.value}` | {_cell(str(text))} |"
        for code, text in zip(errors.ErrorCode, texts, strict=True)
    ]
    about = (
        "Invalid input ends a command with exit code 2 and one sentence. With `--json`, "
        "`error.code` is one of these; in Python, `raybench.UserError` has it as `code`. Codes are "
        "stable, sentences are not.\n"
    )
    head = "| code | meaning |\n|---|---|"
    return "\n".join([NOTE, "# Error codes\n", about, head, *rows]) + "\n"


def answer_schema() -> str:
    """Return `docs/answer.schema.json`."""
    return json.dumps(CommandResult.model_json_schema(), indent=1) + "\n"


def readme_page() -> str:
    """Return the README with today's sentence on search times."""
    return _between("README.md", search_sentence())


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


def space_schema() -> str:
    """Return `search_spaces/schema.json`, the JSON schema of a search-space file for editors; it
    allows the keys of a run spec under `space` and `fixed`."""
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
    return json.dumps(schema, indent=1) + "\n"


def benchmarks_page() -> str:
    """Return `docs/benchmarks.md` with today's table of search times."""
    return _between("docs/benchmarks.md", search_table())


def _between(page: str, text: str) -> str:
    """Return a page with the text between START and END replaced."""
    before, rest = (ROOT / page).read_text().split(START)
    return before + START + text + END + rest.split(END, 1)[1]


def search_cells() -> dict[tuple[str, str], dict[str, float]]:
    """Return the recorded times within 5 % of the best, by tool and table."""
    return {
        (cell["contestant"], cell["table"]): cell["within_5"]
        for name in ("search_table.json", "search_table_noise.json")
        for cell in json.loads((RESULTS / name).read_text())["cells"]
    }


def search_table() -> str:
    """Return the table of search times: medians of the recorded results, losses included."""
    cells = search_cells()
    rows = [
        [shown] + [_search_time(cells.get((tool, table))) for table in TABLES]
        for tool, shown in TOOLS.items()
    ]
    head = ["", *TABLES.values()]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def search_sentence() -> str:
    """Return how much faster raybench is than the fastest peer, over the tables."""
    cells = search_cells()
    ours, peers = list(TOOLS)[:2], list(TOOLS)[2:-1]
    ratios = []
    for table in TABLES:
        own = next(cells[tool, table] for tool in ours if (tool, table) in cells)
        others = [cells[tool, table] for tool in peers if (tool, table) in cells]
        best = min(one["median"] for one in others if one["never"] < 0.5)
        ratios.append(best / own["median"])
    return (
        textwrap.fill(
            f"On {len(TABLES)} recorded workloads, raybench is {min(ratios):.1f} to "
            f"{max(ratios):.0f} times faster than the fastest of {len(peers)} other tools at "
            f"finding a configuration within 5 % of the optimum. {_misses(cells)}",
            width=100,
            break_on_hyphens=False,
        )
        + "\n"
    )


def _misses(cells: dict[tuple[str, str], dict[str, float]]) -> str:
    tool = next(iter(TOOLS))
    never = {table: cells[tool, table]["never"] for table in TABLES if (tool, table) in cells}
    most = max(never, key=lambda table: never[table])
    return (
        f"It most often fails to find one on the {DATA[most]} data ({100 * never[most]:.0f} % of "
        "searches), where a single run can reach the target by luck."
    )


def _search_time(found: dict[str, float] | None) -> str:
    """Return a median with the share of searches that never got there; a bound from half on."""
    if found is None:
        return ""
    never, median = found["never"], found["median"]
    shown = f"{median:.1f}" if median < 100 else f"{median:.0f}"
    return f"{'>' if never >= 0.5 else ''}{shown}" + (f" ({never:.0%})" if never else "")


def _values(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Annotated:
        return _values(get_args(kind)[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if origin in (Union, types.UnionType):
        kinds = [_values(one) for one in get_args(kind) if one is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin is list or kind is list:
        inner = _values(get_args(kind)[0]) if get_args(kind) else "values"
        return f"list of {inner}"
    if origin is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return "keys"
    names = {bool: "true, false", int: "whole number", float: "number", str: "text"}
    return names.get(kind, "any")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_defaults=True)
        return f"`{json.dumps(value)}`" if value else ""
    if value is None:
        return ""
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value, default=str)}`"


def _text(field: FieldInfo) -> str:
    return _cell(field.description or "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES = {
    "docs/keys.md": keys_page,
    "docs/words.md": words_page,
    "docs/errors.md": errors_page,
    "docs/answer.schema.json": answer_schema,
    "search_spaces/schema.json": space_schema,
    "docs/benchmarks.md": benchmarks_page,
    "README.md": readme_page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        (ROOT / path).write_text(page())
        print(path)
