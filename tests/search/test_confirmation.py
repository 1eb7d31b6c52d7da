"""Placement checks, and the confirmation on made-up workers: its race, cutoff, lost workers,
resumption and `--more`."""

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raybench.report.study import load
from raybench.results.records import read_records
from raybench.results.store import RECORDS_FILE, STUDY_FILE, Store
from raybench.runs.wait_watch import Deadline
from raybench.search import confirmation as module
from raybench.search import reference, search
from raybench.search.confirmation import Confirmation, LiveRace, PlacementOption, choose_checks
from raybench.search.factorisation import speed_values
from raybench.search.resolve import STUDY_KEY_MORE
from raybench.search.study import more_until
from raybench.search.tune import check_finished
from raybench.spec.documents import to_yaml
from raybench.spec.errors import ErrorCode, StudyError
from raybench.spec.objective import BUDGET
from raybench.spec.run import RunSpec
from raybench.spec.study import StudySpec, build_study
from raybench.stats.record import Prediction, RunOutcome, RunRecord
from tests.fake_client import use_clients
from tests.refusals import refused
from tests.search.made_up import outcome, record
from tests.search.stage import single_run_in


def way(
    trial: str,
    seconds: float,
    workers: int = 1,
    *,
    gpu: str | None = None,
    framework: Any = "torch",
    measured: bool = False,
) -> PlacementOption:
    batch = {"num_workers": workers, "batch_size_per_worker": 64 // workers}
    gpus = {"gpus_per_worker": 1, "accelerator_type": gpu} if gpu else {}
    spec = RunSpec(framework=framework, **batch, **gpus)
    prediction = Prediction(trial=trial, time_to_target_s=seconds, **speed_values(spec.placement))
    return PlacementOption(prediction, spec, measured)


@pytest.mark.parametrize(
    ("options", "checks"),
    [
        (
            # Only the three fastest trials count; the first trial on one worker is the cheapest.
            [way(trial, 2.0 + number) for number, trial in enumerate("abcd")]
            + [way(trial, 1.5 + number, 2) for number, trial in enumerate("abcd")],
            ["a.torch2", "b.torch2", "c.torch2", "a.torch1"],
        ),
        ([way("a", 1.0, 4, measured=True), way("a", 3.0)], ["a.torch1"]),
        (
            # Prices of GPU models differ, so worker-seconds of two models cannot be compared.
            [
                way("a", first_s + 4 - workers, workers, gpu=gpu)
                for gpu, first_s in (("H100", 1.0), ("A100", 5.0))
                for workers in (4, 1)
            ],
            ["a.torch4.H100", "a.torch1.A100", "a.torch1.H100", "a.torch4.A100"],
        ),
        (
            [way("a", 1.0, measured=True)]
            + [way("a", 4.0 + n, 2 - n, framework="tensorflow") for n in (0, 1)],
            ["a.tf2"],
        ),
    ],
    ids=["fastest trials", "cheapest", "GPU models", "frameworks"],
)
def test_the_placements_predicted_to_win_are_run_once(options, checks):
    ordered = sorted(options, key=lambda option: option.prediction.time_to_target_s)
    assert [check.name for check in choose_checks(ordered)] == checks


TRULY = {"0001": 1.0, "0002": 1.3, "0003": 1.2, "0004": 20.0}
"""Seconds of each new run by trial."""
SEARCH = {"0000": 0.5, "0001": 0.9, "0002": 0.8, "0003": 1.2, "0004": 1.3}
WORKERS = {"0003": 2}


class World:
    """A study folder with five trials, and made-up workers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **confirm: int) -> None:
        content: dict[str, Any] = {
            "objective": {"target": 0.9, "max_train_seconds": 100},
            "confirm": {"race": 8, "fresh": 2} | confirm,
            "space": {"num_workers": [1, 2]},
        }
        self.study: StudySpec = build_study(content, "test")[0]
        self.folder, self.deadline = folder, Deadline(None)
        self.breaks: Counter[str] = Counter()
        """Number of times that a run loses its workers, by name."""
        self.ends_after = 10**9
        self.ends_at: tuple[str, ...] = ()
        """Prefixes of the names of runs that train for `limit_s`, to the value of their trial."""
        self.limit_s, self.values = 100.0, dict[str, float]()
        self.value = 0.5
        """Metric at every evaluation but the last."""
        self.notes: list[str] = []
        self.running: set[str] = set()
        self.beside: dict[str, int] = {}
        self.specs: dict[str, RunSpec] = {}
        self._lock = threading.Lock()
        (folder / STUDY_FILE).write_text(to_yaml({"study": self.study.document()}))
        with Store(folder) as store:
            for name, seconds in SEARCH.items():
                store.append(record(name, self.spec(name), seconds).line())
        self.clients = use_clients(monkeypatch, self.train)

    def spec(self, trial: str) -> RunSpec:
        rate = 1e-3 * 2 ** int(trial)
        return self.study.run_spec({"num_workers": WORKERS.get(trial, 1), "learning_rate": rate})

    def confirmation(self, store: Store) -> Confirmation:
        return Confirmation(
            self.study,
            single_run_in(store, self.deadline),
            slots=2,
            at_once=lambda spec: 2 // spec.num_workers,
            baseline_value=0.1,
            note=self.notes.append,
        )

    def run(self, more: int = 0) -> dict[str, RunRecord]:
        """Confirm, or run more; return the new runs by name."""
        self.specs, self.beside = {}, {}
        before = set(read_records(self.folder).runs)
        with Store(self.folder) as store:
            confirmation = self.confirmation(store)
            confirmation.run_more(more) if more else confirmation.run()
        runs = read_records(self.folder).runs
        return {name: run for name, run in runs.items() if name not in before}

    def train(self, name: str, spec: RunSpec) -> Generator[RunOutcome, None, None]:
        source = name[:4]
        with self._lock:
            self.specs[name] = spec
            self.running.add(name)
        time.sleep(0.01)
        with self._lock:
            self.beside[name] = len(self.running) - 1
        seconds = TRULY.get(source, 2.0) * (1 + 0.01 * (spec.seed % 3))
        if len(self.beside) > self.ends_after:
            self.deadline.ends_with(StudyError("the disk is full"))
        try:
            if name.startswith(self.ends_at):
                value = self.values.get(source, 0.5)
                yield outcome(self.limit_s, stop="max_train_seconds", value=value)
                return
            for index in range(round(seconds / 0.5)):
                yield outcome(0.5 * (index + 1), index=index, value=self.value)
            if self.breaks[name]:
                self.breaks[name] -= 1
                yield outcome(0.1, failure="worker_lost")
            yield outcome(seconds, stop="target", time_to_target_s=seconds)
        finally:
            with self._lock:
                self.running.remove(name)

    def by_budget(self, trials: list[dict[str, Any]]) -> None:
        """Change the objective to the metric after 5 s, reached by `trials`."""
        objective = self.study.objective.model_copy(update={"kind": BUDGET, "target": None})
        self.study = self.study.model_copy(update={"objective": objective})
        (self.folder / STUDY_FILE).write_text(to_yaml({"study": self.study.document()}))
        self.ends_at, self.limit_s = ("",), 5.0
        with Store(self.folder) as store:
            store.clear()
            for number, ends in enumerate(trials):
                name, ends = f"{number:04d}", {"stop": "max_train_seconds"} | ends
                spec = self.spec(name).model_copy(update={"num_workers": 1})
                store.append(record(name, spec, 5.0, **ends).line())


Make = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return partial(World, tmp_path, monkeypatch)


@pytest.fixture
def world(make_world: Make) -> World:
    return make_world()


def named(runs: dict[str, RunRecord], role: str) -> list[str]:
    return sorted(name for name, run in runs.items() if run.role == role)


def test_the_best_race_with_equal_seeds_and_only_winners_run_alone(world):
    runs = world.run()
    # 8 runs: four contenders once, two of them again; the first trial has no run that counts.
    first = [name for name in named(runs, "race") if name.endswith("-race0")]
    assert {name[:4] for name in first} >= {"0000", "0001", "0002", "0003"}
    seeds = {(name[-1], world.specs[name].seed) for name in named(runs, "race")}
    assert len(seeds) == len({number for number, _ in seeds}), "one seed a round, for all"
    assert max(world.beside[name] for name in named(runs, "race")) == 1
    alone = named(runs, "confirm")
    assert alone == ["0001-confirm0", "0001-confirm1"]
    assert {world.beside[name] for name in alone} == {0}
    assert {client.name for client in world.clients if client.is_tested} == set(alone)
    assert not {world.specs[name].seed for name in alone} & {seed for _, seed in seeds}
    assert (world.run(), world.notes) == ({}, []), "all of it is recorded"


def test_no_two_phases_of_a_study_use_the_same_seeds():
    offsets = [module.SEEDS_FROM, module.RACE_SEEDS, reference.SEEDS_FROM, search.SEED_STEP]
    assert all(high - low > 200 for low, high in itertools.pairwise([0, *sorted(offsets)]))


def test_a_run_that_has_lost_is_capped_and_counts_as_a_miss(make_world):
    world = make_world(race=20)
    runs = world.run()
    capped = [run for run in runs.values() if run.stop == "cap"]
    assert {run.source for run in capped} <= {"0004", "0000"}
    assert "0004-race0" in {run.trial for run in capped}
    assert runs["0004-race0"].ledger["train"] < TRULY["0004"] / 2


def test_a_run_at_the_target_is_not_capped_during_the_hold(make_world):
    world = make_world(race=20)
    world.value = 0.9
    assert "cap" not in {run.stop for run in world.run().values()}


def test_an_interrupted_race_resumes_with_the_runs_that_are_left(world, tmp_path):
    world.ends_after = 3
    with pytest.raises(StudyError):
        world.run()
    complete = {
        run.trial
        for run in read_records(tmp_path).runs.values()
        if run.role == "race" and run.state == "complete"
    }
    assert 2 <= len(complete) <= 4
    assert not world.running
    with refused(ErrorCode.NO_RESULT, "--more"):
        check_finished(4, "there", tmp_path)
    world.deadline, world.ends_after = Deadline(None), 10**9
    runs = world.run()
    assert not complete & set(runs)
    assert not complete & set(world.specs)
    assert named(runs, "confirm") == ["0001-confirm0", "0001-confirm1"]
    check_finished(4, "there", tmp_path)


@pytest.mark.parametrize(("often", "is_confirmed"), [(1, True), (99, False)])
def test_a_run_that_lost_its_workers_is_repeated_while_others_succeed(often, is_confirmed, world):
    world.breaks["0001-race0"] = often
    runs = world.run()
    assert (runs["0001-race0"].failure is None) == is_confirmed
    assert ("0001-race1" in runs) == is_confirmed
    assert [note.split()[1] for note in world.notes] == ["0001"] * (not is_confirmed)
    assert named(runs, "confirm"), "the others race on"


def test_a_single_candidate_that_misses_has_no_solo_runs(make_world, monkeypatch):
    for name in [*SEARCH][1:]:
        monkeypatch.delitem(SEARCH, name)
    world = make_world()
    world.ends_at = ("",)
    assert set(world.run()) == {"0000-race0"}, "its own run had a cold start and does not count"
    assert world.notes == []


def test_more_runs_are_for_the_undecided_and_a_new_winner_runs_alone(
    make_world, tmp_path, monkeypatch
):
    world = make_world(race=2)
    monkeypatch.setitem(TRULY, "0003", 0.6)
    before = world.run()
    runs = world.run(more=6)
    lines = [json.loads(line) for line in (tmp_path / RECORDS_FILE).read_text().splitlines()]
    assert len(named(runs, "race")) == 6
    assert len({line["trial"] for line in lines if line["kind"] == "run"}) == sum(
        (len(SEARCH), len(before), len(runs))
    ), "none ran twice"
    assert {run.source for run in runs.values() if run.role == "race"} > {"0003"}
    assert "0003-confirm1" in {*before, *runs}


def test_more_runs_decide_the_cheapest_once_the_fastest_is_known(make_world, monkeypatch):
    times = {"0001": 5.0, "0002": 5.1, "0003": 3.0, "0000": 60.0, "0004": 60.0}
    for known in (TRULY, SEARCH):  # 0003 takes two workers
        for name, seconds in times.items():
            monkeypatch.setitem(known, name, seconds)
    world = make_world()
    world.run()
    runs = world.run(more=6)
    assert {runs[name].source for name in named(runs, "race")} >= {"0001", "0002"}


def test_a_new_winner_after_solo_misses_runs_alone_too(world, tmp_path):
    world.ends_at, world.limit_s = ("0001-confirm",), 9.0
    alone = named(world.run(), "confirm")
    assert alone[:2] == ["0001-confirm0", "0001-confirm1"]
    assert len(alone) > 2
    verdict = load(tmp_path).verdict
    assert verdict is not None
    assert f"{verdict.fastest}-confirm1" in alone


@pytest.mark.parametrize(
    ("requested", "seconds", "runs"),
    [(8, 6.0, 8), (24, 9.0, 16)],  # of 24: five contenders once, five again, and three twice more
)
def test_a_short_budget_runs_fewer_and_notes_it(requested, seconds, runs, make_world):
    world = make_world(race=requested)
    world.deadline = Deadline(seconds)
    new_runs = world.run()
    assert 1 <= len(named(new_runs, "confirm")) <= 2
    assert len(named(new_runs, "race")) < runs
    assert f" {seconds:g} s " in world.notes[0]
    assert f" {runs} confirmation runs" in world.notes[0]


def test_values_race_if_all_runs_train_equally_long(world):
    world.by_budget([{"value": value} for value in (0.91, 0.90, 0.93, 0.92)])
    world.values = dict.fromkeys(("0000", "0002", "0003"), 0.90) | {"0001": 0.95}
    runs = world.run()
    assert named(runs, "confirm") == ["0001-confirm0", "0001-confirm1"]
    assert {run.stop for run in runs.values()} == {"max_train_seconds"}


@pytest.mark.parametrize(
    ("state", "requested", "raced", "until"),
    [
        ({}, 8, 12, 20),
        ({STUDY_KEY_MORE: {"asked": 8, "until": 20}}, 8, 15, 20),
        ({STUDY_KEY_MORE: {"asked": 8, "until": 20}}, 4, 15, 19),  # another command
        ({STUDY_KEY_MORE: None}, 8, 1, 9),
        ({STUDY_KEY_MORE: {"asked": 8, "until": 10**9}}, 8, 1, 9),
    ],
)
def test_an_interrupted_more_is_resumed_by_the_same_command(state, requested, raced, until):
    assert more_until(requested, state, raced) == until


def test_the_value_of_a_run_that_was_stopped_early_does_not_count(world):
    world.by_budget([{"value": 0.9}, {"value": 0.9}, {"value": 0.9, "stop": None}])
    with Store(world.folder) as store:
        confirmation = world.confirmation(store)
        records = confirmation._records()
        budget = confirmation._budget(records)
        race = LiveRace(budget, confirmation.single_run, records, confirmation.slots)
        candidates = race.candidates()["seconds"]
    counts = {candidate.name: candidate.search_run is not None for candidate in candidates}
    assert counts == {"0000": False, "0001": True, "0002": False}
