"""Claim: `raybench diagnose` names what bounds a training, in cases that are made so.

Four cases in each framework, each of which is bound by one thing by construction:

    compute         mnist_small, 2 workers on this host, batch 128 each
    communication   mnist_small, 2 workers on two hosts whose links carry 100 Mbit/s, batch 32
    input           mnist_small, 1 worker, pictures read in 2 ms each (late_pictures.py)
    overhead        deep_mlp (75,850 parameters), 1 worker, batch 4

Each is diagnosed several times, each time in a Ray of its own but for the hosts', which stay up.
Hosts are those of `tests/e2e/hosts.py` (root and iproute2). A verdict of `not sure` is wrong.

    python benchmarks/diagnose_cases.py [--times 3] [--frameworks torch] [--kinds input overhead]

Bar: 8 of 8 cases right, three times each. About a minute each time, half an hour in all on two
cores; what a folder (--out) holds already is not run again, so parts of it may be run one after the
other. Writes results/diagnose_cases.md; exit 1 if a verdict is wrong.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import installed

from raybench.core.documents import read_mapping, to_yaml
from raybench.results.store import machine, versions

HERE = Path(__file__).parent
LINK = "100mbit"
LIMIT_S = 380.0
DIGITS = {"name": "digits", "image_size": 28, "validation_size": 64}
CASES: dict[str, dict[str, Any]] = {
    "compute": {"workload": "mnist_small", "num_workers": 2, "batch_size_per_worker": 128},
    "communication": {
        "workload": "mnist_small",
        "num_workers": 2,
        "batch_size_per_worker": 32,
        "placement_strategy": "spread",
    },
    "input": {
        "workload": "late_pictures:LatePictures",
        "dataset": {"name": "workload"},
        "num_workers": 1,
        "batch_size_per_worker": 32,
    },
    "overhead": {"workload": "deep_mlp", "num_workers": 1, "batch_size_per_worker": 4},
}


class Cluster:
    """Two hosts of one CPU each behind slow links; made when they are first needed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._head = stack, None

    def diagnose(self, words: list[str]) -> "subprocess.CompletedProcess[str]":
        """Run the command on the first host."""
        from tests.e2e.host_cluster import TOKEN, start_head, start_node
        from tests.e2e.hosts import Hosts

        if self._head is None:
            hosts = self._stack.enter_context(Hosts(2))
            start_head(hosts[0], 1)
            start_node(hosts[1], hosts[0], 1)
            for host in hosts:
                host.slow(LINK)
            self._head = hosts[0]
        given = (sys.executable, "-m", "raybench.diagnose", *words, "--address", "auto")
        return self._head.run(*given, cwd=HERE, timeout=LIMIT_S, **TOKEN)


def local(words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run the command here, with a Ray of its own."""
    return subprocess.run(
        [sys.executable, "-m", "raybench.diagnose", *words],
        cwd=HERE,
        env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def diagnose(
    kind: str, framework: str, folder: Path, cluster: Cluster, more: Sequence[str]
) -> None:
    """Diagnose a case; its results are in `folder` then."""
    spec = {
        "dataset": DIGITS,
        "objective": {"kind": "best_at_budget"},
        "framework": framework,
    } | CASES[kind]
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".yaml")
    file.write_text(to_yaml(spec))
    run = cluster.diagnose if kind == "communication" else local
    done = run([str(file), "--out", str(folder), *more])
    if done.returncode:
        raise RuntimeError(f"{kind}, {framework}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def row(kind: str, framework: str, number: int, folder: Path) -> tuple[str, bool]:
    """Return a case's row of the table, and whether the verdict is right."""
    found = read_mapping(folder / "diagnosis.yaml")
    is_right = found["verdict"] == kind
    shares = found["shares"]
    parts = " | ".join(
        f"{shares[part]['value']:.0%} ({shares[part]['low']:.0%} to {shares[part]['high']:.0%})"
        for part in ("compute", "communication", "input", "overhead")
    )
    rounds = len(found["probes"]["as_it_is"])
    line = (
        f"| {kind} | {framework} | {number + 1} | {found['verdict']}{'' if is_right else ' WRONG'} "
        f"| {parts} | {1000 * found['step_s']['value']:.3g} | {rounds} | {found['sentence']} |"
    )
    return line, is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--out", type=Path, default=Path("results/diagnose_cases"))
    parser.add_argument("--repeats", type=int, default=4, help="as of raybench diagnose")
    parser.add_argument("--seconds", type=float, default=0.5, help="likewise")
    options = parser.parse_args()
    more = ["--repeats", str(options.repeats), "--seconds", str(options.seconds)]
    options.out = options.out.resolve()
    frameworks = installed.frameworks("diagnose_cases.py", options.frameworks)
    from tests.e2e.hosts import why_not

    reason = why_not() if "communication" in options.kinds else None
    if reason is not None:
        print(f"diagnose_cases.py: {reason}.", file=sys.stderr)
        return 2
    lines, right = [], []
    with ExitStack() as stack:
        cluster = Cluster(stack)
        for number in range(options.times):
            for framework in frameworks:
                for kind in options.kinds:
                    folder = options.out / f"{kind}-{framework}-{number}"
                    if not (folder / "diagnosis.yaml").is_file():
                        diagnose(kind, framework, folder, cluster, more)
                    line, is_right = row(kind, framework, number, folder)
                    print(line, flush=True)
                    lines.append(line)
                    right.append(is_right)
    report(sorted(lines), right)
    return 0 if all(right) else 1


def report(lines: list[str], right: list[bool]) -> None:
    """Store the table."""
    head = "| bound by | framework | time | verdict | compute | communication | input | overhead |"
    head += " step ms | rounds | sentence |"
    text = [
        f"Right: {sum(right)} of {len(right)}. Shares of a step, and the interval of 19 in 20.",
        "",
        head,
        f"|{'---|' * (head.count('|') - 1)}",
        *lines,
        "",
        f"{machine()['processor']}, {machine()['cores']} cores, load {os.getloadavg()}, "
        f"{versions()}",
    ]
    (HERE / "results" / "diagnose_cases.md").write_text("\n".join(text) + "\n")
    print(text[0])


if __name__ == "__main__":
    sys.exit(main())
