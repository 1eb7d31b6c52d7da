"""One optimizer step over ResNet-50's 161 tensors, ours against the libraries' on this CPU.

Claim: raybench's torch optimizers cost less than the ones they replace. One step of LAMB is at
least 2.5 times as fast as timm's, of LARS at least 1.4 times as fast as timm's and
pytorch-optimizer's, of RAdam at least 4 times as fast as torch's; Adam is torch's fused one and
costs the same within 3 %. Each at 1 and at 2 threads.

    pip install timm pytorch-optimizer
    python benchmarks/optimizers.py

Takes about three minutes on 2 cores. All variants of a family update their own copy of the same
weights with the same gradients, in interleaved rounds (ABC, CBA, ...), one step each; gradients
are written anew before every step, untimed. Every variant decays matrices only (a group without
decay for biases, where the library has no other way); timm's LAMB runs without its global
clipping, which ours does not have. Where a library has a loop and a foreach form, both run and
the faster one is the peer. The ratio is the median over rounds of peer / ours in the same round.

Writes results/optimizers.json and results/optimizers.md beside this file. Exit code: 0 all bars
met, 1 a bar missed, 2 a peer is not installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from raybench.backends.torch.optim import build_optimizer

try:
    import pytorch_optimizer
    import timm.optim
except ImportError as error:
    print(f"optimizers.py: needs {error.name}: pip install timm pytorch-optimizer", file=sys.stderr)
    sys.exit(2)

Optimizer = torch.optim.Optimizer
Params = list[torch.nn.Parameter]

WARM_UP_ROUNDS = 6  # RAdam takes its usual form at step 6
DECAY = 0.01
RESULTS = Path(__file__).parent / "results"
# (family, peer library, least ratio peer / ours)
BARS = [
    ("lamb", "timm", 2.5),
    ("lars", "timm", 1.4),
    ("lars", "pytorch-optimizer", 1.4),
    ("radam", "torch default", 4.0),
    ("adam", "torch fused", 1 / 1.03),
]


def resnet50_shapes() -> Iterator[tuple[int, ...]]:
    """Parameters of ResNet-50 in order: convolutions, each with its norm, and the classifier."""

    def conv_and_norm(outputs: int, inputs: int, size: int) -> Iterator[tuple[int, ...]]:
        yield from ((outputs, inputs, size, size), (outputs,), (outputs,))

    yield from conv_and_norm(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from conv_and_norm(width, inputs, 1)
            yield from conv_and_norm(width, width, 3)
            yield from conv_and_norm(4 * width, width, 1)
            if block == 0:
                yield from conv_and_norm(4 * width, inputs, 1)
            inputs = 4 * width
    yield from ((1000, inputs), (1000,))


def decay_groups(params: Params, decay: float = DECAY) -> list[dict[str, object]]:
    return [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in params if p.ndim <= 1], "weight_decay": 0.0},
    ]


def ours(name: str, decay: float = DECAY) -> Callable[[Params], Optimizer]:
    def create(params: Params) -> Optimizer:
        named = [(str(i), p) for i, p in enumerate(params)]
        return build_optimizer(name, named, learning_rate=1e-3, weight_decay=decay)

    return create


def families() -> dict[str, dict[str, Callable[[Params], Optimizer]]]:
    """Variants by family and name; the first of each is ours."""
    adam, radam = torch.optim.Adam, torch.optim.RAdam
    lamb, lars = timm.optim.Lamb, timm.optim.Lars
    po = pytorch_optimizer
    found: dict[str, dict[str, Callable[[Params], Optimizer]]] = {
        "adam": {
            "raybench": ours("adam", 0.0),
            "torch default": lambda p: adam(p, lr=1e-3),
            "torch foreach": lambda p: adam(p, lr=1e-3, foreach=True),
            "torch fused": lambda p: adam(p, lr=1e-3, fused=True),
        },
        "radam": {
            "raybench": ours("radam"),
            "torch default": lambda p: radam(decay_groups(p), 1e-3, decoupled_weight_decay=True),
            "torch foreach": lambda p: radam(
                decay_groups(p), 1e-3, decoupled_weight_decay=True, foreach=True
            ),
        },
        "lars": {"raybench": ours("lars")},
        "lamb": {"raybench": ours("lamb")},
    }
    for form, foreach in (("loop", False), ("foreach", True)):
        found["lamb"][f"timm {form}"] = lambda p, f=foreach: lamb(
            decay_groups(p), 1e-3, max_grad_norm=None, foreach=f
        )
        found["lars"][f"timm {form}"] = lambda p, f=foreach: lars(
            decay_groups(p), 1e-3, momentum=0.9, foreach=f
        )
        po_name = f"pytorch-optimizer {form}"
        found["lamb"][po_name] = lambda p, f=foreach: po.Lamb(decay_groups(p), 1e-3, foreach=f)
        found["lars"][po_name] = lambda p, f=foreach: po.LARS(
            p, 1e-3, momentum=0.9, weight_decay=DECAY, foreach=f
        )
        found["radam"][po_name] = lambda p, f=foreach: po.RAdam(decay_groups(p), 1e-3, foreach=f)
    return found


def measure(
    variants: dict[str, Callable[[Params], Optimizer]], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of one step, by variant and round."""
    generator = torch.Generator().manual_seed(0)
    shapes = list(resnet50_shapes())
    weights = [0.05 * torch.randn(shape, generator=generator) for shape in shapes]
    grads = [0.01 * torch.randn(shape, generator=generator) for shape in shapes]
    copies = {name: [torch.nn.Parameter(w.clone()) for w in weights] for name in variants}
    optimizers = {name: create(copies[name]) for name, create in variants.items()}
    for params in copies.values():
        for p in params:
            p.grad = torch.empty_like(p)
    milliseconds: dict[str, list[float]] = {name: [] for name in variants}
    for index in range(WARM_UP_ROUNDS + rounds):
        for name in list(variants)[:: -1 if index % 2 else 1]:
            with torch.no_grad():
                for p, grad in zip(copies[name], grads, strict=True):
                    p.grad.copy_(grad)
            start = time.perf_counter()
            optimizers[name].step()
            milliseconds[name].append(1e3 * (time.perf_counter() - start))
    return {name: times[WARM_UP_ROUNDS:] for name, times in milliseconds.items()}


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """By variant: median and quartiles of the milliseconds, and of the ratio to ours."""
    own = np.array(times["raybench"])
    rows = {}
    for name, values in times.items():
        quartiles = np.percentile(values, [50, 25, 75]).tolist()
        ratios = np.percentile(np.array(values) / own, [50, 25, 75]).tolist()
        keys = ("ms", "ms_q1", "ms_q3", "ratio", "ratio_q1", "ratio_q3")
        rows[name] = dict(zip(keys, quartiles + ratios, strict=True))
    return rows


