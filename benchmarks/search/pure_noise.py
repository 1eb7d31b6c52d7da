"""Claim: where labels do not depend on inputs no winner is named, and what can be learnt is named.

Studies without Ray, of 3 reference runs, 40 trials, a race of 6 x 2 and 3 fresh runs of its winner,
with the package's own target, ranking and verdict. Predictions of a run change by a fifth from one
of its 20 evaluations to the next, and share half of their variance with all other runs on the same
rows (they have seen the same training rows). Labels: two classes as frequent as each other, or
normal numbers; the same with signal: accuracy 70 %, R2 0.4 for the best configurations. Kinds:
time to `target: auto`, and the best at a budget. `before` has no baseline on file: what was
confirmed was named.

    python benchmarks/search/pure_noise.py [--studies 100]

Bars: at 100, 300, 1,000 and 5,000 rows of each split at most 5 of 100 studies of noise name a
winner, and at least 90 of 100 do where there is something to learn. About 10 minutes on one core;
prints losses like wins; writes results/pure_noise.md; exit 1 below a bar.
"""

import argparse
import math
import sys
import tempfile
from pathlib import Path

import numpy as np

from raybench.data.baseline import baselines, label_baseline
from raybench.data.dataset import Dataset, Split
from raybench.report.study import load
from raybench.results.store import STUDY_FILE, Store
from raybench.results.verdict import judge
from raybench.search.reference_settings import held, target_from
from raybench.spec.errors import UserError
from raybench.spec.metric import METRICS, Metric
from raybench.spec.objective import (
    BUDGET,
    MARGIN_WITH_TEST_SPLIT,
    TIME,
    Baseline,
    Objective,
    time_to_target,
)
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Role, RunOutcome
from raybench.stats.replicates import Replicate, pooled, ranked

ROWS = (100, 300, 1000, 5000)
EVALUATIONS, TRIALS, RACED, LIMIT_S = 20, 40, 6, 20.0
CHANGE, SHARED = 0.2, 0.5
WELL, R2 = 0.524, 0.4
"""Signal of the best: 70 % of answers right, this part of the variance explained."""
MOST_NOISE, LEAST_LEARNT = 5, 90
POINT = {"epoch": 0.5, "train_loss": 1.0, "learning_rate": 1e-3, "samples_per_s": 100.0}
Floats = np.ndarray


