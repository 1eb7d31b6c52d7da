"""Made-up events of a study, and the resulting state of the screen."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from raybench.report.live import LiveState
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Failure, Phase, Role, RunRecord
from tests import factories

OBJECTIVE = Objective(target=0.95, max_train_seconds=60.0)
KEYS = ("weight_decay", "schedule")
LABEL = "torch 2x128 adam 0.001 weight_decay 0.01 schedule cosine"


def spec(**changes: Any) -> RunSpec:
    values: dict[str, Any] = {"num_workers": 2, "batch_size_per_worker": 128}
    values |= {"weight_decay": 0.01, "schedule": "cosine"}
    return RunSpec(objective=OBJECTIVE, **(values | changes))


def evaluation(index: int = 0, value: float = 0.8, **changes: Any) -> Evaluation:
    values = {"train_s": index + 1.0, "learning_rate": 1e-3, "samples_per_s": 4217.0} | changes
    return factories.evaluation(values.pop("train_s"), index=index, value=value, **values)


def record(
    name: str,
    seconds: float | None = None,
    *,
    role: Role = "trial",
    source: str | None = None,
    failure: Failure | None = None,
    message: str | None = None,
    wall_s: float = 4.0,
    ledger: Mapping[str, float] = MappingProxyType({}),
    **changes: Any,
) -> RunRecord:
    """Return a finished run that reached the target after `seconds`, or was stopped at 80 %."""
    stop, value = ("target", 0.96) if seconds else (None, 0.8)
    ending: dict[str, Any] = {"role": role, "source": source, "stop": stop, "failure": failure}
    ended = factories.record(name, spec(**changes), seconds or 3.0, value=value, **ending)
    return replace(ended, message=message, wall_s=wall_s, ledger=ended.ledger | dict(ledger))


def busy_state() -> tuple[LiveState, float]:
    """Return a half-finished search with running, waiting and failed runs, and its time."""
    state = LiveState(0.0, keys=KEYS)
    state.begin(Phase.SEARCH, 40, 0.0)
    state.num_workers, state.after_s = 8, 42.0
    for number in range(14):
        state.started(f"{number:04d}", spec(), 4.0 * number)
        state.finished(record(f"{number:04d}", 3.3 if number % 3 else None), 4.0 * number + 4)
    oom = "CUDA out of memory: tried to allocate 2.50 GiB, see results/digits/errors/0014.txt"
    for number in (14, 15, 16):
        state.finished(record(f"{number:04d}", failure="oom", message=oom), 57.0)
    state.finished(record("0017", failure="nan", message="the loss is not finite"), 58.0)
    for number, (count, last) in enumerate([(3, 0.6), (9, 0.93), (30, 0.9512)]):
        name = f"{20 + number:04d}"
        state.started(name, spec(learning_rate=0.003 * (number + 1)), 50.0 - number)
        for index in range(count):  # rises to `last`, faster at first
            value = last * (1 - 0.6 ** (index + 1))
            state.evaluated(name, evaluation(index, value))
    state.started("0023", spec(framework="tensorflow", optimizer="lamb"), 57.0)
    state.started("0024", spec(num_workers=4), 58.0)
    state.waiting = {"0024": ("4 CPUs: 1 free on host a, 1 on host b", 3.0)}
    return state, 61.0
