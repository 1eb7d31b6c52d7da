"""Claim: a trial over two hosts costs at most twice what it costs on one, beside its own work.

The same short configurations as in `trial_overhead.py` (`mnist_small` on digits, one epoch each),
in two clusters of two CPUs each, alternating trial by trial: *one host* has both CPUs and the
driver; of *two hosts* each has one CPU, the driver sits on the first, and one worker trains on the
second. Overhead of a trial as `trial_overhead.py` defines it, without queue and start: wall time
from being asked for to its result, less training, evaluation and tracing. The first trial of a
kind starts its group, which is a column of its own; the others find it warm. Hosts are those of
`tests/e2e/hosts.py` (root and iproute2).

    python benchmarks/ray_hosts.py [--trials 4] [--frameworks torch tensorflow] [--workers 1 2]

About five minutes on two cores. Bar: the median over two hosts at most twice that of one, for
every framework and number of workers; exit 1 above it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import installed
from trial_overhead import spec_of, warm

from raybench.results.store import machine, versions

ROOT = Path(__file__).parents[1]
FACTOR = 2.0
SIDES = {"one host": (2,), "two hosts": (1, 1)}
"""CPUs of each host."""
ANSWER = "answer: "
Trial = dict[str, Any]


class Side:
    """A cluster, and a process on its first host that runs a trial when it is told to."""

    def __init__(self, stack: ExitStack, cpus: tuple[int, ...]) -> None:
        from tests.e2e.host_cluster import TOKEN, start_head, start_node
        from tests.e2e.hosts import Hosts

        hosts = stack.enter_context(Hosts(len(cpus)))
        start_head(hosts[0], cpus[0])
        for number, count in enumerate(cpus[1:], start=1):
            start_node(hosts[number], hosts[0], count)
        words = (sys.executable, __file__, "--inside")
        self._process = subprocess.Popen(
            hosts[0].command(*words, cwd=ROOT),
            env=hosts[0].environment(**TOKEN),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._process.kill)

    def ask(self, framework: str, num_workers: int, number: int) -> Trial:
        """Run a trial; return its seconds and hosts."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([framework, num_workers, number]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return dict(json.loads(line.removeprefix(ANSWER)))
        raise AssertionError("the driver has ended, see above")


def inside() -> None:
    """On a host of the cluster: run the trials that are asked for, one after another."""
    from raybench.cluster.run_client import RunClient
    from raybench.cluster.session import Session

    with Session(address="auto") as session:
        own = os.uname().nodename
        filler: RunClient | None = None
        for count, line in enumerate(sys.stdin):
            framework, num_workers, number = json.loads(line)
            if len(session.capacity.nodes) > 1 and (filler is None) == (num_workers == 1):
                # The driver's host is held, so that a group of one worker is on the other one.
                filler = hold(session, own, count) if filler is None else filler.finish() and None
            answer = trial(session, spec_of(framework, num_workers, number), f"trial-{count}")
            print(ANSWER + json.dumps(answer), flush=True)
        if filler is not None:
            filler.finish()


def hold(session: Any, host: str, count: int) -> Any:
    """Return a run of one worker that holds `host`, and waits."""
    from raybench.cluster.run_client import RunClient

    clients = []
    for number in range(2):  # one on each host; none is kept for the trials
        spec = spec_of("torch", 1, 0)
        client = RunClient(session.pool, f"filler-{count}-{number}", spec, keep=False)
        clients.append((client, client.step().hosts))
    for client, hosts in clients:
        if hosts != (host,):
            client.finish()
    return next(client for client, hosts in clients if hosts == (host,))


def trial(session: Any, spec: Any, name: str) -> Trial:
    """Run a trial in a group of the pool; what it waited for workers is not its overhead."""
    done, outcome = warm(session, spec, name)
    waited = outcome.ledger["queue"] + outcome.ledger["start"]
    return {
        "start": done["start"],
        "overhead": done["overhead"] - waited,
        "hosts": outcome.hosts,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4, help="warm ones per kind and side")
    parser.add_argument("--frameworks", nargs="+", default=["torch", "tensorflow"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside()
        return 0
    from tests.e2e.hosts import why_not

    if why_not() is not None:
        print(f"ray_hosts.py: {why_not()}.", file=sys.stderr)
        return 2
    options.frameworks = installed.frameworks("ray_hosts.py", options.frameworks)
    measured: dict[tuple[str, int, str], list[Trial]] = {}
    with ExitStack() as stack:
        sides = {name: Side(stack, cpus) for name, cpus in SIDES.items()}
        for num_workers in options.workers:
            for framework in options.frameworks:
                for number in range(options.trials + 1):
                    for name, side in sides.items():  # ABAB
                        ran = side.ask(framework, num_workers, number)
                        print(framework, num_workers, name, ran, flush=True)
                        measured.setdefault((framework, num_workers, name), []).append(ran)
    return report(measured)


def report(measured: dict[tuple[str, int, str], list[Trial]]) -> int:
    """Print and store the table; return the exit code."""
    lines = [
        "| framework | workers | one host, s/trial | two hosts, s/trial | ratio "
        "| group start s, one host | two hosts |",
        "|---|---|---|---|---|---|---|",
    ]
    is_met = True
    for framework, num_workers in dict.fromkeys(key[:2] for key in measured):
        sides = [measured[framework, num_workers, name] for name in SIDES]
        steady = [[one["overhead"] for one in side if not one["start"]] for side in sides]
        starts = [
            ", ".join(f"{one['start']:.1f}" for one in side if one["start"]) for side in sides
        ]
        ratio = statistics.median(steady[1]) / statistics.median(steady[0])
        is_met &= ratio <= FACTOR
        lines.append(
            f"| {framework} | {num_workers} | {_spread(steady[0])} | {_spread(steady[1])} | "
            f"{ratio:.2f} | {starts[0]} | {starts[1] or '-'} |"
        )
    lines += [
        "",
        "median (lowest - highest, n); seconds of a trial in a warm group beside training,",
        "evaluation and tracing, without queue and start",
        f"bar {'met' if is_met else 'NOT MET'}: two hosts at most {FACTOR:g} times one host",
        f"{machine()['processor']}, {machine()['cores']} cores, load {os.getloadavg()}, "
        f"{versions()}",
    ]
    print("\n".join(lines))
    results = Path(__file__).parent / "results"
    (results / "ray_hosts.md").write_text("\n".join(lines) + "\n")
    return 0 if is_met else 1


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} - {max(values):.3f}, {len(values)})"


if __name__ == "__main__":
    sys.exit(main())
