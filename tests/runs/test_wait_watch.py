"""Waiting runs are shown, and too long a wait ends the study."""

import io
import logging
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

from raybench.cluster.scheduler import WaitingTrial
from raybench.cluster.signals import Interrupt
from raybench.runs import wait_watch as module
from raybench.runs.wait_watch import Deadline, WaitWatch, quiet
from raybench.spec.errors import StudyError
from tests.factories import begun
from tests.refusals import shortage_in

BEHIND = WaitingTrial("its turn, after trial 0001", 9.0, 0.0)
SHORT = WaitingTrial("2 GPUs: 1 free on host a, 1 on host b", 12.0, 11.0)


class Stage:
    """A screen and a session; records what the watch shows, says and ends."""

    def __init__(self, **waiting):
        self.pool_says = waiting
        self.shown = []
        self.said = []
        self.silent = {}
        """Seconds since which runs have not answered."""
        self.least_s = []
        self.sent_away = 0
        self.is_starting, self.interrupt = True, Interrupt()
        self.deadline = Deadline(None, interrupt=self.interrupt)
        self.looked = threading.Event()

    def waiting(self, what, *, head=None):
        self.shown.append((what, head))

    def say(self, text):
        self.said.append(text)

    def ask(self):
        self.looked.set()
        return self.pool_says

    def stop_waiting(self):
        self.sent_away += 1

    def watch(self, wait_s=None):
        session = SimpleNamespace(
            waiting=self.ask, stop_waiting=self.stop_waiting, stop_running=self.stop_running
        )
        return WaitWatch(session, self.deadline, self, wait_s=wait_s)

    def stop_running(self, least_s=0.0):
        self.looked.set()
        self.least_s.append(least_s)
        ended, self.silent = self.silent, {}
        return ended

    def run(self, wait_s=None):
        with self.watch(wait_s):
            assert self.looked.wait(120)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(module, "ASK_S", 0.01)


def test_waiting_runs_are_shown_and_keep_waiting():
    stage = Stage(behind=BEHIND, short=SHORT)
    stage.run()
    what = {"behind": (BEHIND.what, 9.0), "short": (SHORT.what, 12.0)}
    assert stage.shown[0] == (what, "short")
    assert not stage.sent_away


@pytest.mark.parametrize(("wait_s", "ends"), [(10.0, True), (11.5, False)])
def test_missing_machines_end_the_study_after_a_time_limit(wait_s, ends):
    stage = Stage(behind=BEHIND, short=SHORT)
    with stage.watch(wait_s):
        assert stage.looked.wait(120)
        while ends and not stage.sent_away:
            time.sleep(0.001)
    if not ends:
        assert not stage.sent_away
    else:
        sentence = str(stage.deadline.fault)
        assert shortage_in(sentence)[:7] == ["11", "10", "2 GPUs", "1", "host a", "1", "host b"]
        assert all(name in sentence for name in ("trial short", "--wait 10"))


@pytest.mark.parametrize("waiting", [{"behind": BEHIND}, {}], ids=["waits", "its workers start"])
def test_nothing_waits_once_the_study_is_over(waiting):
    stage = Stage(**waiting)
    stage.interrupt.is_set = True
    with stage.watch(0.0):
        while not stage.sent_away:
            time.sleep(0.001)
    assert stage.deadline.fault is None


def test_running_trials_are_ended_once_the_whole_budget_is_spent():
    stage = Stage()
    stage.deadline = Deadline(100.0, interrupt=begun(100.0))
    stage.is_starting, stage.silent = False, {"0001": 1.5}
    stage.run()
    assert stage.sent_away
    assert stage.least_s[0] == 0.0
    assert not stage.said, "it trained, and was not silent for long"


def test_a_run_that_does_not_answer_after_ctrl_c_is_ended_and_reported(monkeypatch):
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    stage = Stage()
    stage.interrupt.is_set, stage.silent = True, {"0001": 42.0}
    began = time.perf_counter()
    stage.run()
    assert time.perf_counter() - began >= 0.1, "it may come to its next report"
    assert stage.least_s[0] == 0.1, "and so may one that began a moment ago"
    (sentence,) = stage.said
    assert "0001" in sentence
    assert "42 s" in sentence


def test_errors_of_the_watch_are_raised_in_the_thread_of_the_study():
    stage = Stage()
    stage.pool_says = None
    with pytest.raises(AttributeError):
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
