"""Ranks of a user's training loop that can never synchronize again: distinguished from slow ones
and named within seconds, without an end of the process."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from group import run_two
from own_loops import Loop, on_two_ranks, spec_of

from raybench.training import own, ranks
from raybench.training.own import Run
from raybench.training.ranks import STUCK_S, Call, Position, mismatch, parting


def rank_0(**given: Any) -> Position:
    return Position(**{"rank": 0, "num_calls": 4} | given)


def rank_1(**given: Any) -> Position:
    return Position(**{"rank": 1, "num_calls": 4} | given)


def names_in(sentence: str) -> list[str]:
    """Ranks, calls and places that a sentence names, in its order."""
    return re.findall(
        r"rank \d|(?:run|sys)\.\w+(?:\(\d?\))?|returned|outside|train.py, line 7", sentence
    )


STUCK = {"num_exchanges": 9, "still_s": STUCK_S, "is_training": True}


@pytest.mark.parametrize(
    "positions",
    [
        # Slow is not hung, however long: an evaluation of rank 0 alone, a long interval, a file.
        (rank_0(), rank_1(num_calls=5, waits_at=Call.REPORT)),
        (rank_0(is_training=True), rank_1(is_training=True)),
        (rank_0(is_training=True), rank_1(num_calls=5, waits_at=Call.TRAINED)),
        # All that one rank has left to do is its own work after the last report.
        (rank_0(), rank_1(left="returned")),
        # Positions are seconds old: by now rank 0 has met rank 1, which has left since.
        (rank_0(waits_at=Call.REPORT), rank_1(left="returned")),
        (rank_0(num_calls=3, is_training=True), rank_1(left="returned")),
        # An exchange that lasts, and one that rank 1 has begun too.
        (rank_0(**STUCK | {"still_s": 0.0}), rank_1(num_calls=5, waits_at=1, num_exchanges=8)),
        (rank_0(**STUCK), rank_1(num_calls=5, waits_at=Call.TRAINED, num_exchanges=9)),
        # Rank 0 has met rank 1 since, and exchanges in what follows.
        (rank_0(num_calls=6, **STUCK), rank_1(num_calls=5, waits_at=1, num_exchanges=8)),
        # A framework that does not count.
        (rank_0(**STUCK), rank_1(num_calls=5, waits_at=Call.TRAINED)),
    ],
)
def test_ranks_that_may_still_meet(positions: tuple[Position, ...]) -> None:
    assert parting(positions) is None
    assert parting(positions[::-1]) is None


@pytest.mark.parametrize(
    ("positions", "names"),
    [
        (
            (rank_0(num_calls=5, waits_at=Call.REPORT), rank_1(left="returned")),
            ["rank 1", "returned", "rank 0", "run.report"],
        ),
        (
            (rank_0(num_calls=5, waits_at=Call.TRAINING), rank_1(left="sys.exit()")),
            ["rank 1", "sys.exit()", "rank 0", "run.training()"],
        ),
        (
            (rank_0(is_training=True, place="train.py, line 7"), rank_1(left="returned")),
            ["rank 1", "returned", "rank 0", "run.training()", "train.py, line 7"],
        ),
        (
            (rank_0(**STUCK | {"is_training": False}), rank_1(left="returned", num_exchanges=8)),
            ["rank 1", "returned", "rank 0", "outside"],
        ),
        (
            (rank_0(**STUCK), rank_1(num_calls=5, waits_at=Call.TRAINED, num_exchanges=8)),
            ["rank 1", "run.training()", "rank 0", "run.training()"],
        ),
    ],
)
def test_ranks_that_cannot_meet(positions: tuple[Position, ...], names: list[str]) -> None:
    for given in (positions, positions[::-1]):
        assert names_in(parting(given) or "")[: len(names)] == names


def test_a_call_that_is_not_the_others_is_named() -> None:
    assert mismatch([Call.REPORT] * 3) is None
    sentence = mismatch([Call.REPORT, Call.REPORT, Call.TRAINING]) or ""
    assert names_in(sentence)[:4] == ["rank 0", "run.report", "rank 2", "run.training()"]


def errors_of(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Return the errors of two ranks, by rank."""
    monkeypatch.setattr(own, "LOOK_S", 0.05)
    positions: dict[int, Position] = {}

    def compare(position: Position) -> str | None:
        positions[position.rank] = position
        return parting(positions.values())

    return on_two_ranks(spec_of(), loop, compare)[1]


