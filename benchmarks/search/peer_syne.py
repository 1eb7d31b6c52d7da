"""Syne Tune as a contestant."""

from datetime import datetime
from pathlib import Path
from typing import Any

from peer import GRACE, THOUSANDTHS, Peer, result_of
from recorded import Config, Point, Space


class Syne(Peer):
    """A Syne Tune scheduler over a flat space, called as its `Tuner` calls it.

    BORE and CQR learn from ended trials only, ASHABORE and ASHACQR from every trial's last
    report. BORE scores its 500 candidates one by one (0.2 s of CPU a suggestion), CQR fits five
    boosted ensembles; both at their defaults.
    """

    def __init__(self, space: Space, seed: int, folder: Path, method: str):
        super().__init__(space, seed, folder)
        from syne_tune import config_space
        from syne_tune.backend.trial_status import Trial
        from syne_tune.optimizer import baselines

        self._trial = Trial
        batches, workers = space.batch_sizes_per_worker, space.num_workers
        resource: dict[str, Any] = {}
        if method.startswith("ASHA"):
            resource = {
                "time_attr": "resource",
                "max_t": THOUSANDTHS,
                "grace_period": round(GRACE * THOUSANDTHS),
            }
        self.scheduler = getattr(baselines, method)(
            {
                "optimizer": config_space.choice(list(space.rates)),
                "rate": config_space.uniform(0.0, 1.0),
                "batch": config_space.logfinrange(
                    batches[0], batches[-1], len(batches), cast_int=True
                ),
                "workers": config_space.logfinrange(
                    workers[0], workers[-1], len(workers), cast_int=True
                ),
            },
            metric="score",
            do_minimize=True,
            random_seed=seed,
            **resource,
        )
        self.trials: dict[str, Any] = {}

    def propose(self, trial: str) -> Config | None:
        """Return the scheduler's next configuration, and add its trial."""
        suggestion = self.scheduler.suggest()
        if suggestion is None:
            return None
        found = suggestion.config
        self.trials[trial] = self._trial(len(self.trials), dict(found), datetime.now())
        self.scheduler.on_trial_add(self.trials[trial])
        return Config(
            found["optimizer"],
            self.space.rate(found["optimizer"], found["rate"]),
            found["batch"],
            found["workers"],
        )

    def result(self, point: Point) -> dict[str, Any]:
        """Return a report with the resource that ASHA counts."""
        return {**result_of(point), "resource": self.elapsed(point)}

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Ask the scheduler whether the trial goes on."""
        decision = self.scheduler.on_trial_result(self.trials[trial], self.result(point))
        return bool(decision == "CONTINUE")

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Remove a stopped trial; report the end of one that ended by itself, and complete it."""
        if stop == "stopped":
            self.scheduler.on_trial_remove(self.trials[trial])
            return
        # If the answer to the last report is STOP, the trial is removed, not completed.
        if self.on_evaluation(trial, point):
            self.scheduler.on_trial_complete(self.trials[trial], self.result(point))
        else:
            self.scheduler.on_trial_remove(self.trials[trial])
