"""Small data for tests, and the datasets that are made of them."""

import io

from PIL import Image

from raybench.data.load import build_dataset
from raybench.spec.run import DatasetSpec


def load(path, name="csv", **keys):
    """Load a file or folder anew."""
    return build_dataset(DatasetSpec(name=name, path=str(path), **keys))


def sizes(dataset):
    """Return the numbers of samples of train, validation and test."""
    return [len(split) for split in dataset.splits.values()]


def write(path, lines, encoding="utf-8", end="\n"):
    """Write a file of lines, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((end.join(lines) + end).encode(encoding))
    return path


def content(image, kind="PNG", **options):
    """Return the bytes of an image's file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def grey(value, size=(6, 4)):
    """Return a grey image that its value tells from others."""
    return Image.new("L", size, value)


def write_grey(path, value=0, size=(6, 4)):
    """Write a grey image, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content(grey(value, size)))