def acting(*actions: str) -> Loop:
    """A loop in which each rank carries out its actions: (t)rains, (r)eports, (x) exits inside of
    training, (e)xits, (w)orks, (f)ails; without an action left it returns."""

    def loop(run: Run) -> None:
        for action in actions[run.rank]:
            if action in "tx":
                with run.training():
                    time.sleep(0.002)
                    if action == "x":
                        raise SystemExit(0)
            elif action == "r":
                run.report(0.5, samples=10)
            elif action == "e":
                raise SystemExit
            elif action == "w":  # many looks: an evaluation, a model that is written
                time.sleep(0.5)
            else:
                raise ValueError("no such file")

    return loop


@pytest.mark.parametrize(
    ("loop", "names"),
    [
        (acting("trtr", "ttt"), ["rank 0", "run.report", "rank 1", "run.training()"]),
        (acting("trtrtr", "trtr"), ["rank 1", "returned", "rank 0"]),
        (acting("trtr", "tre"), ["rank 1", "sys.exit()", "rank 0"]),
        (acting("trtr", "trx"), ["rank 1", "sys.exit(0)", "rank 0", "run.training()"]),
        (acting("tr", "r"), ["rank 0", "run.training()", "rank 1", "run.report"]),
        (acting("tr", ""), ["rank 1", "returned", "rank 0", "run.training()"]),
    ],
)
def test_ranks_that_part_end_with_a_sentence_that_names_them(
    loop: Loop, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = errors_of(loop, monkeypatch)
    assert names_in(errors[0])[: len(names)] == names, errors


def test_a_rank_may_work_on_after_the_others_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors_of(acting("trw", "tr"), monkeypatch) == {}


def test_exchanges_before_the_last_call_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has sent more messages than rank 1; later it works alone, and is waited for."""
    monkeypatch.setattr(ranks, "STUCK_S", 0.1)

    def loop(run: Run) -> None:
        run._adapter.num_exchanges = lambda: 3 if run.rank == 0 else 1
        acting("trwtr", "trtr")(run)

    assert errors_of(loop, monkeypatch) == {}


def test_an_error_names_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = errors_of(acting("", "f"), monkeypatch)
    assert "rank 1" in errors[1]
    assert all(name in errors[0] for name in ("rank 0", "accuracy"))


@pytest.mark.all
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("framework", "case", "reports", "names"),
    [
        ("torch", "uneven", 1, ("rank 1", "rank 0", "run.training()", "parting.py, line")),
        ("torch", "clock", 0, ("rank 0", "rank 1", "outside")),
        ("torch", "own_collective", 0, ("rank 1", "run.report")),
        # TensorFlow ends the exchange by itself where shapes differ, with its own words.
        ("tensorflow", "uneven", 1, ("rank 1", "run.training()", "batches")),
    ],
)
def test_workers_that_part_in_an_exchange_of_gradients(
    framework: str, case: str, reports: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    """Neither do they hang, nor does an exchange of one rank meet another call and end it."""
    pytest.importorskip(framework)
    run_two("parting.py", framework, case, tmp_path)
    said = [json.loads(file.read_text()) for file in tmp_path.glob("said-*.json")]
    assert {number for number, _ in said} == {reports}, "a rank that is slower is waited for"
    assert any(all(name in sentence for name in names) for _, sentence in said), said
