"""`raybench explain`: terms in any form, the nearest of what is none; the glossary is whole."""

import pytest

from raybench import cli, explain
from raybench.core.clock import OTHER, PHASES
from raybench.core.record import PHASE_OF
from raybench.results.glossary import ALIASES, GLOSSARY, find_term
from raybench.results.printed import DROPPED, SHORT


def test_a_term_is_explained(capsys):
    assert (
        cli.main(["explain", "worker_seconds"]) == cli.main(["explain", "Worker", "seconds"]) == 0
    )
    first, second = capsys.readouterr().out.split("worker-seconds: ")[1:]
    assert (
        first
        == second
        == "Seconds of training times the number of workers: what the\n"
        + (first.partition("\n")[2])
    )


def test_without_a_term_all_are_listed(capsys):
    assert explain.main([]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(term in text for term in GLOSSARY)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("effcency", "did you mean efficiency?"),
        ("confirmd", "did you mean confirmed or unconfirmed?"),
        ("xyzzy", "raybench explain lists them."),
        ("\x1b[2J[bold]", "raybench explain lists them."),
    ],
)
def test_what_is_no_term_names_the_nearest(capsys, word, hint):
    assert explain.main([word]) == 2
    error = capsys.readouterr().err
    assert hint in error
    assert (len(error.splitlines()), "\x1b" in error) == (1, False)


def test_every_phase_role_and_head_of_a_column_is_explained():
    heads = [*SHORT.values(), "search s", "expected s", "median s", "alone s", "90 % interval"]
    roles = (role for role in PHASE_OF if role not in ("confirm", "scaling"))
    for word in (*PHASES, "input", OTHER, *roles, *heads, "reached"):
        assert find_term(word), word
    assert set(ALIASES.values()) <= set(GLOSSARY)
    assert "worker-s" in DROPPED
    assert all(text.endswith(".") and "  " not in text for text in GLOSSARY.values())
