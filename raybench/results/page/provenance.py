"""Where the numbers of a page come from: command, versions, machines."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from raybench.results.load import StudyResults
from raybench.results.page.html import Html, definitions, isolated, join, text
from raybench.results.page.tables import code
from raybench.results.place import shown

MOST = 20
"""Hosts, devices that are named."""


def provenance_part(results: StudyResults) -> Html:
    """Return what must be known to read the results later, or to repeat them."""
    content = results.study
    study = content["study"]
    pairs: list[tuple[str, Html]] = []
    sessions = [content, *_mappings(content.get("continued"))]
    for number, session in enumerate(sessions):
        which = "" if number == 0 else f", session {number + 1}"
        if session.get("command"):
            pairs.append((f"Command{which}", code(str(session["command"]))))
        for key in ("versions", "machine", "cluster"):
            if session.get(key):
                pairs.append((f"{key.capitalize()}{which}", isolated(words(session[key]))))
    for key in ("workload", "dataset", "search", "confirm", "fixed"):
        if study.get(key):
            pairs.append((key.capitalize(), isolated(words(study[key]))))
    runs = results.runs.values()
    for name, found in (
        ("Hosts of runs", {host for run in runs for host in run.hosts}),
        ("Devices of runs", {str(device) for run in runs for device in run.devices}),
        ("GPUs of runs", {one for run in runs for one in run.accelerators}),
    ):
        if found:
            pairs.append((name, isolated(_listed(sorted(found)))))
    pairs.append(("Results", isolated(shown(results.place, results.folder))))
    pairs.append(("Page written", text(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")))
    return join([definitions(pairs, class_="provenance")])


def words(value: Any) -> str:
    """Return plain data in words: `ray 2.60.0, torch 2.15.0`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {words(inner)}" for key, inner in value.items() if _tells(inner))
    if isinstance(value, list):
        return "; ".join(map(words, value))
    return str(value)


def _tells(value: Any) -> bool:
    """Whether a value says anything: none and empty ones do not."""
    return value is not None and value not in ({}, [])


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _listed(names: list[str]) -> str:
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")
