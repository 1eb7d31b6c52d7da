"""What a search shows while it runs, on a terminal and in a pipe."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from raybench.core.objective import Objective
from raybench.core.outcome import RunOutcome
from raybench.core.record import Evaluation, Failure, RunRecord
from raybench.core.spec import RunSpec
from raybench.results import progress as module
from raybench.results.live.progress import Progress

OBJECTIVE = Objective(target=0.9)
KEYS = ("weight_decay", "schedule")
SPEC = {"num_workers": 2, "batch_size_per_worker": 128, "weight_decay": 0.01, "schedule": "cosine"}
LABEL = "torch 2x128 adam 0.001 weight_decay 0.01 schedule cosine"


def spec(**changes: Any) -> RunSpec:
    return RunSpec(objective=OBJECTIVE, **(SPEC | changes))


def record(
    name: str,
    seconds: float | None = None,
    *,
    failure: Failure | None = None,
    message: str | None = None,
) -> RunRecord:
    last = evaluation(best_value=0.8, time_to_target_s=seconds, stop="target" if seconds else None)
    outcome = RunOutcome(
        evaluation=last, is_over=True, failure=failure, message=message, chance=0.1
    )
    return outcome.record(name, spec(), role="trial", source=None, stopped_by="scheduler")


def evaluation(**changes: Any) -> Evaluation:
    content: dict[str, Any] = {
        "index": 0,
        "epoch": 1.0,
        "samples": 100,
        "train_s": 12345.678,
        "train_loss": 1.0,
        "value": 1.0,
        "learning_rate": 1e-3,
        "samples_per_s": 1234567.0,
    }
    return Evaluation(**(content | changes))


def piped(**options: Any) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(Console(file=out, width=80), num_trials=12, keys=KEYS, **options), out


def rendered(screen: Progress, width: int = 80) -> str:
    """What the screen shows at this moment on a terminal."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True)
    console.print(screen._render())
    return Text.from_ansi(out.getvalue()).plain


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_run_that_was_asked_for_starts_its_workers(clock: Clock) -> None:
    screen, out = piped()
    assert module.STARTING in rendered(screen), "before the first trial was asked for too"
    screen.started("0000", spec())
    clock.now += 12
    text = rendered(screen, width=160)
    assert f"{LABEL}  starting workers, 12 s" in text
    screen.evaluated("0000", evaluation())
    text = rendered(screen, width=160)
    assert module.STARTING not in text
    assert "12345.68" in text
    screen.finished(record("0000", 2.0))
    assert module.STARTING not in rendered(screen)
    # In a pipe it is said once.
    screen.started("0001", spec())
    assert out.getvalue().count(module.STARTING) == 1
    assert out.getvalue().startswith("search: starting workers\n")


def test_what_a_run_waits_for_stands_instead_of_its_start(clock: Clock) -> None:
    screen, out = piped()
    screen.started("0000", spec())
    assert screen.is_starting
    gpus = ("2 GPUs: 1 free on host a, 1 on host b", 12.3)
    screen.waiting({"0000": gpus}, head="0000")
    assert "waits for 2 GPUs: 1 free on host a, 1 on host b, 12 s" in rendered(screen, width=160)
    # In a pipe it is said once, until it is something else.
    screen.waiting({"0000": (gpus[0], 14.3)}, head="0000")
    screen.waiting({"0000": ("its turn, after trial 0001", 14.3)})
    screen.waiting({"0000": gpus}, head="0000")
    screen.waiting({"0000": ("2 GPUs: 1 free on host a", 16.3)}, head="0000")
    said = [line for line in out.getvalue().splitlines() if "waits" in line]
    begin = "search: trial 0000 waits for 2 GPUs: 1 free on host a"
    assert said == [f"{begin}, 1 on host b", begin]
    screen.waiting({})
    assert module.STARTING in rendered(screen, width=160)
    screen.evaluated("0000", evaluation())
    assert not screen.is_starting


def test_what_follows_is_in_the_time_left(clock: Clock) -> None:
    screen, _ = piped()
    screen.after_s = 60.0
    assert screen.seconds_left() is None
    for number in range(4):
        clock.now += 5
        screen.finished(record(f"{number:04d}", 2.0))
    assert screen.seconds_left() == 8 * 5 + 60
    assert "4 of 12 done, 20 s, about 100 s left" in rendered(screen)
    screen.begin("confirm", 9)
    assert screen.after_s == 0
    assert screen.seconds_left() is None


