"""Detection of ranks of a user's training loop that can never synchronize again, which are
distinguished from slow ranks and named within seconds."""

import json
import re
import time
from functools import partial

import pytest
from user_loops import Loop, run_on_two_ranks, spec_of
from worker_processes import run_two

from raybench.training import own, ranks
from raybench.training.own import Run
from raybench.training.ranks import STUCK_S, Call, Position, parting

rank_0 = partial(Position, rank=0, num_calls=4)
rank_1 = partial(Position, rank=1, num_calls=4)


def names_in(sentence: str) -> list[str]:
    """Return the ranks, calls and places that a sentence names, in order."""
    return re.findall(
        r"rank \d|(?:run|sys)\.\w+(?:\(\d?\))?|returned|outside|train.py, line 7", sentence
    )


STUCK = {"num_exchanges": 9, "still_s": STUCK_S, "is_training": True}


@pytest.mark.parametrize(
    "positions",
    [
        # Slow ranks do not hang: an evaluation on rank 0 only, a long interval, writing a file.
        (rank_0(), rank_1(num_calls=5, waits_at=Call.REPORT)),
        (rank_0(is_training=True), rank_1(is_training=True)),
        (rank_0(is_training=True), rank_1(num_calls=5, waits_at=Call.TRAINED)),
        # One rank still works after the last report.
        (rank_0(), rank_1(left="returned")),
        # Positions are seconds old: meanwhile rank 0 has met rank 1, which has returned since.
        (rank_0(waits_at=Call.REPORT), rank_1(left="returned")),
        (rank_0(num_calls=3, is_training=True), rank_1(left="returned")),
        # A short exchange, and one that rank 1 has started too.
        (rank_0(**STUCK | {"still_s": 0.0}), rank_1(num_calls=5, waits_at=1, num_exchanges=8)),
        (rank_0(**STUCK), rank_1(num_calls=5, waits_at=Call.TRAINED, num_exchanges=9)),
        # Rank 0 has met rank 1 since, and exchanges after that.
        (rank_0(num_calls=6, **STUCK), rank_1(num_calls=5, waits_at=1, num_exchanges=8)),
        # A framework that does not count exchanges.
        (rank_0(**STUCK), rank_1(num_calls=5, waits_at=Call.TRAINED)),
    ],
)
def test_ranks_that_may_still_synchronize(positions):
    assert parting(positions) is None
    assert parting(positions[::-1]) is None


@pytest.mark.parametrize(
    ("positions", "names"),
    [
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
def test_ranks_that_cannot_synchronize_are_named(positions, names):
    for ordered in (positions, positions[::-1]):
        assert names_in(parting(ordered) or "")[: len(names)] == names


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "LOOK_S", 0.05)


def errors_of(loop: Loop) -> dict[int, str]:
    """Return the errors of two ranks, by rank."""
    positions: dict[int, Position] = {}

    def compare(position: Position) -> str | None:
        positions[position.rank] = position
        return parting(positions.values())

    return run_on_two_ranks(spec_of(), loop, compare)[1]


def acting(*actions: str) -> Loop:
    """Return a loop in which each rank carries out its actions and then returns.

    Actions: (t)rain, (r)eport, e(x)it during training, (e)xit, (w)ork, (f)ail.
    """

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
            elif action == "w":  # longer than many checks, like an evaluation
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
def test_diverging_ranks_end_with_an_error_that_names_them(loop, names):
    errors = errors_of(loop)
    assert names_in(errors[0])[: len(names)] == names, errors


def test_rank_may_work_after_the_others_have_returned():
    assert errors_of(acting("trw", "tr")) == {}


def test_exchanges_before_the_last_call_are_ignored(monkeypatch):
    """Rank 0 has exchanged more often than rank 1; later it works alone and is waited for."""
    monkeypatch.setattr(ranks, "STUCK_S", 0.1)

    def loop(run: Run) -> None:
        run._adapter.num_exchanges = lambda: 3 if run.rank == 0 else 1
        acting("trwtr", "trtr")(run)

    assert errors_of(loop) == {}


def test_error_names_its_rank():
    errors = errors_of(acting("", "f"))
    assert "rank 1" in errors[1]
    assert all(name in errors[0] for name in ("rank 0", "accuracy"))


@pytest.mark.all
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("framework", "case", "num_reports", "names"),
    [
        ("torch", "uneven", 1, ("rank 1", "rank 0", "run.training()", "script.py, line")),
        ("torch", "step_outside_training", 0, ("rank 0", "rank 1", "outside")),
        ("torch", "own_collective", 0, ("rank 1", "run.report")),
        # TensorFlow itself ends an exchange of different shapes, with its own message.
        ("tensorflow", "uneven", 1, ("rank 1", "run.training()", "batches")),
    ],
)
def test_workers_that_diverge_in_an_exchange_are_named(
    framework, case, num_reports, names, tmp_path
):
    """They do not hang, and an exchange of one rank does not complete with another call."""
    pytest.importorskip(framework)
    run_two("diverging_ranks_script.py", framework, case, tmp_path)
    errors = [json.loads(file.read_text()) for file in tmp_path.glob("error-*.json")]
    assert {number for number, _ in errors} == {num_reports}, "a slower rank is waited for"
    assert any(all(name in sentence for name in names) for _, sentence in errors), errors
