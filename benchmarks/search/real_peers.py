"""The peers of search_real.py, as commands: stock Ray, and Optuna alone with plain DDP.

    python real_peers.py {ray,optuna} --seed S --trials N --seconds T --log FILE

Each ended trial is appended to FILE as a line.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import real_task

GRACE_S = real_task.T_MAX / 64
"""Training seconds before which no trial is stopped."""
Log = Callable[[dict[str, Any]], None]


def append(file: Path, line: dict[str, Any]) -> None:
    """Append a line of JSON."""
    with file.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def ray_worker(config: dict[str, Any]) -> None:
    """Train function of a TorchTrainer."""
    import ray.train

    from raybench.cluster.worker import join_group
    from raybench.spec.run import ResourceRequest

    world = join_group(ResourceRequest("torch", 1), config["search_path"])
    spec = real_task.spec_of(config["config"], config["seed"])
    for evaluation in real_task.train(spec, world):
        ray.train.report(
            {
                "score": real_task.score(evaluation),
                "train_s": evaluation.train_s,
                "time_to_target_s": evaluation.time_to_target_s,
                "ended": evaluation.stop,
            }
        )


def search_with_ray(seed: int, trials: int, seconds: float, log: Log) -> None:
    """Tuner, a function trainable that fits a TorchTrainer, OptunaSearch, ASHA by seconds."""
    from ray import tune
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    # A trial may wait for the workers of the other one longer than Train's default of a minute.
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "600"
    folder = tempfile.mkdtemp(prefix="search_real_")
    here = str(Path(__file__).parent)

    def trainable(config: dict[str, Any]) -> None:
        chosen = {key: config[key] for key in real_task.KEYS}
        TorchTrainer(
            ray_worker,
            train_loop_config={"config": chosen, "seed": seed, "search_path": here},
            # Not a whole CPU: the processes of the trials reserve a thousandth each, so two workers
            # with a whole CPU each would never start on two cores.
            scaling_config=ScalingConfig(
                num_workers=chosen["num_workers"], resources_per_worker={"CPU": 0.9}
            ),
            run_config=RunConfig(storage_path=folder, callbacks=[TuneReportCallback()]),
        ).fit()

    class Ends(tune.Callback):  # type: ignore[misc]
        """Logs each trial that ends."""

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            result = trial.last_result
            stop = result.get("ended") or "scheduler"
            log(real_task.end_line(trial.config, result.get("time_to_target_s"), stop))

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            log(real_task.end_line(trial.config, None, "error"))

    tune.Tuner(
        # The process of a trial only waits; its workers take the cores.
        tune.with_resources(trainable, {"CPU": 0.001}),
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(space=real_task.ask, metric="score", mode="min", seed=seed),
            scheduler=ASHAScheduler(
                time_attr="train_s",
                metric="score",
                mode="min",
                max_t=real_task.T_MAX,
                grace_period=GRACE_S,
            ),
            num_samples=trials,
            time_budget_s=seconds,
            # One trial per core; a trial of two workers waits until both are free.
            max_concurrent_trials=2,
        ),
        run_config=tune.RunConfig(storage_path=folder, callbacks=[Ends()]),
    ).fit()


def search_with_optuna(seed: int, trials: int, seconds: float, log: Log) -> None:
    """TPE and Hyperband in one process; trials of two workers use the second process, too."""
    import optuna
    from real_pair import Pair

    study = optuna.create_study(
        study_name=f"study{seed}",
        direction="minimize",
        sampler=optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed),
        pruner=optuna.pruners.HyperbandPruner(
            min_resource=round(1000 * GRACE_S),
            max_resource=round(1000 * real_task.T_MAX),
            reduction_factor=3,
        ),
    )
    with Pair() as pair:

        def objective(trial: optuna.Trial) -> float:
            config = real_task.ask(trial)
            evaluations = pair.train(config, seed)
            last = None
            for last in evaluations:
                trial.report(real_task.score(last), round(1000 * last.train_s))
                if last.stop is None and trial.should_prune():
                    evaluations.close()
                    log(real_task.end_line(config, None, "scheduler"))
                    raise optuna.TrialPruned
            assert last is not None
            log(real_task.end_line(config, last.time_to_target_s, last.stop or last.failure))
            return real_task.score(last)

        study.optimize(objective, n_trials=trials, timeout=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool", choices=("ray", "optuna"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, required=True, help="maximum of the search")
    parser.add_argument("--seconds", type=float, required=True, help="time limit of the search")
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    search = {"ray": search_with_ray, "optuna": search_with_optuna}[options.tool]
    search(options.seed, options.trials, options.seconds, partial(append, options.log))


if __name__ == "__main__":
    main()