def test_more_runs_than_were_planned_leave_no_negative_time(clock: Clock) -> None:
    screen, _ = piped()
    for number in range(14):
        clock.now += 5
        screen.finished(record(f"{number:04d}", 2.0))
    assert screen.seconds_left() == 0


def test_every_searched_key_is_in_every_label() -> None:
    screen, out = piped()
    screen.started("0000", spec())
    assert " ".join(rendered(screen, width=160).split()).count(LABEL) == 1
    screen.finished(record("0000", 2.0))
    assert f"best so far: trial 0000  {LABEL}" in rendered(screen, width=160)
    assert f"search 1/12  trial 0000  {LABEL}  target after 2.00 s" in out.getvalue()


def test_failures_are_told_as_they_happen_by_cause() -> None:
    screen, out = piped()
    for number in range(3):
        message = f"CUDA out of memory: {number}.5 GiB, see results/x/errors/000{number}.txt"
        screen.finished(record(f"000{number}", failure="oom", message=message))
    screen.finished(record("0003", failure="error", message="ValueError: no"))
    lines = out.getvalue().splitlines()
    assert lines[0].endswith(
        "failed: oom (CUDA out of memory: 0.5 GiB, see results/x/errors/0000.txt)"
    )
    assert lines[1].endswith("failed: oom, as trial 0000 did (2 by now)")
    assert lines[2].endswith("failed: oom, as trial 0000 did (3 by now)")
    assert lines[3].endswith("failed: error (ValueError: no)")
    text = rendered(screen, width=160)
    assert "failed: 3 oom (CUDA out of memory: 0.5 GiB" in text
    assert "failed: 1 error (ValueError: no)" in text


def test_on_a_terminal_a_new_cause_is_said_once_above_the_screen() -> None:
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=True)
    with Progress(console, num_trials=9) as screen:
        for number in range(4):
            screen.finished(record(f"000{number}", failure="oom", message=f"no {number} bytes"))
        screen.finished(record("0009", 2.0))
    said = [line for line in Text.from_ansi(out.getvalue()).plain.splitlines() if "trial 0" in line]
    assert len([line for line in said if "failed: oom (no 0 bytes)" in line]) == 1


def test_many_causes_leave_room_for_the_rest() -> None:
    screen, _ = piped()
    for letter in "abcdefghij":
        message = f"{letter} " * 500
        screen.finished(record(letter, failure="error", message=message))
    lines = rendered(screen).splitlines()
    assert len(lines) <= 10
    assert "failed: 5 of other causes" in lines[-1]
    assert max(map(len, lines)) <= 80


HOSTILE = ["[/foo] [bold]x[/] :smile:", "\x1b]0;t\x07 \x1b[2J", "caf\udce9", "a\nb\r"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_text_is_read_as_markup_or_breaks_the_screen(text: str, is_terminal: bool) -> None:
    buffer = io.BytesIO()
    out = io.TextIOWrapper(buffer, encoding="utf-8")
    console = Console(file=out, width=200, force_terminal=is_terminal)
    hostile = spec().model_copy(update={"schedule": text})
    with Progress(console, num_trials=9, keys=KEYS) as screen:
        screen.started(text, hostile)
        console.print(screen._render())
        screen.finished(record(text, failure="error", message=text))
        console.print(screen._render())
        screen.say(text)
    out.flush()
    shown = buffer.getvalue().decode()
    assert module.clean(text) in shown
    for bad in ("\x1b]", "\x1b[2J\x1b]", "\x07"):
        assert bad not in shown


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_head_and_no_number_is_cut(width: int) -> None:
    screen, _ = piped()
    for number in range(3):
        screen.started(f"0{number}18.torch64", spec())
        screen.evaluated(f"0{number}18.torch64", evaluation())
    screen.started("0001", spec())
    text = rendered(screen, width)
    words = text.split()
    assert "\u2026" not in text
    for head in ("trial", "configuration", "train", "accuracy", "samples/s"):
        assert head in words
    assert words.count("12345.68") == words.count("1,234,567") == 3
    assert words.count("0118.torch64") == 1
    assert max(map(len, text.splitlines())) <= width
