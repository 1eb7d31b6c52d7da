"""Every signal at every moment: exit code, sentence, no process left, the same command continues.

One case runs always, `make test-all` runs one signal at two moments and in every phase, by
turns; with `RAYBENCH_SIGNALS=40` in the environment it runs all forty.
"""

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import raybench
from raybench.results.records import read_records

from .watched import Watched

pytestmark = pytest.mark.ray
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOMENTS_S = (0.5, 1.0, 1.5, 2.5, 3.5, 5.0, 6.0, 8.0, 10.0)
PHASES = ("reference", "search", "placement_check", "race")
INTERRUPTED = 130
IMPORTING_S = 0.5
"""Until then Python may not have come to raybench's own code, and dies as any program does."""
ENDS_S = 600.0
GONE_S = 120.0
SAID_S = 20.0
"""Until it is said that Ray is gone."""
EVERY_NTH_CONTINUES = 5
LEFT_OUT = (1.0, 1.5, 2.5, 5.0, 6.0, 8.0, 10.0)
"""Moments that CI leaves out: it has half an hour for everything."""
CONTINUED = ("race",)
"""In CI; what was ended amid the search is continued in test_interrupt.py."""
SPACE = """
workload: mnist_small
dataset: {name: digits, image_size: 28}
objective: {kind: time_to_target, target: TARGET, hold: 1, max_train_seconds: 2}
search: {trials: TRIALS, seed: 0, early_stopping: false}
confirm: {race: 3, fresh: 3}
space:
  num_workers: WORKERS
  batch_size_per_worker: {low: 16, high: 64, log2: true}
  learning_rate: {low: 1.0e-3, high: 6.0e-3, log: true}
fixed: {framework: torch, optimizer: adam}
"""


@dataclass(frozen=True)
class Case:
    """A signal, and when it comes: so many seconds after the start, or in a phase."""

    signal: signal.Signals
    when: float | str
    continues: bool = False
    """Whether the same command is run again, to its end."""

    def __str__(self) -> str:
        when = self.when if isinstance(self.when, str) else f"{self.when}s"
        return f"{self.signal.name}-{when}"


def loop() -> list[Case]:
    """Every signal at every moment and in every phase."""
    pairs = [(one, when) for when in (*MOMENTS_S, *PHASES) for one in SIGNALS]
    return [
        Case(one, when, continues=number % EVERY_NTH_CONTINUES == 0)
        for number, (one, when) in enumerate(pairs)
    ]


