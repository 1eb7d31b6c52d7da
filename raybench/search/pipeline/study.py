"""The phases of a study, in order: target, search, finalists, sentinel, confirm."""

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from raybench.cluster.session import Session
from raybench.cluster.worker import DATA
from raybench.core.documents import read_mapping
from raybench.core.record import MACHINE_FAULTS
from raybench.core.space import Space
from raybench.core.study import TIME, StudySpec
from raybench.data.dataset import Dataset
from raybench.data.shared import share, shared_key
from raybench.results.console import say
from raybench.results.label import label_keys
from raybench.results.load import StudyResults, load
from raybench.results.progress import Progress
from raybench.results.provenance import command, machine, versions
from raybench.results.store import STUDY_FILE, Store, read_records
from raybench.results.tables import ranked
from raybench.search.pipeline.confirm import confirm
from raybench.search.pipeline.confirm_budget import SLACK, ConfirmBudget, affordable
from raybench.search.pipeline.deadline import Deadline
from raybench.search.pipeline.interference import run_sentinel
from raybench.search.pipeline.reference import set_by_reference
from raybench.search.pipeline.single_run import SingleRun
from raybench.search.pipeline.verify_predictions import run_finalists
from raybench.search.ray_tune.searcher import StudySearcher
from raybench.search.ray_tune.tuner import search
from raybench.speed.factorisation import Factors, study_factors
from raybench.speed.placement import Placer

KEPT_FOR_CONFIRM = 0.75
"""Share of the time left that finalists leave to confirming, where there is little of it."""
SENTINEL_S = 5.0
"""What measuring the sentinel takes at most, about."""


