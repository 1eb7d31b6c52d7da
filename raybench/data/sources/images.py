"""Images of files as bytes of one shape: decoded and scaled by PIL, for both frameworks alike.

Decodes images into rows of a file; `main` is one of several processes that `decode_images` asks.

It is told by standard input, and ends when that does, so also when whoever started it was killed.
"""

import contextlib
import io
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from raybench.spec.run import DatasetSpec

Pixels = npt.NDArray[np.uint8]
SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N", "I")
"""Modes of PIL with one channel of brightness; all others have colours."""
ORIENTATION = 0x0112
"""Tag of EXIF."""


Fault = Literal["broken", "huge", "colours", "size"]
"""Why an image cannot be used, by what is to be done about it."""


class ImageError(Exception):
    """An image cannot be used; says why, after its name: 'is no image that PIL can read'."""

    def __init__(self, reason: str, fault: Fault = "broken") -> None:
        super().__init__(reason)
        self.fault: Fault = fault


@dataclass(frozen=True, kw_only=True)
class ImageForm:
    """What every image becomes."""

    height: int
    width: int
    channels: Literal[1, 3]
    is_scaled: bool
    """Whether images of other sizes are scaled to it; else they are an ImageError."""
    is_greyed: bool
    """Whether colours may be lost with one channel; else they are an ImageError."""
    resize: Literal["stretch", "crop"] = "stretch"
    told_by: str = ""
    """Name of the image whose size it is, where no size was asked for."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
        return self.height, self.width, self.channels


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    return Path(name).suffix.lower() in SUFFIXES


@dataclass(frozen=True, kw_only=True)
class ImageHead:
    """What the head of an image's file says."""

    name: str
    width: int
    """Upright, as `height`: cameras note that an image lies on its side."""
    height: int
    is_grey: bool


def read_head(content: str | bytes, name: str) -> ImageHead:
    """Return what an image is, without decoding it; ImageError if it is none."""
    with _problems(), _open(content) as image:
        width, height = image.size
        if image.getexif().get(ORIENTATION, 1) >= 5:  # turned by a quarter
            width, height = height, width
        return ImageHead(name=name, width=width, height=height, is_grey=image.mode in GREY_MODES)


def form_of(spec: DatasetSpec, heads: Sequence[ImageHead]) -> ImageForm:
    """Return what images become by a dataset's keys; what these leave open, some of them say.

    Colours where any of `heads` has colours, and the size of the first.
    """
    is_grey = all(head.is_grey for head in heads)
    return ImageForm(
        height=spec.image_size or heads[0].height,
        width=spec.image_size or heads[0].width,
        channels=spec.channels or (1 if is_grey else 3),
        is_scaled=spec.image_size is not None,
        is_greyed=spec.channels is not None,
        resize=spec.resize,
        told_by=heads[0].name,
    )


def decode(content: str | bytes, form: ImageForm) -> Pixels:
    """Return an image of a file, or of its bytes, in `form.shape`.

    Turned upright as its camera noted, its first frame, without transparency (as PIL's
    `convert("RGB")`), 16 bits as 8. ImageError for what is damaged, has other colours or another
    size than the form, or so many pixels that it may be made to fill the memory.
    """
    with _problems(), _open(content) as image:
        image.load()
        if form.channels == 1 and not form.is_greyed and image.mode not in GREY_MODES:
            raise ImageError("has colours, and the first images are grey", "colours")
        upright = ImageOps.exif_transpose(image)
        return _scale(_in_channels(upright, form.channels), form)


def fit(pixels: Pixels, form: ImageForm) -> Pixels:
    """Return an image that is in memory, (H, W, 1) or (H, W, 3), in `form.shape`."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    return _scale(_in_channels(image, form.channels), form)


@contextlib.contextmanager
def huge_images_refused() -> Iterator[None]:
    """Make PIL raise for images with more pixels than its limit; not for several threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _open(content: str | bytes) -> "Image.Image":
    return Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)


