"""Progress of a command on a terminal, in a pipe and in a notebook."""

import io
import json
import re
import shlex
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from raybench.report import live
from raybench.report.live import NOTEBOOK_S
from raybench.report.progress import CurveLines, ProgressDisplay
from tests.report.made_live import KEYS, LABEL, evaluation, record, spec

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ t=\d+\.\d \w+ \d+/(\d+|\?) [a-z]+( |$)")


class Clock:
    """Clock that tests set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def piped(clock: Clock, **options: Any) -> tuple[ProgressDisplay, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=False)
    return ProgressDisplay(console, num_trials=12, keys=KEYS, clock=clock, **options), out


def values_of(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in shlex.split(line) if "=" in part)


def test_a_pipe_gets_one_timestamped_line_per_event(clock):
    progress, out = piped(clock, num_workers=lambda spec: 4, ends_in_s=500.0)
    with progress:
        progress.started("0000", spec())
        clock.now += 12
        progress.evaluated("0000", evaluation())
        progress.finished(record("0000", 2.0))
        oom = "CUDA out of memory: 2.5 GiB"
        progress.finished(record("0001", failure="oom", message=oom))
        progress.finished(record("0002", failure="oom", message=oom))
        clock.now += 50
        progress.waiting({"0003": ("2 GPUs: 1 free", 3.0)}, head="0003")
        progress.waiting({"0003": ("2 GPUs: 1 free", 5.0)}, head="0003")
        progress.waiting({"0004": ("its turn", 5.0)})
        progress.say("a sentence of the search")
        cut = replace(record("0005"), state="stopped", stop="time_budget", samples=0)
        progress.finished(cut)
        progress.begin("race", 24)
    lines = out.getvalue().splitlines()
    assert all(LINE.match(line) for line in lines), lines
    events = [line.split()[4] for line in lines]
    last = ["waits", "status", "note", "finished", "begin"]
    assert events == ["starting", "finished", "failed", "failed", *last]
    assert lines[1].split()[2:4] == ["search", "1/12"]
    expected = {"trial": "0000", "time_to_target_s": "2", "best": "yes", "config": LABEL}
    expected |= {"t": "12.0", "left_s": "488"}  # remaining seconds of the budget
    assert values_of(lines[1]).items() >= expected.items()
    assert values_of(lines[2])["message"] == oom
    repeated = values_of(lines[3])
    assert (repeated["same_as"], repeated["count"], "message" in repeated) == ("0001", "2", False)
    assert values_of(lines[4])["for"] == "2 GPUs: 1 free"
    assert values_of(lines[5])["not_yet"] == "0"
    assert lines[6].endswith("note a sentence of the search")
    assert (values_of(lines[7])["outcome"], "best" in values_of(lines[7])) == ("no report", False)


def test_events_are_written_as_json_lines(clock):
    lines = io.StringIO()
    progress, out = piped(clock, lines=lines)
    with progress:
        progress.started("0000", spec())
        progress.evaluated("0000", evaluation(value=0.8))
        progress.evaluated("0000", evaluation(1, value=float("nan")))
        progress.finished(record("0000", 2.0))
        progress.finished(record("0001", failure="oom", message="no bytes"))
        progress.say("a sentence")
    written = [
        json.loads(line, parse_constant=pytest.fail) for line in lines.getvalue().splitlines()
    ]
    events = "starting evaluated evaluated finished failed note"
    assert " ".join(event["event"] for event in written) == events
    assert written[1].items() >= {"trial": "0000", "value": 0.8, "best": None}.items()
    assert written[2]["value"] is None
    finished = {"time_to_target_s": 2.0, "value": 0.96, "done": 1, "of": 12}
    assert written[3].items() >= finished.items()
    assert written[3]["best"]["trial"] == written[5]["best"]["trial"] == "0000"
    assert (written[4]["failure"], written[5]["text"]) == ("oom", "a sentence")
    assert out.getvalue() == ""


@pytest.mark.parametrize("text", ["[/foo] [bold]x[/] :smile:", "\x1b]0;t\x07 \x1b[2J", 'a "b"\n='])
def test_event_lines_never_contain_line_breaks(clock, text):
    progress, out = piped(clock)
    progress.finished(record(text, failure="error", message=text))
    progress.say(text)
    assert len(out.getvalue().splitlines()) == 2
    assert "\x1b" not in out.getvalue()
    message = out.getvalue().split("message=")[1].split(" config=")[0]
    assert json.loads(message) == Text(text).plain.replace("\n", " ") or "\x1b" in text


def terminal() -> tuple[Console, io.StringIO]:
    out, environment = io.StringIO(), {"TERM": "xterm-256color"}
    return Console(file=out, width=100, height=30, force_terminal=True, _environ=environment), out


def test_a_terminal_shows_a_screen_and_each_new_cause_once_above_it(clock):
    console, out = terminal()
    with ProgressDisplay(console, num_trials=9, clock=clock) as progress:
        progress.started("0007", spec())
        for number in range(4):
            progress.finished(record(f"000{number}", failure="oom", message=f"no {number} bytes"))
    text = Text.from_ansi(out.getvalue()).plain
    assert text.count("trial 0000") == 1
    assert "failed: oom (no 0 bytes)" in text
    assert "starting workers" in out.getvalue()
    assert "\x1b[1m" in out.getvalue(), "bold"


class Page:
    """Fake notebook display that records its contents and updates."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.num_new = 0

    def display(self, bundle: dict[str, str], *, raw: bool) -> None:
        self.num_new += 1
        self.update(bundle, raw=raw)

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert "<pre" not in bundle["text/plain"]
        assert raw
        self.shown.append(bundle["text/html"])


def test_notebook_output_is_updated_at_a_limited_rate(clock, monkeypatch):
    page, out = Page(), io.StringIO()
    monkeypatch.setattr(live, "notebook_display", lambda: page)
    monkeypatch.setattr(time, "monotonic", clock)
    console = Console(file=out, width=100, force_jupyter=True)
    with ProgressDisplay(console, num_trials=500, clock=clock) as progress:
        for number in range(400):
            clock.now += NOTEBOOK_S / 40
            progress.finished(record(f"{number:04d} <b>&", 2.0))
    assert page.num_new == 1
    assert 10 <= len(page.shown) <= 14
    assert out.getvalue() == ""
    assert "400 of 500 done" in page.shown[-1]
    assert "<b>" not in page.shown[-1]
    assert "trial 0000 &lt;b&gt;&amp;" in page.shown[-1]


def test_a_training_prints_one_line_per_evaluation():
    console, out = terminal()
    lines = CurveLines(console, spec())
    lines.begin()
    for index in range(3):
        lines.evaluated(evaluation(index, 0.5))
    head, *rows = Text.from_ansi(out.getvalue()).plain.splitlines()
    assert head.startswith("  epoch    samples   train s     loss  accuracy")
    assert [row.split()[4] for row in rows] == ["50.00%"] * 3
