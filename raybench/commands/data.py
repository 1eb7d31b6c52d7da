"""`raybench data`: list the decoded datasets that are kept on this machine, and remove some."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import pandas as pd

from raybench.commands import cli
from raybench.data.store import (
    Entry,
    free_bytes,
    list_entries,
    remove_entry,
    remove_unfinished,
    size_in_words,
    store_folder,
)
from raybench.report.console import make_console, say
from raybench.report.live.screen import about
from raybench.report.tables import print_frame
from raybench.spec.errors import Ended, UserError, did_you_mean
from raybench.spec.run import DatasetSpec
from raybench.spec.text import seconds_of
from raybench.stats.clock import unix_seconds

ALL = "all"


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench data", description=__doc__)
    result.add_argument(
        "--remove",
        nargs="+",
        metavar="KEY",
        help="remove these, or `all`; never one that a running command uses",
    )
    result.add_argument(
        "--unused-for",
        type=_age,
        metavar="AGE",
        help="only those that no command has opened for so long: 12h, 30d, 8w",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return parser().run(arguments, _asked)


def _asked(options: argparse.Namespace) -> Ended:
    if options.remove:
        return _remove(options.remove, options.unused_for)
    return _list(options.unused_for)


def _list(unused_for: float | None) -> Ended:
    console, store = make_console(sys.stdout), store_folder()
    entries = _entries(unused_for)
    if not entries:
        say(console, f"No datasets are kept in {store}.")
        return Ended(cli.DONE, details={"folder": store, "entries": []})
    cells = pd.DataFrame(
        {
            "key": entry.key,
            "samples": f"{entry.about['samples']:,}",
            "size": size_in_words(entry.about["bytes"]),
            "last used": f"{about(unix_seconds() - entry.last_used)} ago",
            "made from": entry.about["path"],
            "with": _options(entry.about["options"]),
        }
        for entry in entries
    )
    total = size_in_words(sum(entry.about["bytes"] for entry in entries))
    below = f"{total} in {store}, whose disk has {size_in_words(free_bytes())} left."
    title = "Datasets kept on this machine"
    print_frame(console, cells, title, drop=("samples", "last used"), below=below)
    kept = [{"key": entry.key, "last_used": entry.last_used} | entry.about for entry in entries]
    return Ended(cli.DONE, answer=[below], details={"folder": store, "entries": kept})


def _options(options: dict[str, Any]) -> str:
    """Return the keys that were given, as a file has them."""
    default = DatasetSpec().model_dump(mode="json")
    given = {key: value for key, value in options.items() if value != default[key]}
    return ", ".join(f"{key}: {value}" for key, value in given.items())


def _remove(keys: Sequence[str], unused_for: float | None) -> Ended:
    """Remove entries by their keys; exit code 1 where one is in use."""
    console, entries = make_console(sys.stdout), _entries(unused_for)
    known = {entry.key: entry for entry in entries}
    chosen = dict.fromkeys(key for name in keys for key in (known if name == ALL else [name]))
    for key in chosen:
        if key not in known:
            raise UserError(_unknown(key, list(known), unused_for))
    code, freed, removed = cli.DONE, 0, []
    for key in chosen:
        if remove_entry(known[key].folder):
            freed += known[key].about["bytes"]
            removed.append(key)
            say(console, f"Removed {key}: {known[key].about['path']}.")
        else:
            code = cli.FAILED
            say(console, f"Kept {key}: a running command uses it.")
    if ALL in keys and unused_for is None:
        freed += remove_unfinished(store_folder())
    say(console, f"{size_in_words(freed)} freed in {store_folder()}.")
    return Ended(code, details={"removed": removed, "bytes": freed})


def _entries(unused_for: float | None) -> list[Entry]:
    entries = list_entries(store_folder())
    if unused_for is None:
        return entries
    before = unix_seconds() - unused_for
    return [entry for entry in entries if entry.last_used < before]


def _unknown(key: str, known: Sequence[str], unused_for: float | None) -> str:
    hint = did_you_mean(key, known, "`raybench data` lists them.")
    unused = " among those unused for so long" if unused_for is not None else ""
    return f"--remove {key}: no such dataset is kept here{unused}; {hint}"


def _age(text: str) -> float:
    seconds = seconds_of(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text} is no age such as 12h, 30d or 8w")
    return seconds
