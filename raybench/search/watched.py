"""A study of somebody else, followed by its files alone: study.yaml and records.jsonl; and what
follows its runs so far: how many runs, how long.
"""

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from raybench.report.live.replay import Driver, Forecast, Plan, Replay, Source
from raybench.report.live.screen import spent
from raybench.report.live.state import LiveState
from raybench.results.records import left_out
from raybench.results.store import SCALING, STUDY_FILE
from raybench.results.study import NUM_TRIALS
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.reference import RUNS
from raybench.spec.documents import validate
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec, label_keys
from raybench.spec.scaling_study import ScalingStudy, study_cells
from raybench.spec.study import StudySpec
from raybench.stats.record import RunRecord


class StudyForecast(Forecast):
    """Follows the runs of a search; see `report.live.replay.Forecast`."""

    def __init__(self, study: StudySpec, at_once: Callable[[RunSpec], int]) -> None:
        """`at_once`: how many runs of a spec there is room for at the same time."""
        self._study = study
        self._budget = ConfirmBudget(study, at_once=at_once)

    def add(self, record: RunRecord) -> None:
        """Take a run that has ended."""
        if record.phase == "search":
            self._budget.add(record)

    def after_s(self, phase: str) -> float:
        """Return the seconds of what follows a phase."""
        if phase in ("search", "placement_check"):
            return self._budget.confirming_s()
        return self._budget.fresh_s(self._study.confirm.fresh) if phase == "race" else 0.0

    def expect_s(self, phase: str) -> float | None:
        """Return the seconds of a phase that begins now; None where they are not known."""
        if phase == "race":
            return self._budget.race_s(self._study.confirm.race)
        return self._budget.fresh_s(self._study.confirm.fresh) if phase == "confirm" else None

    def num_runs(self, phase: str) -> int | None:
        """Return the runs of a phase, at most; None where they are not known."""
        if phase == "race":
            return self._budget.race_runs(self._study.confirm.race)
        if phase == "confirm":
            return self._study.confirm.fresh * len(self._budget.winners())
        return None


QUIET_S = 300.0
"""Without news for so long, a driver that is not seen may have died."""


