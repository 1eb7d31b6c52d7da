"""Claim: whatever dies while a search runs, it ends with every trial finished once, none lost.

Each fault hits a small study in the middle of its first run (`fault_study.py`), on hosts of its
own (`tests/e2e/hosts.py`; root and iproute2):

    worker            a training worker is killed (SIGKILL)
    raylet            the raylet of the second host is killed
    driver            the command is killed and started again on the same host
    driver_elsewhere  the same, started again on the other host
    cut               the second host is off the network for 20 s
    replaced          the second host loses its power, a third one joins
    full              the results folder has no room; room is made, the command started again
    s3                the S3 server of `--out s3://` does not answer for 30 s

    python benchmarks/faults.py [--faults worker cut ...] [--tries 5] [--out FILE.jsonl]

About a minute a try. Every try is one line of FILE as soon as it ends, so a run that is broken off
loses nothing, and `--faults` runs them piece by piece; the table is made of all lines of FILE.
Bar: every try ends with exit code 0 and the wanted trials finished, none lost, doubled or with a
curve that is not 0, 1, 2, ...; exit 1 below it.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_study import CPUS, TRIALS, FaultStudy

from raybench.results.store import machine, versions
from tests.e2e.host_cluster import start_node, stop_node
from tests.e2e.hosts import Hosts, why_not

CUT_S, STOPPED_S = 20.0, 30.0
FULL_KB, PORT = 60_000, 5000
OURS = re.compile(r"^(trial .* goes on|raybench:|continuing|s3://)")
"""What raybench says of a fault, beside what Ray writes on the screen."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
MAKE_BUCKET = (
    "import urllib.request as u; u.urlopen(u.Request('{}/study', method='PUT'), timeout=5)"
)
Result = dict[str, Any]


def simple(hit: Callable[[FaultStudy], None]) -> Callable[[Path], Result]:
    """Return a try of a fault that needs nothing around the study."""

    def tried(folder: Path) -> Result:
        with Hosts(2) as hosts:
            study = FaultStudy(hosts, folder)
            study.start(hosts[0])
            study.wait_for_middle()
            hit(study)
            study.wait_to_go_on()
            return study.verdict(study.wait_for_end())

    return tried


def worker(study: FaultStudy) -> None:
    study.hosts[1].processes("RayTrainWorker")[0].kill()


def raylet(study: FaultStudy) -> None:
    stop_node(study.hosts[1])


def driver(study: FaultStudy) -> None:
    study.kill_driver()
    study.start(study.hosts[0])


def driver_elsewhere(study: FaultStudy) -> None:
    study.kill_driver()
    study.start(study.hosts[1])


def cut(study: FaultStudy) -> None:
    study.hosts[1].cut()
    time.sleep(CUT_S)
    study.hosts[1].join()


def replaced(study: FaultStudy) -> None:
    study.hosts[1].kill()
    start_node(study.hosts.add(), study.hosts[0], CPUS)


def full(folder: Path) -> Result:
    """A small file system as results folder, filled up; then emptied and the command repeated."""
    with Hosts(2) as hosts:
        out = folder / "small"
        out.mkdir()
        mounted = hosts[0].run("mount", "-t", "tmpfs", "-o", f"size={FULL_KB}k", "tmpfs", out)
        assert mounted.returncode == 0, mounted.stderr
        study = FaultStudy(hosts, folder, str(out / "study"))
        study.records = hosts[0].path(study.out) / "records.jsonl"
        study.start(hosts[0])
        study.wait_for_middle()
        hosts[0].run("dd", "if=/dev/zero", f"of={out}/filler", "bs=1k")
        first = study.wait_for_end()
        hosts[0].run("rm", f"{out}/filler")
        study.start(hosts[0])
        study.wait_to_go_on()
        verdict = study.verdict(study.wait_for_end(), hosts[0].path(study.out))
        return verdict | {"exit_when_full": first}


