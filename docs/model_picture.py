"""Draw what the model of the curves believes of a study: `python docs/model_picture.py STUDY OUT`.

Above, curves of trials that were stopped, and the samples to the target that the model expects of
each, with 90 % intervals; below, the expected seconds over rate and batch of Adam
after 5, 20 and 60 trials, and where these ran.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import raybench
from raybench.search.factorisation import GLOBAL_BATCH, Factors, factorise
from raybench.search.search import Search
from raybench.spec.study import build_study

STEPS = (5, 20, 60)
NINE_OF_TEN = 1.645
LENGTHS = (2, 3, 4, 6)
"""Evaluations of the stopped trials whose curves are drawn."""
SECONDS, TICKS = (0.3, 4.0), (0.3, 0.5, 1, 2, 4)


def main() -> int:
    """Write the picture; return the exit code."""
    place, out = sys.argv[1:]
    study = raybench.load(place)
    content = {
        key: one for key, one in study.study["study"].items() if key not in ("auto", "is_set")
    }
    asked, space = build_study(content, place)
    factors = factorise(asked, space, equal_frameworks=True)
    trials = [one for one in study.runs.values() if one.role == "trial"]
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    axes = figure.subplot_mosaic([["curves"] * 3, list(map(str, STEPS))], height_ratios=[1, 1.1])
    with tempfile.TemporaryDirectory() as folder:
        for number in STEPS:
            runs = {one.trial: one for one in trials[:number]}
            search = Search(
                asked,
                space,
                Path(folder),
                factors=factors if isinstance(factors, Factors) else None,
                runs=runs,
                curves=study.evaluations,
            )
            _surface(axes[str(number)], search, trials[:number], number)
            Path(folder, "optuna.log").unlink()
    _curves(axes["curves"], search, study, [one.trial for one in trials[: STEPS[-1]]])
    figure.savefig(out, dpi=110)
    return 0


def _surface(axes, search, trials, number) -> None:
    optimizer = "adam"
    rates, batches = np.geomspace(1e-4, 3e-2, 60), 2 ** np.arange(4, 11)
    values = [
        {"optimizer": optimizer, "learning_rate": float(rate), GLOBAL_BATCH: int(batch)}
        for batch in batches
        for rate in rates
    ]
    curves = search.curves
    points = curves._axes.points(values)
    log_s = curves.model.means(points) + curves._offsets(values)
    grid = np.exp(log_s).reshape(len(batches), len(rates))
    drawn = axes.pcolormesh(
        rates, batches, grid, cmap="viridis_r", norm=LogNorm(*SECONDS), shading="nearest"
    )
    ran = [one.spec for one in trials if one.spec.optimizer == optimizer]
    reached = [
        one.time_to_target_s is not None for one in trials if one.spec.optimizer == optimizer
    ]
    for has_reached, face in ((False, "none"), (True, "white")):
        own = [one for one, is_one in zip(ran, reached, strict=True) if is_one == has_reached]
        axes.scatter(
            [one.learning_rate for one in own],
            [one.global_batch_size for one in own],
            facecolors=face,
            edgecolors="white",
            s=30,
        )
    axes.set(xscale="log", xlabel="learning rate", title=f"after {number} trials")
    axes.set_yscale("log", base=2)
    axes.set(ylim=(batches[0] / 1.4, batches[-1] * 1.4), yticks=batches, yticklabels=batches)
    axes.set_ylabel("global batch" if number == STEPS[0] else "")
    if number == STEPS[-1]:
        bar = axes.figure.colorbar(drawn, ax=axes, label=f"expected s, {optimizer}", extend="both")
        bar.ax.set(yticks=TICKS, yticklabels=TICKS)
        bar.ax.minorticks_off()


def _curves(axes, search, study, names) -> None:
    model, target = search.curves.model, study.target
    stopped = [one for one in names if study.runs[one].stop in ("scheduler", "cap")]
    by_length = {len(study.evaluations[one]): one for one in stopped}
    shown = [by_length[one] for one in LENGTHS if one in by_length]
    for place, name in enumerate(shown):
        curve = model.curves[name]
        log, deviation = model.extrapolate(curve)
        color = f"C{place}"
        axes.plot(curve.amounts, curve.best, color=color, marker=".", label=study.runs[name].trial)
        low, high = np.exp(log - NINE_OF_TEN * deviation), np.exp(log + NINE_OF_TEN * deviation)
        level = target + 0.012 * (place + 1)
        axes.plot([curve.amounts[-1], np.exp(log)], [curve.best[-1], target], color=color, ls=":")
        axes.plot([low, high], [level, level], color=color, lw=3, alpha=0.5)
        axes.plot([np.exp(log)], [level], color=color, marker="o")
    hits = [model.curves[one] for one in names if study.runs[one].time_to_target_s is not None]
    for curve in hits[:12]:
        axes.plot(curve.amounts, curve.best, color="0.8", lw=1, zorder=0)
    axes.axhline(target, color="0.3", lw=1)
    axes.set(xscale="log", xlabel="training samples", ylabel=study.metric.words)
    axes.legend(title="stopped trial", loc="lower right")
    axes.set_title("Stopped trials and the samples that they should need (90 %); grey: reached it")


if __name__ == "__main__":
    raise SystemExit(main())