class Watched:
    """What a source shows; `look` now and then."""

    def __init__(self, source: Source, at: float) -> None:
        """`at`: Unix time of now."""
        self._source = source
        self._yaml: bytes | None = None
        self._document: Mapping[str, Any] = {}
        self.driver: Driver = "unknown"
        self._begin(at)

    def look(self, at: float) -> bool:
        """Take what is new; return whether the study has ended, and all of it was read.

        UserError where the files are no study's, BucketError where they are not reached.
        """
        driver = self._source.driver()  # first: what it wrote before it ended is read below
        content = self._source.study_yaml()
        if content is not None and content != self._yaml:
            self._yaml = content
            self._read_plan(content)
        news = self._source.news()
        if news.is_anew:
            self._begin(at)
        self.replay.feed(news.lines, at)
        self._set_budget()
        self.driver, self.state.is_over = driver, driver in ("ended", "died")
        return driver in ("ended", "died") and not news.lines

    @property
    def is_scaling(self) -> bool:
        """Whether it is a scaling study."""
        return SCALING in self._document

    @property
    def has_best(self) -> bool:
        """Whether one of its runs is the best."""
        return not self.is_scaling

    def now(self, at: float) -> float:
        """Return the moment of the screen: that of the last run of a study that has ended, and
        never before it, whatever this host's clock says."""
        last_s = self.replay.last_s
        if last_s is None:
            return at
        return last_s if self.driver in ("ended", "died") else max(at, last_s)

    def notes(self) -> list[str]:
        """Return what there is to say of lines that are no records, of a plan that cannot be read,
        and of who writes them."""
        left = left_out(self.replay.bad)
        return [*filter(None, (left, self._unread)), *self._of_the_driver()]

    def _of_the_driver(self) -> list[str]:
        if self.driver == "died":
            return ["Its driver died: the same command continues."]
        if self.driver == "ended":
            way = "was interrupted: the same command continues" if self.is_cut else "has ended"
            return [f"The study {way}."]
        if self._yaml is None:
            return ["The command has begun; nothing is recorded yet."]
        idle_s = self._source.idle_s()
        if idle_s is None or idle_s < QUIET_S:
            return []
        who = "its driver lives" if self.driver == "lives" else "its driver may have died"
        return [f"Nothing written for {spent(idle_s)}; {who}."]

    @property
    def is_cut(self) -> bool:
        """Whether the last run was cut off, or some never ended."""
        return self.replay.is_interrupted or bool(self.state.runs)

    def _begin(self, at: float) -> None:
        self.state = LiveState(at)
        self.replay = Replay(self.state, Plan())
        if self._yaml is not None:
            self._read_plan(self._yaml)

    def _read_plan(self, content: bytes) -> None:
        try:
            document = yaml.safe_load(content)
        except yaml.YAMLError:
            document = None
        if not isinstance(document, dict) or not isinstance(document.get("study"), dict):
            raise UserError(f"{STUDY_FILE}: is no study of ours; restore the file.")
        self._document, self._unread = document, ""
        self.state.num_workers = _num_workers(document)
        try:
            plan = self._plan()
        except UserError as error:  # written by another version: its runs can be shown all the same
            plan, self._unread = (Plan(), Forecast()), f"What is left is not known: {error}"
        self.replay.replan(*plan)

    def _plan(self) -> tuple[Plan, Forecast]:
        document = self._document
        if SCALING in document:
            study = validate(ScalingStudy, document[SCALING], f"{STUDY_FILE}: {SCALING}")
            cells, repeats = study_cells(study), range(study.repeats)
            specs = dict(cell.repeat(number) for cell in cells for number in repeats)
            return Plan({"scaling": len(specs)}, specs, concurrency=1, only="scaling"), Forecast()
        if document["study"].get("run"):
            return Plan({"train": 1}, concurrency=1, only="train"), Forecast()
        if "space" not in document["study"]:  # a comparison, a diagnosis: runs without a plan
            return Plan(), Forecast()
        search = validate(StudySpec, document["study"], f"{STUDY_FILE}: study")
        self.state.keys = label_keys(search.space)
        concurrency = document.get("concurrency")
        at_once = concurrency if isinstance(concurrency, int) else 1
        num_workers = _num_workers(document) or 1

        def fitting(spec: RunSpec) -> int:
            return max(1, min(at_once, num_workers // spec.num_workers))

        counts = {
            "search": int(document.get(NUM_TRIALS, search.search.trials or 0)),
            "reference": RUNS if search.auto else 1,
        }
        self._budget_s = search.search.time_budget_s
        plan = Plan(counts, concurrency=concurrency if isinstance(concurrency, int) else None)
        return plan, StudyForecast(search, fitting)

    _unread: str = ""
    """Why the plan could not be read, in a sentence."""
    _budget_s: float | None = None
    """The time budget; of a study that was continued it counts from a moment nobody recorded."""

    def _set_budget(self) -> None:
        if self._budget_s is not None and not self._document.get("continued"):
            self.state.ends_s = self.state.began_s + self._budget_s


def _num_workers(document: Mapping[str, Any]) -> int | None:
    """Return how many workers the machines had room for; None where the file does not tell it."""
    cluster, study = document.get("cluster"), document["study"]
    nodes = cluster.get("nodes") if isinstance(cluster, dict) else None
    if not isinstance(nodes, list):
        return None
    fixed = study.get("fixed") or {}
    kind = "gpus" if fixed.get("gpus_per_worker") else "cpus"
    found = sum(float(node.get(kind, 0)) for node in nodes if isinstance(node, dict))
    return int(found) or None
