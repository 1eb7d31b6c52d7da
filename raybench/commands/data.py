"""`raybench data`: list or remove the decoded datasets that are cached on this machine."""

import sys
from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.filesize import decimal

from raybench.data.store import (
    Entry,
    free_bytes,
    list_entries,
    remove_entry,
    remove_unfinished,
    store_folder,
)
from raybench.report.console import make_console, say
from raybench.report.tables import print_frame
from raybench.runs.options import DataOptions
from raybench.spec.errors import DONE, Ended, ErrorCode, UserError, did_you_mean
from raybench.spec.run import DatasetSpec
from raybench.stats.clock import unix_seconds

ALL = "all"
DAY = 86400  # seconds


def data(options: DataOptions) -> Ended:
    """List the cached datasets, or remove some of them."""
    entries = list_entries(store_folder())
    if options.unused_for is not None:
        before = unix_seconds() - options.unused_for
        entries = [entry for entry in entries if entry.last_used < before]
    return _remove(entries, options) if options.remove else _list(entries)


def _list(entries: Sequence[Entry]) -> Ended:
    console, store = make_console(sys.stdout), store_folder()
    if not entries:
        say(console, f"No datasets are kept in {store}.")
        return Ended(DONE, details={"folder": store, "entries": []})
    cells = pd.DataFrame(
        {
            "key": entry.key,
            "samples": f"{entry.about['samples']:,}",
            "size": decimal(entry.about["bytes"]),
            "last used": f"{(unix_seconds() - entry.last_used) / DAY:.1f} days ago",
            "made from": entry.about["path"],
            "with": _options(entry.about["options"]),
        }
        for entry in entries
    )
    total = decimal(sum(entry.about["bytes"] for entry in entries))
    below = f"{total} in {store}, whose disk has {decimal(free_bytes())} left."
    title = "Datasets kept on this machine"
    print_frame(console, cells, title, drop=("samples", "last used"), below=below)
    kept = [{"key": entry.key, "last_used": entry.last_used} | entry.about for entry in entries]
    return Ended(DONE, answer=[below], details={"folder": store, "entries": kept})


def _options(options: dict[str, Any]) -> str:
    """Return the options of a dataset that differ from the defaults, as `key: value, ...`."""
    default = DatasetSpec().model_dump(mode="json")
    given = {key: value for key, value in options.items() if value != default[key]}
    return ", ".join(f"{key}: {value}" for key, value in given.items())


def _remove(entries: Sequence[Entry], options: DataOptions) -> Ended:
    """Remove the datasets with the keys of `--remove`."""
    console, keys = make_console(sys.stdout), options.remove
    known = {entry.key: entry for entry in entries}
    chosen = dict.fromkeys(key for name in keys for key in (known if name == ALL else [name]))
    for key in chosen:
        if key not in known:
            hint = did_you_mean(key, known, "`raybench data` lists them.")
            unused = "" if options.unused_for is None else " among those unused for so long"
            raise UserError(
                f"--remove {key}: no such dataset is kept here{unused}; {hint}", ErrorCode.NOT_FOUND
            )
    freed = 0
    for key in chosen:
        remove_entry(known[key].folder)
        freed += known[key].about["bytes"]
        say(console, f"Removed {key}: {known[key].about['path']}.")
    if ALL in keys and options.unused_for is None:
        freed += remove_unfinished(store_folder())
    say(console, f"{decimal(freed)} freed in {store_folder()}.")
    return Ended(DONE, details={"removed": [*chosen], "bytes": freed})