def verdicts(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[dict[str, object]]:
    """Every bar at every number of threads, against the peer's faster form."""
    found = []
    for threads, by_family in results.items():
        for family, peer, bar in BARS:
            forms = {k: v for k, v in by_family[family].items() if k.startswith(peer)}
            fastest = min(forms, key=lambda name: forms[name]["ms"])
            ratio = forms[fastest]["ratio"]
            verdict = {"threads": int(threads), "family": family, "peer": fastest}
            found.append(verdict | {"ratio": ratio, "bar": bar, "met": ratio >= bar})
    return found


def environment() -> dict[str, object]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    packages = ("torch", "timm", "pytorch-optimizer", "numpy")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": models[0] if models else platform.processor(),
        "num_cpus": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "load_average_before": os.getloadavg(),
    }


def report(record: dict[str, object]) -> str:
    lines = ["# One optimizer step over ResNet-50's 161 tensors (25,557,032 parameters)", ""]
    settings = {k: v for k, v in record.items() if k not in ("results", "verdicts")}
    lines += [f"- {key}: {value}" for key, value in settings.items()]
    lines += [
        "",
        "Median of the rounds (quartiles); ratio = variant / raybench, so above 1 we win.",
    ]
    for threads, by_family in record["results"].items():
        lines += ["", f"## {threads} thread{'s' if int(threads) > 1 else ''}", ""]
        lines += ["| family | variant | ms per step | ratio |", "|---|---|---|---|"]
        for family, rows in by_family.items():
            for name, row in rows.items():
                ms = f"{row['ms']:.1f} ({row['ms_q1']:.1f}-{row['ms_q3']:.1f})"
                ratio = f"{row['ratio']:.2f} ({row['ratio_q1']:.2f}-{row['ratio_q3']:.2f})"
                lines.append(f"| {family} | {name} | {ms} | {ratio} |")
    lines += [
        "",
        "## Bars",
        "",
        "| threads | family | peer | ratio | bar | |",
        "|---|---|---|---|---|---|",
    ]
    for v in record["verdicts"]:
        row = (v["threads"], v["family"], v["peer"], f"{v['ratio']:.2f}", f"{v['bar']:.2f}")
        lines.append(f"| {' | '.join(map(str, row))} | {'met' if v['met'] else 'MISSED'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="timed rounds a family (least 15)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    shapes = list(resnet50_shapes())
    assert len(shapes) == 161
    assert sum(int(np.prod(shape)) for shape in shapes) == 25_557_032
    record: dict[str, object] = {**environment(), "rounds": arguments.rounds}
    results: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        results[str(threads)] = {
            family: summary(measure(variants, arguments.rounds))
            for family, variants in families().items()
        }
    record["load_average_after"] = os.getloadavg()
    record |= {"results": results, "verdicts": verdicts(results)}
    RESULTS.mkdir(exist_ok=True)
    text = report(record)
    print(text)
    (RESULTS / "optimizers.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "optimizers.md").write_text(text)
    return 0 if all(v["met"] for v in record["verdicts"]) else 1


if __name__ == "__main__":
    sys.exit(main())
