"""What runs wait for is shown while they do, and too long a wait ends the study."""

import io
import logging
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.cluster.queue import Waiting
from raybench.cluster.signals import Interrupt
from raybench.runs import wait_watch as module
from raybench.runs.deadline import Deadline
from raybench.runs.wait_watch import WaitWatch, head_of, quiet, watching

BEHIND = Waiting("its turn, after trial 0001", 9.0, 0.0)
SHORT = Waiting("2 GPUs: 1 free on host a, 1 on host b", 12.0, 11.0)


class Stage:
    """A session whose pool says what waits, and what was done about it."""

    def __init__(self, **waiting: Waiting) -> None:
        self.pool_says = waiting
        self.shown: list[Any] = []
        self.sent_away = 0
        self.is_starting, self.interrupt = True, Interrupt()
        self.deadline = Deadline(None, interrupt=self.interrupt)
        self.looked = threading.Event()

    def waiting(self) -> dict[str, Waiting]:
        self.looked.set()
        return self.pool_says

    def stop_waiting(self) -> None:
        self.sent_away += 1

    def watch(self, wait_s: float | None = None) -> WaitWatch:
        session: Any = self
        starting = {"is_starting": lambda: self.is_starting}
        return WaitWatch(session, self.deadline, self.shown.append, **starting, wait_s=wait_s)

    def run(self, wait_s: float | None = None) -> None:
        with self.watch(wait_s):
            assert self.looked.wait(120)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.01)


def test_it_is_shown_and_nobody_is_sent_away() -> None:
    stage = Stage(behind=BEHIND, short=SHORT)
    stage.run()
    assert stage.shown[0] == stage.pool_says
    assert not stage.sent_away
    assert head_of(stage.pool_says) == "short"


@pytest.mark.parametrize(("wait_s", "ends"), [(10.0, True), (11.5, False)])
def test_machines_that_are_missing_too_long_end_it(wait_s: float, ends: bool) -> None:
    stage = Stage(behind=BEHIND, short=SHORT)
    stage.run(wait_s)
    assert bool(stage.sent_away) is ends
    if ends:
        assert str(stage.deadline.fault).startswith(
            "trial short has waited 11 s (--wait 10) for 2 GPUs: 1 free on host a, 1 on host b;"
        )


@pytest.mark.parametrize("waiting", [{"behind": BEHIND}, {}], ids=["waits", "its workers start"])
def test_a_study_that_is_over_keeps_nobody_waiting(waiting: dict[str, Waiting]) -> None:
    stage = Stage(**waiting)
    stage.interrupt.is_set = True
    stage.run(0.0)
    assert stage.sent_away
    assert stage.deadline.fault is None


def test_once_the_time_for_everything_is_up_what_runs_is_ended_too() -> None:
    """Whoever trains is far from an evaluation, and whoever starts waits for nothing."""
    done: list[str] = []
    session: Any = SimpleNamespace(
        waiting=dict,
        stop_waiting=lambda: done.append("waiting"),
        pool=SimpleNamespace(stop_running=SimpleNamespace(remote=lambda: done.append("running"))),
    )
    progress: Any = SimpleNamespace(is_starting=False)
    deadline = Deadline(100.0, began=time.perf_counter() - 100)
    with watching(session, progress, deadline, None):
        while "running" not in done:
            time.sleep(0.001)
    assert done[:2] == ["waiting", "running"]


def test_what_goes_wrong_there_is_raised_in_the_study_s_own_thread() -> None:
    stage = Stage()
    stage.pool_says = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        stage.run(1.0)


def test_prints_and_ray_s_log_go_to_the_file_and_come_back(tmp_path):
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
