"""CIFAR-10 as users have pictures: a folder of PNG files by class, and Parquet; for trials of them.

    RAYBENCH_DATA=../shared/data python -m benchmarks.users_data FOLDER [--images 10000]

writes FOLDER/images/{train,test}/<class>/<row>.png and FOLDER/{train,test}.parquet with the columns
`image` (as Hugging Face writes it) and `label` (the class by name). `--images`: of the training
split, the test split gets a fifth of them. What is there already is written anew.
"""

import argparse
import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from PIL import Image

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
NUM_TRAIN, TEST_SHARE = 50_000, 5


def write(part: str, number: int, out: Path) -> None:
    """Write the first images of a part as PNG files and as Parquet."""
    data = Path(os.environ.get("RAYBENCH_DATA", "data")) / "cifar10"
    rows = pyarrow.parquet.read_table(data / f"{part}-00000-of-00001.parquet").slice(0, number)
    names = [CLASSES[label] for label in rows["label"].to_pylist()]
    for name in CLASSES:
        (out / "images" / part / name).mkdir(parents=True, exist_ok=True)
    files = []
    for row, image in enumerate(rows["image"].to_pylist()):
        buffer = io.BytesIO()
        Image.open(io.BytesIO(image["bytes"])).save(buffer, "PNG")
        path = f"{names[row]}/{row:05d}.png"
        (out / "images" / part / path).write_bytes(buffer.getvalue())
        files.append({"bytes": buffer.getvalue(), "path": path})
    table = pa.table({"image": files, "label": names})
    pyarrow.parquet.write_table(table, out / f"{part}.parquet")


def main() -> None:
    """Write both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="FOLDER")
    parser.add_argument("--images", type=int, default=NUM_TRAIN)
    options = parser.parse_args()
    for part, number in (("train", options.images), ("test", options.images // TEST_SHARE)):
        write(part, number, options.out)
        print(f"{number:,} images: {options.out / 'images' / part}, {options.out / part}.parquet")


if __name__ == "__main__":
    main()
