"""Waiting runs are shown, and too long a wait ends the study."""

import io
import logging
import sys
import time
from contextlib import nullcontext
from itertools import chain, repeat
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from rich.console import Console

from raybench.cluster.scheduler import WaitingTrial
from raybench.cluster.signals import Interrupt
from raybench.runs import wait_watch as module
from raybench.runs.wait_watch import Deadline, WaitWatch, quiet
from raybench.spec.errors import StudyError
from tests.factories import begun, wait_for
from tests.refusals import shortage_in

BEHIND = WaitingTrial("its turn, after trial 0001", 9.0, 0.0)
SHORT = WaitingTrial("2 GPUs: 1 free on host a, 1 on host b", 12.0, 11.0)


class Stage:
    """A mock screen and a mock session on which some runs wait, and others are silent."""

    def __init__(self, *, waiting: dict[str, WaitingTrial] | None = None, silent_s=None) -> None:
        self.screen, self.session = Mock(is_starting=True), Mock()
        self.session.waiting.return_value = waiting or {}
        self.session.stop_running.side_effect = chain([silent_s or {}], repeat({}))
        self.interrupt = Interrupt()
        self.deadline = Deadline(None, interrupt=self.interrupt)

    def run(
        self, wait_s: float | None = None, *, until=lambda session: session.method_calls
    ) -> None:
        with WaitWatch(self.session, self.deadline, self.screen, wait_s=wait_s):
            wait_for(lambda: until(self.session))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.01)


WAITING = {"behind": BEHIND, "short": SHORT}


def test_waiting_runs_are_shown_and_keep_waiting():
    stage = Stage(waiting=WAITING)
    stage.run(until=lambda session: stage.screen.waiting.called)
    what = {"behind": (BEHIND.what, 9.0), "short": (SHORT.what, 12.0)}
    assert stage.screen.waiting.call_args_list[0] == call(what, head="short")
    stage.session.stop_waiting.assert_not_called()


def test_missing_machines_end_the_study_after_a_time_limit():
    stage = Stage(waiting=WAITING)
    stage.run(11.5)
    stage.session.stop_waiting.assert_not_called()
    stage.run(10.0, until=lambda session: session.stop_waiting.called)
    sentence = str(stage.deadline.fault)
    assert shortage_in(sentence)[:7] == ["11", "10", "2 GPUs", "1", "host a", "1", "host b"]
    assert all(name in sentence for name in ("trial short", "--wait 10"))


@pytest.mark.parametrize("waiting", [{"behind": BEHIND}, {}], ids=["waits", "its workers start"])
def test_nothing_waits_once_the_study_is_over(waiting):
    stage = Stage(waiting=waiting)
    stage.interrupt.is_set = True
    stage.run(0.0, until=lambda session: session.stop_waiting.called)
    assert stage.deadline.fault is None


def test_running_trials_are_ended_once_the_whole_budget_is_spent():
    stage = Stage(silent_s={"0001": 1.5})
    stage.deadline, stage.screen.is_starting = Deadline(100.0, interrupt=begun(100.0)), False
    stage.run(until=lambda session: session.stop_running.called)
    stage.session.stop_waiting.assert_called()
    assert stage.session.stop_running.call_args_list[0] == call()
    assert not stage.screen.say.called, "it trained, and was not silent for long"


def test_a_run_that_does_not_answer_after_ctrl_c_is_ended_and_reported(monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    stage = Stage(silent_s={"0001": 42.0})
    stage.interrupt.is_set = True
    began = time.perf_counter()
    stage.run(until=lambda session: stage.screen.say.called)
    assert time.perf_counter() - began >= 0.1, "it may come to its next report"
    assert stage.session.stop_running.call_args_list[0] == call(0.1), "as may one that just began"
    (sentence,) = stage.screen.say.call_args.args
    assert "0001" in sentence
    assert "42 s" in sentence


def test_errors_of_the_watch_are_raised_in_the_thread_of_the_study():
    stage = Stage()
    stage.session.waiting.side_effect = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        stage.run(1.0)


def test_prints_and_the_ray_log_go_to_a_file_and_are_restored(tmp_path):
    logger, stream = logging.getLogger("ray"), io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        with quiet(tmp_path / "ray.log"), quiet(tmp_path / "ray.log"):
            print("printed")
            print("to standard error", file=sys.stderr)
            logging.getLogger("ray.tune").error("logged")
        logging.getLogger("ray.tune").error("afterwards")
    finally:
        logger.removeHandler(handler)
    text = (tmp_path / "ray.log").read_text()
    assert all(word in text for word in ("printed", "to standard error", "logged"))
    assert "afterwards" not in text
    assert stream.getvalue() == "afterwards\n"


@pytest.mark.parametrize(("lost", "expected"), [("Ray is gone", StudyError), (None, KeyError)])
def test_an_error_after_ray_was_killed_is_one_sentence(lost, expected, monkeypatch):
    session = SimpleNamespace(notes=[], warning=None, lost=lambda: lost)
    interrupt = SimpleNamespace(
        needing=lambda lost: nullcontext(), listen=lambda: None, check=lambda: None
    )
    monkeypatch.setattr(module, "Session", lambda address: nullcontext(session))
    with (
        pytest.raises(expected, match=lost),
        module.live_session("auto", interrupt, Console(file=io.StringIO())),
    ):
        raise KeyError("the pool's actor has died")
