"""Which peers of a benchmark are installed: a missing one is said at the start and left out.

Nothing is computed for minutes and lost in the end because a package is not there.
"""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from typing import NoReturn

HOW = "pip install 'raybench[benchmarks]'"


def missing(modules: Iterable[str]) -> list[str]:
    """Return those of the modules that are not installed; imports none of them."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def left_out(needs: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the peers that cannot be measured, each with the modules that are missing."""
    lacking = {peer: missing(modules) for peer, modules in needs.items()}
    return {peer: modules for peer, modules in lacking.items() if modules}


def say_left_out(program: str, lacking: Mapping[str, list[str]]) -> None:
    """Say on stderr who is left out and why: one sentence for peers that lack the same."""
    for modules, peers in _by_modules(lacking).items():
        are = "are" if len(peers) > 1 else "is"
        reason = _reason(modules)
        print(
            f"{program}: {_listed(peers)} {are} left out: {reason} ({HOW}).",
            file=sys.stderr,
            flush=True,
        )


def note(lacking: Mapping[str, list[str]]) -> list[str]:
    """Return the same for the table of results, a line for each reason."""
    return [
        f"left out: {', '.join(peers)} ({_reason(modules)})"
        for modules, peers in _by_modules(lacking).items()
    ]


def nothing_left(program: str) -> NoReturn:
    """End with exit code 2: no peer that was asked for is installed."""
    print(f"{program}: nothing is left to measure; {HOW}.", file=sys.stderr)
    sys.exit(2)


def frameworks(program: str, wanted: Iterable[str]) -> list[str]:
    """Return those of the frameworks that are installed, and say which are not."""
    names = list(wanted)
    lacking = left_out({name: [name] for name in names})
    say_left_out(program, lacking)
    if len(lacking) == len(names):
        nothing_left(program)
    return [name for name in names if name not in lacking]


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those of the packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _by_modules(lacking: Mapping[str, list[str]]) -> dict[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for peer, modules in lacking.items():
        groups.setdefault(tuple(modules), []).append(peer)
    return groups


def _reason(modules: tuple[str, ...]) -> str:
    return f"{_listed(list(modules))} {'are' if len(modules) > 1 else 'is'} not installed"


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
