"""When a run is saved, so that it can be continued: decided by all ranks alike."""

from collections.abc import Mapping
from dataclasses import replace

from raybench.backends.base import Trainer, World
from raybench.core.checkpoint import Checkpoint, RunState
from raybench.core.clock import Ledger
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec


class Checkpoints:
    """Follows one run's evaluations on each rank and saves its state when enough is at stake."""

    def __init__(self, spec: RunSpec, world: World, *, resume: RunState | None = None) -> None:
        self._spec, self._world = spec, world
        self._curve = list(resume.evaluations) if resume else []
        self._saved_s = _work(resume.ledger) if resume else 0.0

    def after(self, evaluation: Evaluation, trainer: Trainer, ledger: Ledger) -> Checkpoint | None:
        """Save the run after an evaluation, if it goes on and `checkpoint_every_s` have passed.

        To be called after each evaluation on every rank: the answer of rank 0 alone is not None.
        The seconds are those of the phase `checkpoint`, in which the ledger is left.
        """
        self._curve.append(evaluation)
        every, now = self._spec.checkpoint_every_s, _work(evaluation.ledger)
        is_over = evaluation.stop is not None or evaluation.failure is not None
        if is_over or not every or now - self._saved_s < every:
            return None
        return self.now(trainer, ledger)

    def now(self, trainer: Trainer, ledger: Ledger) -> Checkpoint | None:
        """Save the run after its last evaluation, unless it is never to be; as in `after`.

        Never of workers that exchange no gradients: each has weights of its own.
        """
        if not self._spec.checkpoint_every_s or not self._spec.exchange_gradients:
            return None
        self._saved_s = _work(self._curve[-1].ledger)
        ledger.enter("checkpoint")
        weights = trainer.state()
        if self._world.rank:
            return None
        # With the seconds of saving it: they are spent, whoever goes on from here.
        last = self._curve[-1]
        spent = last.ledger | {"checkpoint": ledger.seconds("checkpoint")}
        curve = [*self._curve[:-1], replace(last, ledger=spent)]
        return Checkpoint(state=RunState.after(self._spec, curve), weights=weights)


def _work(ledger: Mapping[str, float]) -> float:
    """Seconds that would have to be spent again: the same on all ranks, in a merged ledger."""
    return ledger["train"] + ledger["eval"]