class World:
    """The rows of a study, and runs on them."""

    def __init__(self, task: str, rows: int, *, is_noise: bool, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.metric: Metric = METRICS["accuracy" if task == "classes" else "rmse"]
        self.rows, self.is_noise = rows, is_noise
        self.signal = self.drawn(rows)
        self.rest = self.drawn(rows)
        self.shared = self.drawn(rows)

        self.labels = self._labels(self.signal, self.rest)
        train = self._labels(*self.drawn(8 * rows))
        self.baselines = self.known(train)

    def drawn(self, rows: int) -> Floats:
        """Return normal numbers for the rows of two splits."""
        return self.rng.standard_normal((2, rows), np.float32)

    def _labels(self, signal: Floats, rest: Floats) -> Floats:
        if self.metric.is_share:
            return np.sign(rest)
        size = 0.0 if self.is_noise else R2
        return math.sqrt(size) * signal + math.sqrt(1 - size) * rest

    def known(self, train: Floats) -> dict[str, Baseline | None]:
        """Return the baselines of both splits, as preflight and study take them from labels."""
        kind = np.int64 if self.metric.is_share else np.float32
        splits = [
            Split(
                np.zeros((len(one), 1), np.float32),
                (one > 0 if self.metric.is_share else one).astype(kind),
            )
            for one in (train, *self.labels)
        ]
        classes, task = (2, "classification") if self.metric.is_share else (None, "regression")
        dataset = Dataset("made up", classes, *splits, task=task)  # type: ignore[arg-type]
        objective = Objective(kind=BUDGET, metric=self.metric.name, direction=self.metric.direction)
        baseline_value = label_baseline(self.metric, dataset)
        return baselines(objective.model_copy(update={"baseline_value": baseline_value}), dataset)

    def run(self, quality: float) -> tuple[list[float], list[float]]:
        """Return what one run reaches at each evaluation, in validation and on the test rows."""
        own, values = self.drawn(self.rows), []
        for index in range(EVALUATIONS):
            drawn = self.drawn(self.rows)
            own = math.sqrt(1 - CHANGE) * own + math.sqrt(CHANGE) * drawn
            noise = math.sqrt(SHARED) * self.shared + math.sqrt(1 - SHARED) * own
            learnt = 0.0 if self.is_noise else quality * min((index + 1) / 8, 1.0)
            values.append(self._values(noise, learnt, quality))
        return [one[0] for one in values], [one[1] for one in values]

    def _values(self, noise: Floats, learnt: float, quality: float) -> list[float]:
        if self.metric.is_share:
            right = np.sign(WELL * learnt * self.labels + noise) == self.labels
            return [float(one) for one in right.mean(axis=1)]
        answers = math.sqrt(R2) * learnt * self.signal + 0.3 * (1 - quality) * noise
        return [float(one) for one in np.sqrt(((self.labels - answers) ** 2).mean(axis=1))]


class Study:
    """One study in a world, as its records."""

    def __init__(self, world: World, kind: str, *, knows: bool) -> None:
        self.world, self.kind, self.knows = world, kind, knows
        self.lines: list[dict[str, object]] = []

    def named(self) -> bool:
        """Whether the verdict names a winner that was confirmed."""
        world, metric = self.world, self.world.metric
        base, target = world.baselines["validation"], None
        assert base is not None
        if self.kind == TIME:
            found = [held(world.run(0.8)[0], 1, metric) for _ in range(3)]
            least = base.beyond(metric, MARGIN_WITH_TEST_SPLIT) if self.knows else None
            try:
                target = target_from(
                    [one or 0.0 for one in found], base.value, metric, by_chance=least
                )
            except UserError:
                return False
        self.objective = Objective(
            kind=self.kind,  # type: ignore[arg-type]
            metric=metric.name,
            direction=metric.direction,
            target=target,
            baseline_value=base.value,
            max_train_seconds=LIMIT_S,
        )
        qualities = world.rng.uniform(0.2, 1.0, TRIALS)
        groups = {
            f"{n:04d}": [self._run(f"{n:04d}", one, "trial")] for n, one in enumerate(qualities)
        }
        is_timed = self.kind == TIME
        order = sorted(
            groups, key=lambda name: (not groups[name][0].is_hit, groups[name][0].seconds)
        )
        raced = {name: groups[name] for name in order[:RACED] if groups[name][0].is_hit}
        for name, runs in raced.items():
            for n in range(2):
                runs.append(self._run(f"{name}-race{n}", qualities[int(name)], "race", name))
        if not raced:
            return False
        best = ranked(raced, pooled(raced.values(), is_timed=is_timed))[0]
        for n in range(3):
            self._run(f"{best}-confirm{n}", qualities[int(best)], "confirm", best)
        return self._verdict()

    def _run(self, name: str, quality: float, role: Role, source: str | None = None) -> Replicate:
        """Record a run; evaluations are a second apart, of configurations of any quality."""
        metric, target = self.world.metric, self.objective.target
        values, tested = self.world.run(quality)
        seconds = [1.0 + index for index in range(EVALUATIONS)]
        reached = None
        if target is not None:
            reached = time_to_target(values, seconds, target=target, metric=metric)
        at = EVALUATIONS - 1 if reached is None else seconds.index(reached)
        best = values[at] if target is None else metric.best(values[: at + 1])
        last = Evaluation(
            **POINT,
            index=at,
            samples=100 * at,
            train_s=seconds[at],
            value=values[at],
            best_value=best,
            time_to_target_s=reached,
            stop="max_train_seconds" if reached is None else "target",
        )
        outcome = RunOutcome(
            evaluation=last,
            is_over=True,
            ledger={"train": seconds[at]},
            wall_s=seconds[at],
            test_value=tested[at] if role == "confirm" else None,
        )
        spec = RunSpec(objective=self.objective, learning_rate=1e-3 * quality)
        record = outcome.record(name, spec, role=role, source=source, stopped_by=None)
        self.lines.append(record.line())
        if target is None:
            return Replicate(-metric.sign * (best or 0.0), is_hit=True)
        return Replicate(seconds[at], is_hit=reached is not None)

    def _verdict(self) -> bool:
        content = {"study": {"objective": self.objective.model_dump(mode="json")}}
        if self.knows:
            known = self.world.baselines.items()
            content["baseline"] = {part: one and one.document() for part, one in known}
        with tempfile.TemporaryDirectory() as folder:
            with Store(Path(folder)) as store:
                store.write_yaml(STUDY_FILE, content)
                for line in self.lines:
                    store.append(line)
            verdict = judge(load(folder))
        return verdict is not None and verdict.is_confirmed


def main() -> int:
    """Print the table, write it, and say whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=100)
    studies = parser.parse_args().studies
    head = ["labels", "kind", "rows", "noise before", "noise", "learnable"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    missed = 0
    for task in ("classes", "numbers"):
        for kind in (TIME, BUDGET):
            for rows in ROWS:
                counts = [
                    sum(
                        Study(
                            World(task, rows, is_noise=noise, seed=seed), kind, knows=knows
                        ).named()
                        for seed in range(studies)
                    )
                    for noise, knows in ((True, False), (True, True), (False, True))
                ]
                shares = [100 * count / studies for count in counts]
                missed += shares[1] > MOST_NOISE or shares[2] < LEAST_LEARNT
                words = [task, kind, f"{rows:,}", *(f"{share:.0f} %" for share in shares)]
                lines.append(f"| {' | '.join(words)} |")
                print(lines[-1], flush=True)
    text = "\n".join(
        [
            f"# pure_noise: studies of {studies} that name a winner",
            "",
            *lines,
            "",
            f"Bars (at most {MOST_NOISE} %, at least {LEAST_LEARNT} %): "
            f"{'met' if not missed else f'missed in {missed} rows'}.",
            "",
        ]
    )
    (Path(__file__).parents[1] / "results" / "pure_noise.md").write_text(text)
    print(text.splitlines()[-1])
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