@contextlib.contextmanager
def _problems() -> Iterator[None]:
    """Turn whatever PIL raises for a file into ImageError."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise ImageError(
            f"is huge, above PIL's limit of {Image.MAX_IMAGE_PIXELS:,} pixels", "huge"
        ) from error
    except UnidentifiedImageError as error:
        raise ImageError("is no image that PIL can read") from error
    except Exception as error:
        raise ImageError(f"cannot be decoded ({str(error) or type(error).__name__})") from error


def _in_channels(image: "Image.Image", channels: int) -> "Image.Image":
    if image.mode.startswith("I"):
        image = Image.fromarray(_from_16_bits(np.asarray(image)))
    elif image.mode == "F":
        raise ImageError("holds floating-point numbers, not 8 or 16 bits a channel")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # PIL warns of what it cannot keep otherwise
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _from_16_bits(values: npt.NDArray[Any]) -> Pixels:
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ImageError("holds numbers of 32 bits, not 8 or 16 a channel")
    # 65535 is 255: 257 to one, rounded.
    return ((values.astype(np.int32) + 128) // 257).astype(np.uint8)


def _scale(image: "Image.Image", form: ImageForm) -> Pixels:
    size = (form.width, form.height)
    if image.size != size:
        if not form.is_scaled:
            raise ImageError(f"is {image.width} x {image.height} pixels", "size")
        # Bilinear over all the pixels that one is made of: shrinking leaves none out.
        image = image.resize(size, Image.Resampling.BILINEAR, box=_box(image, form))
    return np.asarray(image, np.uint8).reshape(form.shape)


def _box(image: "Image.Image", form: ImageForm) -> tuple[float, float, float, float]:
    """Return what of an image is kept: all of it, or the largest square in its middle."""
    if form.resize == "stretch":
        return 0, 0, image.width, image.height
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return left, top, left + side, top + side


@dataclass(frozen=True, slots=True)
class Picture:
    """An image that is to be decoded."""

    row: int
    """Where it stands in the array."""
    name: str
    """As sentences call it: its path, or file, row and column."""
    content: str | bytes
    """Path of its file, or its bytes."""


@dataclass(frozen=True)
class Task:
    """What all images of an array have in common."""

    file: Path
    offset: int
    """Bytes before the first row."""
    form: ImageForm


@dataclass(frozen=True, order=True)
class Problem:
    """An image that could not be used."""

    row: int
    name: str
    reason: str
    """The end of a sentence that begins with its name, without its full stop."""
    fault: Fault


def write_rows(task: Task, pictures: Iterable[Picture], target: int) -> list[Problem]:
    """Decode images and write each to its row of the open file `target`; return what went wrong.

    Nothing is mapped: written pages leave this process's memory, and a full disk is an OSError.
    """
    height, width, channels = task.form.shape
    problems = []
    for picture in pictures:
        try:
            pixels = decode(picture.content, task.form)
        except ImageError as error:
            problems.append(Problem(picture.row, picture.name, str(error), error.fault))
            continue
        place = task.offset + picture.row * height * width * channels
        view = memoryview(pixels.tobytes())
        while view:  # a nearly full disk takes a part
            written = os.pwrite(target, view, place)
            view, place = view[written:], place + written
    return problems


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Read a task, then lists of pictures until the input ends; answer each with its problems.

    An OSError of the disk is an answer, too.
    """
    task: Task = pickle.load(asked)
    target = os.open(task.file, os.O_WRONLY)
    with huge_images_refused():
        while True:
            try:
                pictures: list[Picture] = pickle.load(asked)
            except EOFError:
                return
            answer: list[Problem] | OSError
            try:
                answer = write_rows(task, pictures, target)
            except OSError as error:
                answer = error
            try:
                pickle.dump(answer, answers)
                answers.flush()
            except BrokenPipeError:  # whoever asked was killed
                return


def main() -> None:
    """Serve whoever started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for them
    serve(sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # closing a pipe that nobody reads any more would be an error