@dataclass(frozen=True)
class StudyPipeline:
    """What all phases of a study share; `run` runs those that are left."""

    space: Space
    session: Session
    store: Store
    console: Console
    control: Deadline
    dataset: Dataset
    concurrency: int
    keep_groups: bool
    """False starts new worker processes for every trial."""
    notes: list[str] = field(default_factory=list)
    """What the user should know of how the study went, in sentences."""
    set_by: list[str] = field(default_factory=list)
    """What reference runs have set, in sentences."""

    def run(self, study: StudySpec, earlier: StudyResults | None) -> None:
        """Run what is left of the study in its folder, until it is done or `control` ends it.

        `earlier` is another study to learn from.
        """
        # Loaded once here, mapped by every worker of this host.
        key = shared_key(study.workload, study.dataset)
        share(self.dataset, self.session.scratch / DATA / key)
        if (self.store.folder / STUDY_FILE).is_file():
            earlier_study = read_mapping(self.store.folder / STUDY_FILE)
            self.set_by.extend(map(str, earlier_study.get("set_by_reference") or []))
        recorded = {r["trial"]: r for r in read_records(self.store.folder) if r["kind"] == "run"}
        if study.needs_reference:
            found = self._set_by_reference(study)
            if found is None:
                return
            study = found
        elif not (recorded and (self.store.folder / STUDY_FILE).is_file()):
            self._write_study(study)  # else the session that began the study has
        factors = study_factors(study, self.space)
        speed = Placer(factors) if isinstance(factors, Factors) else None
        searcher = StudySearcher(
            study, self.space, self.store.folder, self.control, recorded, speed
        )
        told = searcher.tell_earlier(earlier) if earlier is not None else None
        if earlier is not None and told is not None:
            self._say(told.sentence(earlier.folder))
        num_done = searcher.num_finished
        if num_done:
            self._say(f"continuing {self.store.folder}: {num_done} trials are done")
        allowance = ConfirmBudget(study)
        if recorded:
            allowance.learn(load(self.store.folder).trials)
        screen = Progress(
            self.console,
            num_trials=searcher.num_trials,
            num_done=num_done,
            keys=label_keys(study.space),
        )
        with screen:
            search(
                study,
                searcher,
                session=self.session,
                store=self.store,
                control=self.control,
                screen=screen,
                allowance=allowance,
                keep_groups=self.keep_groups,
                concurrency=self.concurrency,
                speed=speed,
            )
            self.control.raise_fault()
            if searcher.num_finished < searcher.num_trials and self.control.reason():
                budget = study.search.time_budget_s
                if not self.control.interrupted:
                    self.notes.append(
                        f"The time budget of {budget:g} s ended the search after "
                        f"{searcher.num_finished} of {searcher.num_trials} trials."
                    )
            self._finish(study, speed, self._alone(screen), allowance)
        if self.notes:
            self._write_study(study)

    def _set_by_reference(self, study: StudySpec) -> StudySpec | None:
        """Run the reference for what is `auto`; None if it was ended."""
        self._write_study(study)
        with Progress(
            self.console, num_trials=study.search.trials, keys=label_keys(study.space)
        ) as screen:
            found = set_by_reference(
                study,
                self.space,
                self._alone(screen),
                num_classes=self.dataset.num_classes,
                num_train_samples=self.dataset.num_train_samples,
            )
        if found is None:
            return None
        study, words = found
        self.set_by.extend(words)
        self._write_study(study)
        for sentence in words:
            self._say(sentence)
        return study

    def _finish(
        self, study: StudySpec, speed: Placer | None, alone: SingleRun, allowance: ConfirmBudget
    ) -> None:
        """Train what was only predicted, measure the sentinel, confirm the best."""
        self.store.check()
        folder, control = self.store.folder, self.control
        # A part of what is left, so that what is less than expected serves both phases.
        control.reserve_s = min(allowance.confirming_s(), KEPT_FOR_CONFIRM * control.left_s)
        if speed is not None:
            run_finalists(load(folder), speed, alone)
            self.store.check()
        results = load(folder)
        if control.left_s > allowance.confirming_s() + SENTINEL_S:
            run_sentinel(results, session=self.session, store=self.store, control=control)
        control.reserve_s = 0.0
        candidates, already = _to_confirm(results, study)
        if not candidates or control.over:
            if study.confirm.top and candidates and control.reason() == "time_budget":
                self._note_unconfirmed(study, 0, len(candidates))
            return
        count, repeats = self._affordable(study, results, list(candidates))
        kept = dict(list(candidates.items())[:count])
        if count < len(candidates) or repeats < study.confirm.repeats:
            self._note_unconfirmed(study, count, len(candidates), repeats)
        if kept:
            alone.screen.begin("confirm", count * repeats)
            confirm(
                kept,
                repeats=repeats,
                search_seed=study.search.seed,
                already=already,
                alone=alone,
            )

    def _affordable(
        self, study: StudySpec, results: StudyResults, names: list[str]
    ) -> tuple[int, int]:
        """Return how many of the configurations can be confirmed, and how often."""
        allowance = ConfirmBudget(study)
        allowance.learn(results.trials)
        expected = [allowance.run_s(name) for name in names]
        left = self.control.left_s
        found = affordable(expected, study.confirm.repeats, left)
        # The expectation has room for bad luck; one run is worth trying without it.
        return (1, 1) if found == (0, 0) and expected[0] < SLACK * left else found

    def _note_unconfirmed(
        self, study: StudySpec, count: int, wanted: int, repeats: int = 0
    ) -> None:
        budget = f"The time budget of {study.search.time_budget_s:g} s"
        if not count:
            self.notes.append(f"{budget} was too short to confirm the result with new seeds.")
        else:
            runs = "run" if repeats == 1 else "runs"
            self.notes.append(
                f"{budget} left time to confirm {count} of {wanted} configurations, with {repeats} "
                f"{runs} each."
            )

    def _alone(self, screen: Progress) -> SingleRun:
        return SingleRun(self.session, self.store, self.control, screen, self.keep_groups)

    def _say(self, sentence: str) -> None:
        say(self.console, sentence)

    def _target_set_by(self, study: StudySpec) -> str:
        if "target" not in study.auto:
            return "the user"
        return next((text for text in self.set_by if text.startswith("target")), "not set yet")

    def _write_study(self, study: StudySpec) -> None:
        nodes = self.session.capacity.nodes
        content = {
            "study": study.document(),
            "target_set_by": self._target_set_by(study),
            "set_by_reference": self.set_by,
            "notes": self.notes,
            "command": command(),
            "versions": versions(),
            "machine": machine(),
            "cluster": {"nodes": [{"cpus": node.cpus, "gpus": node.gpus} for node in nodes]},
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
    if study.objective.kind == TIME:
        runs = runs[runs["time_to_target_s"].notna()]
        cost = (runs["num_workers"] * runs["time_to_target_s"]).sort_values(kind="stable")
    else:
        runs = runs[runs["best_accuracy"].notna()]
        cost = runs["score"].head(0)  # the seconds are the same for all
    chosen = [*runs["trial"].head(study.confirm.top)]
    if chosen:
        chosen += [str(runs.loc[index, "trial"]) for index in cost.index[:1]]
    trials = results.trials
    is_answered = (trials["state"] != "stopped") & ~trials["failure"].isin(MACHINE_FAULTS)
    done = trials[(trials["phase"] == "confirm") & is_answered]
    return {name: results.specs[name] for name in chosen}, set(done["trial"])
