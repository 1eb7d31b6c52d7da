"""The diffs of docs/recipes.md, which adapt examples/scripts/ to a search."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "scripts"
BLOCK = re.compile(r"```diff\n# (\S+)\n(.*?)```", re.DOTALL)


def diffs() -> dict[str, list[str]]:
    """Return the lines of each diff by script name."""
    text = (ROOT / "docs" / "recipes.md").read_text()
    return {name: body.splitlines() for name, body in BLOCK.findall(text)}


def changed(name: str) -> str:
    """Return a script with its diff applied; diffs have no line numbers, and their lines are in
    the order of the script."""
    lines, at = (SCRIPTS / name).read_text().splitlines(), 0
    for line in diffs().get(name, []):
        kind, text = line[:1], line[1:]
        if kind == "+":
            lines.insert(at, text)
            at += 1
            continue
        at = lines.index(text, at)
        if kind == "-":
            del lines[at]
        else:
            at += 1
    return "\n".join(lines) + "\n"


def num_changed(name: str) -> int:
    """Return the number of lines that a diff adds, replaces or removes."""
    number = removed = 0
    for line in [*diffs().get(name, []), " "]:
        if line.startswith("-"):
            removed += 1
        elif line.startswith("+"):
            number, removed = number + 1, max(removed - 1, 0)
        else:
            number, removed = number + removed, 0
    return number
