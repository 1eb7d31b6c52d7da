"""A verdict on the terminal and in the results folder."""

import numpy as np
import pandas as pd
from rich.console import Console

from raybench.results.console import say
from raybench.results.printed import print_frame
from raybench.scaling.probes import Probe
from raybench.scaling.shares import Estimate
from raybench.scaling.verdict import Verdict, milliseconds
from raybench.search.pipeline.probe_runs import ProbeRuns

VERDICT_FILE = "diagnosis.yaml"


def verdict_document(verdict: Verdict, runs: ProbeRuns) -> dict[str, object]:
    """Return what `diagnosis.yaml` holds: the verdict, and what it was read from."""
    times = {name: runs.times[probe] for probe, name in runs.probes.names.items()}
    return verdict.document() | {"probes": times}


def print_verdict(console: Console, verdict: Verdict, runs: ProbeRuns) -> None:
    """Print the probes' times, the shares, what changes would bring, and the sentence."""
    console.print()
    times = [
        {
            "probe": name.replace("_", " "),
            "exchange": "every step" if probe.exchanges else "never",
            "data": runs.spec.dataset.name if probe.reads else "synthetic",
            "batch per worker": probe.batch_size_per_worker,
            "step": milliseconds(float(np.median(runs.times[probe]))),
            "19 of 20 in": _range(runs.times[probe]),
            "samples/s": _rate(runs, probe),
        }
        for probe, name in runs.probes.names.items()
    ]
    rounds = f"{runs.num_rounds} rounds in turns; median over rounds"
    print_frame(console, pd.DataFrame(times), "Seconds of a step", below=rounds)
    shares = [
        {"part": part, "of a step": share.percent, "19 of 20 in": share.percents}
        for part, share in verdict.shares.items()
    ]
    below = ""
    if verdict.num_bytes:
        below = f"{verdict.num_bytes:,} bytes of gradients a worker exchanges in a step"
    print_frame(console, pd.DataFrame(shares), "Where a step's time goes", below=below)
    if verdict.gains:
        gains = [
            {
                "change": gain.change,
                "times the samples/s": f"{gain.times:.2f}",
                "9 of 10 in": f"{gain.low:.2f} to {gain.high:.2f}" if gain.low < gain.high else "-",
                "workers": f"x {gain.workers:g}",
                "is": "the most" if gain.is_limit else "likely",
            }
            for gain in verdict.gains
        ]
        below = "a larger batch or fewer exchanges may need another learning rate"
        print_frame(console, pd.DataFrame(gains), "What it would bring, predicted", below=below)
    say(console, verdict.sentence)


def _rate(runs: ProbeRuns, probe: Probe) -> float:
    passes = runs.spec.num_workers * runs.spec.accumulate
    return probe.batch_size_per_worker * passes / float(np.median(runs.times[probe]))


def _range(times: list[float]) -> str:
    found = Estimate.of(np.array(times))
    return f"{milliseconds(max(found.low, 0.0))} to {milliseconds(found.high)}"
