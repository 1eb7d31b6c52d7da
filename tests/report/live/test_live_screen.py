"""The screen of a running study at several widths and with hostile text."""

import dataclasses
import io
import os
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from raybench.report.live.screen import study_screen
from raybench.report.live.state import LiveState
from tests.report.live.made_live import busy_state, evaluation, record, spec


def shown(state: LiveState, now: float, width: int = 80, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    with console.capture() as captured:
        console.print(study_screen(console, state, now))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_screen_matches_the_stored_screens() -> None:
    """After an intended change, run with RAYBENCH_SCREENS=write to rewrite `screens.txt`."""
    state, at = busy_state()
    missed = LiveState(0.0, num_runs=3)
    missed.finished(record("0000"), 4.0)
    screens = [shown(state, at, 120), shown(state, at, 80), shown(missed, 4.0)]
    text = "\n\n----\n".join("\n".join(lines) for lines in screens)
    file = Path(__file__).with_name("screens.txt")
    if os.environ.get("RAYBENCH_SCREENS") == "write":
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_screen_fits_every_width_without_cut_numbers(width: int) -> None:
    state, at = busy_state()
    lines = shown(state, at, width, height=24)
    assert max(map(cell_len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for words in ("18 of 40 done", "about 103 s left", "reached by 9 of 18", "6 of 8 training"):
        assert words in text
    assert ("torch 2x128 adam 0.003 weight_decay 0.01 schedule cosine" in text) == (width >= 120)
    assert "92.1 %" in text or width < 30
    assert ("9.00" in text) == (width >= 80)
    assert ("4,217" in text) == (width >= 100)
    assert len(lines) <= 24 or width < 80, "rich cuts longer live displays"


def test_a_low_terminal_counts_hidden_runs() -> None:
    state, at = busy_state()
    for number in range(100):
        state.started(f"1{number:03d}", spec(), at)
    lines = shown(state, at, 120, height=20)
    assert len(lines) <= 20
    (summary,) = [line for line in lines if line.startswith("and ")]
    assert summary == "and 99 more: 0 training, 99 not yet"
    assert sum(line.startswith(("0020", "0021", "0022")) for line in lines) == 3, (
        "the running trials are shown"
    )


@pytest.mark.parametrize(
    "text",
    [
        "[/foo] [bold]x[/] :smile:",
        "\x1b]0;t\x07 \x1b[2J\u202e",
        "a\nb\r",
        "日本語" * 30,
    ],
)
def test_hostile_text_does_not_break_the_screen(text: str) -> None:
    state = LiveState(0.0, keys=("schedule",))
    hostile = spec().model_copy(update={"schedule": text})
    state.started(text, hostile, 0.0)
    state.evaluated(text, evaluation())
    state.started(f"{text}2", hostile, 0.0)
    state.waiting = {f"{text}2": (text, 1.0)}
    state.finished(record("0001", failure="error", message=text), 1.0)
    ended = dataclasses.replace(record(f"{text}3", 2.0), spec=hostile)
    state.finished(ended, 2.0)
    for width in (40, 80, 160):
        lines = shown(state, 3.0, width)
        assert max(map(cell_len, lines)) <= width
        assert not any(
            character in line for line in lines for character in "\x1b\x07\n\r\udce9\u202e"
        )


def test_a_screen_without_runs_or_values_is_drawn() -> None:
    state = LiveState(0.0)
    assert shown(state, 0.0)[0] == "search: 0 of 0 done, 0.00 s elapsed"
    assert shown(state, 0.0)[-1] == "starting workers"
    state.started("0000", spec(), 0.0)
    state.evaluated("0000", evaluation(value=float("nan")))
    assert "none" in " ".join(shown(state, 1.0))


def test_other_encodings_fall_back_to_ascii() -> None:
    state, at = busy_state()
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="latin-1"), width=120)
    with console.capture() as taken:
        console.print(study_screen(console, state, at))
    assert taken.get().isascii()
    assert "curve" not in taken.get()