def s3(folder: Path) -> Result:
    """A server on a third host, frozen: it takes connections and answers none."""
    with Hosts(3) as hosts:
        store = hosts[2]
        url = f"http://{store.address}:{PORT}"
        words = (sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(PORT))
        store.start(*words, log=folder / "s3.log")
        deadline = time.monotonic() + 60
        while store.run(sys.executable, "-c", MAKE_BUCKET.format(url)).returncode:
            assert time.monotonic() < deadline, (folder / "s3.log").read_text()
            time.sleep(0.5)
        environment = CREDENTIALS | {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}
        study = FaultStudy(hosts, folder, "s3://study/digits", **environment)
        study.start(hosts[0])
        study.records = _spooled(hosts)
        study.wait_for_middle()
        servers = store.processes("moto.server")
        for server in servers:
            server.suspend()
        study.wait_to_go_on(STOPPED_S)
        time.sleep(max(0.0, study.hit_at + STOPPED_S - time.monotonic()))
        for server in servers:
            server.resume()
        code = study.wait_for_end()
        copy = (
            f"import raybench, shutil; shutil.copytree(raybench.load('{study.out}').folder, 'back')"
        )
        read = hosts[1].run(sys.executable, "-c", copy, cwd=folder, **environment)
        assert read.returncode == 0, read.stderr
        return study.verdict(code, folder / "back")


def _spooled(hosts: Hosts) -> Path:
    """Return the records of the driver's local copy, once they are there."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for found in hosts[0].path("/tmp/ray/home").rglob("records.jsonl"):
            return found
        time.sleep(0.1)
    raise AssertionError("the driver keeps no local copy of its records")


FAULTS: dict[str, Callable[[Path], Result]] = {
    "worker": simple(worker),
    "raylet": simple(raylet),
    "driver": simple(driver),
    "driver_elsewhere": simple(driver_elsewhere),
    "cut": simple(cut),
    "replaced": simple(replaced),
    "full": full,
    "s3": s3,
}


def attempt(name: str) -> Result:
    """Try a fault once; what goes wrong with the try itself is its result, too."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="raybench-faults-") as folder:
        try:
            result = FAULTS[name](Path(folder))
        except Exception as error:  # noqa: BLE001 (the other tries go on)
            result = {"broken": f"{type(error).__name__}: {error}"[-2000:]}
    return {"fault": name, "seconds": round(time.monotonic() - began, 1)} | result


def is_good(result: Result) -> bool:
    """Whether a try meets the bar."""
    wanted = {"exit": 0, "finished": result.get("wanted"), "lost": 0, "doubled": 0}
    return all(result.get(key) == value for key, value in (wanted | {"torn_curves": 0}).items())


def report(results: list[Result]) -> list[str]:
    """Return the table, a row a fault."""
    lines = [
        "| fault | tries | as wanted | finished | lost | doubled | work went on after s "
        "| said in | last said |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in FAULTS:
        tries = [result for result in results if result["fault"] == name]
        if not tries:
            continue
        sums = {key: sum(result.get(key, 0) for result in tries) for key in ("finished", "doubled")}
        # A try without a verdict has lost what it was to finish.
        sums["wanted"] = sum(result.get("wanted", TRIALS) for result in tries)
        sums["lost"] = sum(result.get("lost", TRIALS) for result in tries)
        after = [one["went_on_s"] for one in tries if one.get("went_on_s") is not None]
        spread = f"{statistics.median(after):.1f} ({min(after)} - {max(after)})" if after else "-"
        ours = [[one for one in result.get("said", []) if OURS.search(one)] for result in tries]
        ours = [one + result.get("reasons", []) for one, result in zip(ours, tries, strict=True)]
        said = next((one[0] for one in reversed(ours) if one), "-")
        lines.append(
            f"| {name} | {len(tries)} | {sum(map(is_good, tries))} | {sums['finished']} of "
            f"{sums['wanted']} | {sums['lost']} | {sums['doubled']} | {spread} | "
            f"{sum(map(bool, ours))} | {said.replace('|', '/')} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--tries", type=int, default=5)
    default = Path(__file__).parent / "results" / "faults.jsonl"
    parser.add_argument("--out", type=Path, default=default, help="a line a try is added here")
    parser.add_argument("--table", action="store_true", help="only the table, of what is there")
    options = parser.parse_args()
    if why_not() is not None and not options.table:
        print(f"faults.py: {why_not()}.", file=sys.stderr)
        return 2
    options.out.parent.mkdir(exist_ok=True)
    for _ in range(0 if options.table else options.tries):
        for name in options.faults:  # ABAB
            result = attempt(name)
            print(json.dumps(result), flush=True)
            with options.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
    results = [json.loads(line) for line in options.out.read_text().splitlines()]
    lines = report(results)
    broken = [f"{one['fault']}: {one['broken']}" for one in results if "broken" in one]
    lines += ["", *(f"- no verdict: {one}" for one in broken)]
    lines += [f"{machine()['processor']}, {machine()['cores']} cores, {versions()}"]
    print("\n".join(lines))
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    return 0 if all(map(is_good, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