def chosen() -> list[Case]:
    """One signal at two moments and in every phase, by turns; all where asked for."""
    every = loop()
    if os.environ.get("RAYBENCH_SIGNALS") == "40":
        return every
    turns = [case for number, case in enumerate(every) if (number // 3 + number) % 3 == 0]
    turns = [case for case in turns if case.when not in LEFT_OUT]
    return [replace(case, continues=case.when in CONTINUED) for case in turns]


ALWAYS = Case(signal.SIGTERM, 1.0)
"""It has hung once, and costs seconds."""


def num_trials(phase: str | None) -> int:
    """Enough to search for more than 10 s where no phase is waited for."""
    return 24 if phase is None else 3


def write_space(folder: Path, phase: str | None) -> Path:
    """Write a search that has the phase; without one, a search that takes longer than 10 s."""
    # The first trials try both numbers of workers, so a faster split of one of them is left.
    workers = "[1, 2]" if phase == "placement_check" else "[1]"
    target = "auto" if phase == "reference" else "0.9"
    trials = str(num_trials(phase))
    text = SPACE.replace("WORKERS", workers).replace("TARGET", target).replace("TRIALS", trials)
    file = folder / "small.yaml"
    file.write_text(text)
    return file


def strike(case: Case, folder: Path) -> None:
    """Run the search, send the signal, and hold all that is promised."""
    phase = case.when if isinstance(case.when, str) else None
    space = write_space(folder, phase)
    with Watched("tune", space, cwd=folder) as run:
        if isinstance(case.when, str):
            try:
                run.wait_for_line(case.when)
            except AssertionError:
                # What the probes have measured by chance is not predicted, and not run again.
                if case.when == "placement_check" and run.process.poll() == 0:
                    pytest.skip("this search had no finalist")
                raise
        else:
            run.wait_until(case.when)
        run.send(case.signal)
        code = run.wait(ENDS_S)
        assert "Traceback" not in run.stdout + run.stderr, run.printed
        is_early = case.when == IMPORTING_S and code == -case.signal
        if not is_early:
            assert code == INTERRUPTED, f"exit code {code}\n{run.printed}"
            assert says_so(run.stdout, run.stderr), run.printed
        run.expect_none_left(GONE_S)
    assert not (results(folder) / "optuna.log.lock").exists(), "a lock that costs 30 s next time"
    if case.continues:
        continue_to_the_end(space, folder, phase)


def says_so(stdout: str, stderr: str) -> bool:
    """Whether one sentence says that the command was interrupted."""
    sentences = [line for line in stderr.splitlines() if line.startswith("raybench:")]
    last = stdout.strip().splitlines()[-1:]
    return len(sentences) == 1 or (not sentences and bool(last) and "interrupted" in last[0])


def continue_to_the_end(space: Path, folder: Path, phase: str | None) -> None:
    """Run the same command again; what both sessions recorded is one whole study."""
    with Watched("tune", space, cwd=folder) as run:
        code = run.wait(240)
        assert code == 0, f"exit code {code}\n{run.printed}"
        assert "Traceback" not in run.stderr, run.printed
        assert "confirmed by" in run.stdout, run.printed
        run.expect_none_left(GONE_S)
    trials = raybench.load(results(folder)).trials
    searched = trials[trials["role"] == "trial"]
    assert sorted(searched["trial"]) == [f"{n:04d}" for n in range(num_trials(phase))]
    assert not (searched["stop"] == "interrupted").any(), "an interrupted trial is run again"


def results(folder: Path) -> Path:
    """The study's folder."""
    return folder / "results" / "small"


def test_a_signal_ends_the_search_cleanly(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    strike(ALWAYS, tmp_path)


@pytest.mark.all
def test_the_kill_of_ray_s_own_store_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    space = write_space(tmp_path, "race")
    with Watched("tune", space, cwd=tmp_path) as run:
        run.wait_for_line("search 2/")
        kept = set(read_records(results(tmp_path)).runs)
        (store,) = (p for p in run.left() if p.cmdline()[0].endswith("/gcs_server"))
        store.kill()
        assert run.wait(SAID_S) == 1, run.printed
        (sentence,) = run.stderr.splitlines()
        assert sentence.endswith("the same command continues."), run.printed
        run.expect_none_left(GONE_S)
    assert kept <= set(read_records(results(tmp_path)).runs)
    continue_to_the_end(space, tmp_path, "race")


@pytest.mark.all
@pytest.mark.parametrize("case", chosen(), ids=str)
def test_every_signal_at_every_moment(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    strike(case, tmp_path)


@pytest.mark.all
def test_ctrl_c_twice_in_the_confirm_phase_ends_at_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    space = write_space(tmp_path, "confirm")
    with Watched("tune", space, cwd=tmp_path) as run:
        run.wait_for_line("confirm 1/")
        run.send(signal.SIGINT)
        time.sleep(0.1)
        run.send(signal.SIGINT)
        assert run.wait(GONE_S) == INTERRUPTED, run.printed
        assert "Traceback" not in run.stdout + run.stderr, run.printed
        run.expect_none_left(GONE_S)


def test_the_loop_has_forty_cases() -> None:
    assert len(loop()) + 1 == 40  # and Ctrl-C twice
    assert sum(case.continues for case in loop()) == 8
    assert {case.when for case in chosen()} == {case.when for case in loop()} - set(LEFT_OUT)
    assert {case.signal for case in chosen()} == set(SIGNALS)
