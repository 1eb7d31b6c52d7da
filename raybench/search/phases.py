"""The phases of a study, in order: target, search, finalists, sentinel, confirm."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from raybench.cluster.session import Session
from raybench.core.space import Space
from raybench.core.study import TIME, StudySpec
from raybench.results.load import StudyResults, load
from raybench.results.provenance import command, machine, versions
from raybench.results.store import STUDY_FILE, Store, read_records
from raybench.results.tables import ranked
from raybench.search.alone import Alone
from raybench.search.confirm import confirm
from raybench.search.control import Control
from raybench.search.factor import Factors, study_factors
from raybench.search.finalists import run_finalists
from raybench.search.reference import set_target
from raybench.search.run import search
from raybench.search.screen import Screen
from raybench.search.searcher import StudySearcher
from raybench.search.sentinel import run_sentinel
from raybench.search.speed import Speed


@dataclass(frozen=True)
class Phases:
    """What all phases of a study share; `run` runs those that are left."""

    space: Space
    session: Session
    store: Store
    console: Console
    control: Control
    num_classes: int
    concurrency: int
    keep_groups: bool
    """False starts new worker processes for every trial."""

    def run(self, study: StudySpec, earlier: StudyResults | None) -> None:
        """Run what is left of the study in its folder, until it is done or `control` ends it.

        `earlier` is another study to learn from.
        """
        recorded = {r["trial"]: r for r in read_records(self.store.folder) if r["kind"] == "run"}
        if study.needs_target:
            found = self._set_target(study)
            if found is None:
                return
            study = found
        elif not (recorded and (self.store.folder / STUDY_FILE).is_file()):
            self._write_study(study, "the user")  # else the session that began the study has
        factors = study_factors(study, self.space)
        speed = Speed(factors) if isinstance(factors, Factors) else None
        searcher = StudySearcher(
            study, self.space, self.store.folder, self.control, recorded, speed
        )
        told = searcher.tell_earlier(earlier) if earlier is not None else None
        if earlier is not None and told is not None:
            self.console.print(told.sentence(earlier.folder), highlight=False)
        num_done = searcher.num_finished
        if num_done:
            self.console.print(f"continuing {self.store.folder}: {num_done} trials are done")
        screen = Screen(self.console, num_trials=searcher.num_trials, num_done=num_done)
        with screen:
            search(
                study,
                searcher,
                session=self.session,
                store=self.store,
                control=self.control,
                screen=screen,
                keep_groups=self.keep_groups,
                concurrency=self.concurrency,
                speed=speed,
            )
            self._finish(study, speed, self._alone(screen))

    def _set_target(self, study: StudySpec) -> StudySpec | None:
        """Run the reference for `target: auto`; None if it was ended."""
        self._write_study(study, "not set yet")
        with Screen(self.console, num_trials=study.search.trials) as screen:
            alone = self._alone(screen)
            found = set_target(study, self.space, alone, num_classes=self.num_classes)
        if found is None:
            return None
        study, target_set_by = found
        self._write_study(study, target_set_by)
        self.console.print(f"target {study.objective.target} ({target_set_by})", highlight=False)
        return study

    def _finish(self, study: StudySpec, speed: Speed | None, alone: Alone) -> None:
        """Train what was only predicted, measure the sentinel, confirm the best."""
        folder = self.store.folder
        if speed is not None:
            run_finalists(load(folder), speed, alone)
        results = load(folder)
        run_sentinel(results, session=self.session, store=self.store, control=self.control)
        candidates, already = _to_confirm(results, study)
        if candidates and not self.control.over:
            alone.screen.begin("confirm", len(candidates) * study.confirm.repeats)
            confirm(candidates, repeats=study.confirm.repeats, already=already, alone=alone)

    def _alone(self, screen: Screen) -> Alone:
        return Alone(self.session, self.store, self.control, screen)

    def _write_study(self, study: StudySpec, target_set_by: str) -> None:
        nodes = self.session.capacity.nodes
        content = {
            "study": study.document(),
            "target_set_by": target_set_by,
            "command": command(),
            "versions": versions(),
            "machine": machine(),
            "cluster": {"nodes": [{"cpus": cpus, "gpus": gpus} for cpus, gpus in nodes]},
            "concurrency": self.concurrency,
        }
        self.store.write_yaml(STUDY_FILE, content)


def _to_confirm(
    results: StudyResults, study: StudySpec
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return the specs of the trials to confirm by name, and the confirming runs that are done.

    To the fastest few comes the one with the least worker-seconds, or "cheapest" would only
    be asked of the fast.
    """
    runs = ranked(results.trials)
    runs = runs[runs["time_to_target_s"].notna() & (study.objective.kind == TIME)]
    cost = (runs["num_workers"] * runs["time_to_target_s"]).sort_values(kind="stable")
    chosen = [*runs["trial"].head(study.confirm.top)]
    if chosen:
        chosen += [str(runs.loc[index, "trial"]) for index in cost.index[:1]]
    done = results.trials[
        (results.trials["phase"] == "confirm") & (results.trials["state"] != "stopped")
    ]
    return {name: results.specs[name] for name in chosen}, set(done["trial"])
