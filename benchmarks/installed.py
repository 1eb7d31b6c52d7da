"""Checks which other tools of a benchmark are installed; missing ones are named and left out.

The check is made at the start, so that no benchmark fails after minutes for a missing package.
"""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from typing import NoReturn

HOW = "pip install 'raybench[benchmarks]'"


def missing(modules: Iterable[str]) -> list[str]:
    """Return the modules that are not installed, without importing any."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def left_out(needs: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the tools that cannot be measured, each with its missing modules."""
    lacking = {peer: missing(modules) for peer, modules in needs.items()}
    return {peer: modules for peer, modules in lacking.items() if modules}


def print_left_out(program: str, lacking: Mapping[str, list[str]]) -> None:
    """Print to stderr which tools are left out, in one sentence for each set of modules."""
    for modules, peers in _by_modules(lacking).items():
        are = "are" if len(peers) > 1 else "is"
        reason = _reason(modules)
        print(
            f"{program}: {_listed(peers)} {are} left out: {reason} ({HOW}).",
            file=sys.stderr,
            flush=True,
        )


def note(lacking: Mapping[str, list[str]]) -> list[str]:
    """Return lines on the tools that are left out, for the results."""
    return [
        f"left out: {', '.join(peers)} ({_reason(modules)})"
        for modules, peers in _by_modules(lacking).items()
    ]


def exit_without_tools(program: str) -> NoReturn:
    """End with exit code 2, because no requested tool is installed."""
    print(f"{program}: nothing is left to measure; {HOW}.", file=sys.stderr)
    sys.exit(2)


def frameworks(program: str, wanted: Iterable[str]) -> list[str]:
    """Return the frameworks that are installed, and print which are not."""
    names = list(wanted)
    lacking = left_out({name: [name] for name in names})
    print_left_out(program, lacking)
    if len(lacking) == len(names):
        exit_without_tools(program)
    return [name for name in names if name not in lacking]


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _by_modules(lacking: Mapping[str, list[str]]) -> dict[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for peer, modules in lacking.items():
        groups.setdefault(tuple(modules), []).append(peer)
    return groups


def _reason(modules: tuple[str, ...]) -> str:
    return f"{_listed(list(modules))} {'are' if len(modules) > 1 else 'is'} not installed"


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
