"""A trial to Ray Tune: a class trainable that drives one run in a group lent by the hub.

Tune reuses the actor for the next trial (`reset_config`), and a step is one evaluation. The
reservation Tune makes for it is nominal: workers are admitted by the hub.
"""

import contextlib
from dataclasses import asdict
from typing import Any

from ray import tune

from raybench.cluster.protocol import STOPPED, RunFailed
from raybench.cluster.run_client import RunClient
from raybench.core.documents import validate
from raybench.core.objective import search_score
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec
from raybench.search.ray_tune.opaque import wrap


class TrialRun(tune.Trainable):  # type: ignore[misc, unused-ignore]
    """One trial at a time; the hub and the isolation come with `tune.with_parameters`."""

    def setup(self, config: dict[str, Any], hub: Any = None, keep: bool = True) -> None:
        """Take a trial's configuration; nothing starts yet."""
        self._hub, self._keep = hub, keep
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial's configuration in the same actor."""
        self._trial = new_config["trial"]
        self._spec = validate(RunSpec, new_config["spec"], "trial")
        self._lease: RunClient | None = None
        return True

    def step(self) -> dict[str, Any]:
        """Train to the next evaluation."""
        return wrap(self._step())

    def _step(self) -> dict[str, Any]:
        try:
            if self._lease is None:
                self._lease = RunClient(self._hub, self._trial, self._spec, keep=self._keep)
                self._lease.acquire()
                evaluation = self._lease.start()
            else:
                evaluation = self._lease.advance()
        except RunFailed as error:
            assert self._lease is not None
            return self._failure(self._lease, error)
        result = self._result(self._lease, evaluation)
        if result[tune.result.DONE]:
            # The result stands; should the workers fail now, the hub replaces them.
            with contextlib.suppress(RunFailed):
                self._lease.finish()
            self._lease.close()
            result |= self._lease.account()
        return result

    def _result(self, lease: RunClient, evaluation: Evaluation) -> dict[str, Any]:
        score = search_score(
            self._spec.objective,
            time_to_target_s=evaluation.time_to_target_s,
            best_accuracy=None if evaluation.failure else evaluation.best_accuracy,
            chance=lease.chance,
        )
        return lease.account() | {
            "evaluation": asdict(evaluation),
            "train_s": evaluation.train_s,
            "accuracy": evaluation.accuracy,
            "score": score,
            "stop": evaluation.stop,
            "failure": evaluation.failure,
            "message": "the training loss is not finite" if evaluation.failure else None,
            tune.result.DONE: bool(evaluation.stop or evaluation.failure),
        }

    def _failure(self, lease: RunClient, error: RunFailed) -> dict[str, Any]:
        lease.close()
        ended = lease.account() | {"stop": None, "failure": None, tune.result.DONE: True}
        if error.failure == STOPPED:
            return ended
        what = {"failure": error.failure, "message": error.message, "traceback": error.traceback}
        return ended | what
