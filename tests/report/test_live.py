"""The screen of a running study at several widths and with hostile text, the state that it shows,
and the remaining time."""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from raybench.report.live import LiveState, study_screen
from raybench.stats.record import Phase
from tests.report.made_live import OBJECTIVE, busy_state, evaluation, record, spec


def shown(state: LiveState, now: float, width: int = 80, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    with console.capture() as captured:
        console.print(study_screen(console, state, now))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_screen_matches_the_stored_screens():
    """After an intended change, run with RAYBENCH_SCREENS=write to rewrite `live_screens.txt`."""
    state, at = busy_state()
    missed = LiveState(0.0)
    missed.begin(Phase.SEARCH, 3, 0.0)
    missed.finished(record("0000"), 4.0)
    screens = [shown(state, at, 120), shown(state, at, 80), shown(missed, 4.0)]
    text = "\n\n----\n".join("\n".join(lines) for lines in screens)
    file = Path(__file__).with_name("live_screens.txt")
    if os.environ.get("RAYBENCH_SCREENS") == "write":
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("width", [20, 40])
def test_numbers_are_not_cut_on_a_narrow_screen(width):
    lines = shown(*busy_state(), width)
    assert max(map(cell_len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for words in ("18 of 40 done", "about 103 s left", "reached by 9 of 18", "6 of 8 training"):
        assert words in text
    assert "92.1 %" in text or width < 30


def test_a_low_terminal_counts_hidden_runs():
    state, at = busy_state()
    for number in range(100):
        state.started(f"1{number:03d}", spec(), at)
    lines = shown(state, at, 120, height=20)
    assert len(lines) <= 20, "rich cuts longer live displays"
    (summary,) = [line for line in lines if line.startswith("and ")]
    assert summary == "and 99 more: 0 training, 99 not yet"
    assert sum(line.startswith(("0020", "0021", "0022")) for line in lines) == 3, (
        "the running trials are shown"
    )


@pytest.mark.parametrize(
    "text", ["[/foo] [bold]x[/] :smile:", "\x1b]0;t\x07 \x1b[2J\u202ea\nb\r", "日本語" * 30]
)
def test_hostile_text_does_not_break_the_screen(text):
    state = LiveState(0.0, keys=("schedule",))
    hostile = spec().model_copy(update={"schedule": text})
    state.started(text, hostile, 0.0)
    state.evaluated(text, evaluation())
    state.started(f"{text}2", hostile, 0.0)
    state.waiting = {f"{text}2": (text, 1.0)}
    state.finished(record("0001", failure="error", message=text), 1.0)
    ended = replace(record(f"{text}3", 2.0), spec=hostile)
    state.finished(ended, 2.0)
    for width in (40, 80, 160):
        lines = shown(state, 3.0, width)
        assert max(map(cell_len, lines)) <= width
        assert not any(
            character in line for line in lines for character in "\x1b\x07\n\r\udce9\u202e"
        )


def test_a_screen_without_runs_or_values_is_drawn():
    state = LiveState(0.0)
    assert shown(state, 0.0)[0] == "search: 0 of 0 done, 0.00 s elapsed"
    assert shown(state, 0.0)[-1] == "starting workers"
    state.started("0000", spec(), 0.0)
    assert (state.num_training, state.is_starting) == (0, True)
    state.evaluated("0000", evaluation(value=float("nan")))
    assert (state.num_training, state.is_starting) == (2, False)
    assert "none" in " ".join(shown(state, 1.0))


def test_other_encodings_fall_back_to_ascii():
    state, at = busy_state()
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="latin-1"), width=120)
    with console.capture() as taken:
        console.print(study_screen(console, state, at))
    assert taken.get().isascii()
    assert "curve" not in taken.get()


def test_the_best_is_a_search_trial_with_a_report():
    state = LiveState(0.0)
    state.finished(record("reference0", role="reference"), 1.0)
    # The score of a run that the time budget ended does not count.
    state.finished(replace(record("silent"), samples=0, best_value=None, score=-1.0), 1.0)
    assert state.best is None
    for name, seconds in (("0000", None), ("0001", 2.0), ("0002", 3.0)):
        state.finished(record(name, seconds), 5.0)
    state.finished(record("0001-race0", 0.5, role="race", source="0001"), 6.0)
    assert state.best is not None
    assert state.best.trial == "0001"
    assert (state.num_reached, state.num_searched, state.target) == (2, 4, OBJECTIVE.target)


def test_remaining_time_needs_enough_runs_or_a_budget():
    state = LiveState(0.0)
    state.begin(Phase.SEARCH, 12, 0.0, after_s=60.0)
    for number in range(2):
        state.finished(record(f"000{number}", 2.0), 5.0 * (number + 1))
    assert state.time_left(10.0) is None
    state.ends_s = 40.0
    assert state.time_left(10.0) == (30.0, True)
    state.ends_s = None
    for number in range(2, 4):
        state.finished(record(f"000{number}", 2.0), 5.0 * (number + 1))
    seconds_left = state.time_left(20.0)
    assert seconds_left is not None
    assert seconds_left == (8 * 5 + 60, False)
    state.ends_s = 50.0
    assert state.time_left(20.0) == (30.0, True), "the budget ends it earlier"
    state.begin("reference", 3, 20.0, expect_s=9.0)
    state.ends_s = None
    assert state.time_left(20.0) is None, "the duration of the search is unknown"
