"""A loop that edits train.py and keeps changes that `raybench compare --session` calls better.

python loop.py
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import raybench

EDITS = (
    ("LEARNING_RATE", "3e-3"),
    ("HIDDEN_UNITS", "16"),
    ("LEARNING_RATE", "1e-2"),
    ("BATCH_SIZE", "16"),
    ("BATCH_SIZE", "32"),
    ("OPTIMIZER", "torch.optim.SGD"),
    ("HIDDEN_UNITS", "128"),
)
"""Changes to try, one after the other: put a program that writes them in their place."""
OBJECTIVE = ("--set", "objective={target: 0.9, max_train_seconds: 10}")
BETTER, INVALID = 0, 2


def edited(code: str, name: str, value: str) -> str:
    """Return the code with another value of a constant."""
    return re.sub(rf"^{name} = .*$", f"{name} = {value}", code, flags=re.MULTILINE)


def run(*words: str) -> tuple[int, dict]:
    """Run a command; return its exit code and its document."""
    command = [sys.executable, "-m", "raybench", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    document = json.loads(done.stdout)
    if done.returncode == INVALID:
        raise SystemExit(document["error"]["message"])
    return done.returncode, document


def median_of(side: str, folder: str) -> float:
    """Return the median seconds to the target of a side of a comparison."""
    trials = raybench.load(folder).trials
    seconds = trials.loc[trials["source"] == side, "time_to_target_s"]
    return float(seconds.fillna(float("inf")).median())


def seconds_of(file: str, name: str) -> float:
    """Train a file once; return its seconds to the target, infinite for a miss."""
    words = ("train", "--train", f"{file}:train", *OBJECTIVE, "--out", f"results/{name}")
    return run(*words)[1]["details"].get("time_to_target_s") or float("inf")


def main() -> None:
    """Try every edit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", default="20", help="most pairs of a comparison")
    runs = parser.parse_args().runs
    present = seconds_of("train.py", "start")
    for number, (name, value) in enumerate(EDITS):
        Path("candidate.py").write_text(edited(Path("train.py").read_text(), name, value))
        seconds = seconds_of("candidate.py", f"screen-{number}")
        kept = False
        if seconds < present:
            sides = ("train.py:train", "candidate.py:train")
            shared = ("--session", "session.jsonl", "--runs", runs, *OBJECTIVE)
            out = ("--out", f"results/compare-{number}")
            code, document = run("compare", *sides, *shared, *out)
            kept = code == BETTER
            present = median_of("B" if kept else "A", out[1])
            print(*document["answer"])
        if kept:
            shutil.copy("candidate.py", "train.py")
        print(f"{name} = {value}: {'kept' if kept else 'reverted'} (screened at {seconds:.2f} s)")


if __name__ == "__main__":
    main()
