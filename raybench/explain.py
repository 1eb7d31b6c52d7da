"""`python -m raybench.explain TERM`: what a word of the tables, screens and pages means."""

import argparse
import sys
import textwrap
from collections.abc import Sequence

from rich.console import Console

from raybench import cli
from raybench.core.errors import UserError
from raybench.core.text import clean
from raybench.results.console import make_console, say
from raybench.results.glossary import GLOSSARY, SECTIONS, find_term, nearest_terms
from raybench.results.paragraphs import WIDEST

WHOLE = "\u00a0"
"""A blank at which no line ends."""
EXAMPLE = "worker-seconds"


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench explain", description=__doc__)
    result.add_argument(
        "term", nargs="*", metavar="TERM", help="a term, or the head of a column; none: all terms"
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    return cli.run_command(lambda: explain(" ".join(options.term)))


def explain(word: str) -> int:
    """Print what a term means; without one, the terms there are. UserError names the nearest."""
    console = make_console(sys.stdout)
    if not word.strip():
        _list(console)
        return cli.DONE
    term = find_term(word)
    if term is None:
        near = nearest_terms(word)
        instead = f"did you mean {' or '.join(near)}?" if near else "raybench explain lists them."
        raise UserError(f"explain {clean(word)}: is no term; {instead}")
    _say_wrapped(console, f"{term}: {GLOSSARY[term]}")
    return cli.DONE


def _list(console: Console) -> None:
    for title, terms in SECTIONS.items():
        say(console, title)
        whole = ", ".join(term.replace(" ", WHOLE) for term in terms)
        _say_wrapped(console, whole, indent="  ")
    say(console, f"What one of them means: raybench explain {EXAMPLE}")


def _say_wrapped(console: Console, text: str, *, indent: str = "") -> None:
    lines = textwrap.wrap(
        text,
        min(console.width, WIDEST),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    for line in lines:
        say(console, line.replace(WHOLE, " "))


if __name__ == "__main__":
    sys.exit(main())
