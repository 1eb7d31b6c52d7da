"""Decoding of image files with PIL to uint8 arrays of the same shape.

One thread per core decodes images into an array of the store. Threads are sufficient, because PIL
releases the GIL while it decodes and scales an image.
"""

import contextlib
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from raybench.data.memory import num_local_cores
from raybench.data.store import Writer
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import DatasetSpec

Pixels = npt.NDArray[np.uint8]
SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
"""Suffixes of the names of image files."""
WHITES = (1, 255, 1023, 4095, 16383, 65535)
"""Possible pixel values of white in gray images of more than 8 bits: the largest values of 8, 10,
12, 14 and 16 bits, and 1 for fractions and masks."""
GREY_MODES = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N", "I", "F")
"""Grayscale modes of PIL; all other modes have colors."""
ORIENTATION = 0x0112  # EXIF tag of the orientation
PROBES = 16  # maximum number of images from which the shape of all images is determined
IMAGES_AT_ONCE = 64  # maximum number of undecoded images in memory, per thread


class ImageError(Exception):
    """Raised for an image that cannot be used. The message is a predicate with the image as its
    subject, such as "cannot be decoded; repair or remove it"."""

    def about(self, name: str) -> UserError:
        """Return the UserError for this problem; `name` is the name of the image."""
        return UserError(f"{name} {self}.", ErrorCode.INVALID_DATA)


@dataclass(frozen=True, kw_only=True)
class ImageForm:
    """Shape of all decoded images of a dataset, and how images are converted to this shape."""

    height: int
    width: int
    channels: Literal[1, 3]
    is_scaled: bool
    """Whether images of another size are scaled; otherwise, they are an error."""
    is_greyed: bool
    """Whether colored images are converted to gray if `channels` is 1; otherwise, colored images
    are an error."""
    resize: Literal["stretch", "crop"] = "stretch"
    size_of: str = ""
    """Name of the image from which the size was determined, for error messages."""
    white: float | None = None
    """Pixel value of white in gray images of more than 8 bits; None if there are no such images."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image: (height, width, channels)."""
        return self.height, self.width, self.channels


@dataclass(frozen=True, kw_only=True)
class ImageHead:
    """Properties of an image file. Width and height are those after the EXIF rotation."""

    name: str
    width: int
    height: int
    is_grey: bool
    brightest: float | None = None
    """Largest pixel value of a gray image of more than 8 bits; None for other images."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image to decode."""

    row: int
    """Row of the output array into which the image is decoded."""
    name: str
    """Name of the image in error messages: its path, or file, row and column of a table."""
    content: str | bytes
    """Path of the image file, or the bytes of the image file."""


def is_image(name: str) -> bool:
    """Return whether the name of a file has the suffix of an image format."""
    return Path(name).suffix.lower() in SUFFIXES


def read_head(content: str | bytes, name: str) -> ImageHead:
    """Read the properties of an image; pixels are decoded only if they have more than 8 bits.

    Args:
        content: Path of the image file, or the bytes of the image file.
        name: Name of the image in error messages.

    Raises:
        ImageError: The content is not an image.
    """
    with _problems(), _open(content) as image:
        values = _deep_values(image)
        brightest = None if values is None else float(values.max())
        width, height = image.size
        if image.getexif().get(ORIENTATION, 1) >= 5:  # rotated by 90 degrees
            width, height = height, width
        return ImageHead(
            name=name,
            width=width,
            height=height,
            is_grey=image.mode in GREY_MODES,
            brightest=brightest,
        )


def _deep_values(image: "Image.Image") -> npt.NDArray[np.float64] | None:
    """Return the pixel values of a gray image of more than 8 bits, (H, W) float64; None for other
    images, because PIL itself converts color images of 16 bits to 8 bits."""
    return np.asarray(image, np.float64) if image.mode.startswith(("I", "F")) else None


def _to_eight_bits(image: "Image.Image", form: ImageForm) -> "Image.Image":
    """Convert a gray image of more than 8 bits to 8 bits; return other images unchanged."""
    values = _deep_values(image)
    if values is None:
        return image
    white = form.white or WHITES[-1]
    least, most = float(values.min()), float(values.max())
    if not 0 <= least <= most <= white:  # also true for NaN
        enough = next((candidate for candidate in WHITES if most <= candidate), most)
        advice = f"set dataset.white: {enough:g}" if least >= 0 else "scale the values"
        raise ImageError(
            f"has pixel values from {least:g} to {most:g}, but black is 0 and white is {white:g}; "
            f"{advice}"
        )
    converted = Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))
    converted.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
    return converted


def form_of(spec: DatasetSpec, heads: Sequence[ImageHead]) -> ImageForm:
    """Return the `ImageForm` of a dataset.

    Args:
        spec: The dataset spec. If it does not set the size, the size of the first image is used. If
            it does not set the channels, there is one channel if all given images are gray, else
            three.
        heads: Properties of some images of the dataset.
    """
    return ImageForm(
        height=spec.image_size or heads[0].height,
        width=spec.image_size or heads[0].width,
        channels=spec.channels or (1 if all(head.is_grey for head in heads) else 3),
        is_scaled=spec.image_size is not None,
        is_greyed=spec.channels is not None,
        resize=spec.resize,
        size_of=heads[0].name,
        white=_white_of(spec, [head.brightest for head in heads if head.brightest is not None]),
    )


def _white_of(spec: DatasetSpec, brightest: Sequence[float]) -> float | None:
    """Return the pixel value of white in gray images of more than 8 bits.

    Args:
        spec: The dataset spec.
        brightest: Largest pixel value of each such image.

    Returns:
        The spec's `white` or, by default, the smallest of WHITES that no pixel exceeds. None if
        there are no such images and the spec does not set `white`.
    """
    if not brightest:
        return spec.white
    most = max(brightest)
    default = next((white for white in WHITES if 0 < most <= white), WHITES[-1])
    return spec.white or float(default)


def decode(content: str | bytes, form: ImageForm) -> Pixels:
    """Decode an image to an array of `form.shape`, uint8.

    Only the first frame of an animation is decoded. The image is rotated according to its EXIF
    orientation, and transparent pixels are blended with white. Pixel values of more than 8 bits are
    scaled so that `form.white` becomes 255.

    Raises:
        ImageError: The image is damaged, has colors or a size that the form does not allow, or has
            more pixels than PIL's limit.
    """
    with _problems(), _open(content) as opened:
        image = _to_eight_bits(opened, form)
        image.load()
        if form.channels == 1 and not form.is_greyed and image.mode not in GREY_MODES:
            raise ImageError(
                "has colors, but the first images are gray; set dataset.channels: 3, or 1 to "
                "convert all images to gray"
            )
        return _scale(_in_channels(ImageOps.exif_transpose(image), form), form)


def fit(pixels: Pixels, form: ImageForm) -> Pixels:
    """Convert an image array (H, W, 1) or (H, W, 3) to `form.shape`."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    return _scale(_in_channels(image, form), form)


def _open(content: str | bytes) -> "Image.Image":
    return Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)


@contextlib.contextmanager
def _problems() -> Iterator[None]:
    """Context manager that turns errors of PIL into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError("is not an image that PIL can read; repair or remove it") from error
    except Exception as error:
        raise ImageError(
            f"cannot be decoded ({str(error) or type(error).__name__}); repair or remove it"
        ) from error


def _in_channels(image: "Image.Image", form: ImageForm) -> "Image.Image":
    """Convert an image to the channels of the form, with transparent pixels blended with white."""
    if image.has_transparency_data:
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if form.channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _scale(image: "Image.Image", form: ImageForm) -> Pixels:
    """Scale an image to the size of the form, and return it as an array of `form.shape`."""
    size = (form.width, form.height)
    if image.size != size:
        if not form.is_scaled:
            raise ImageError(
                f"is {image.width} x {image.height} pixels, but {form.size_of} is {form.width} x "
                f"{form.height}; set dataset.image_size, such as 64, to scale all images"
            )
        left, top = 0.0, 0.0
        if form.resize == "crop":  # keep the largest central square
            side = min(image.size)
            left, top = (image.width - side) / 2, (image.height - side) / 2
        box = (left, top, image.width - left, image.height - top)
        # PIL's bilinear filter is antialiased: it averages over all pixels if it scales down.
        image = image.resize(size, Image.Resampling.BILINEAR, box=box)
    return np.asarray(image, np.uint8).reshape(form.shape)


def probe(pictures: Sequence[Picture], spec: DatasetSpec) -> ImageForm:
    """Determine the `ImageForm` of a dataset from some of its images.

    Args:
        pictures: Images of the dataset. At most PROBES of them are read.
        spec: The dataset spec.

    Raises:
        UserError: None of these images can be read.
    """
    chosen = pictures[:: max(1, len(pictures) // PROBES)][:PROBES]
    heads, error = [], None
    for picture in chosen:
        try:
            heads.append(read_head(picture.content, picture.name))
            decode(picture.content, form_of(spec, heads[-1:]))
        except ImageError as problem:
            error = error or problem.about(picture.name)
    if not heads:
        assert error is not None
        raise error
    return form_of(spec, heads)


def decode_images(
    writer: Writer, name: str, pictures: Iterable[Picture], number: int, form: ImageForm
) -> None:
    """Decode images into a new array of the store, (number, H, W, C) uint8.

    Args:
        writer: Writer of the store entry.
        name: Name of the array.
        pictures: The images. They are read lazily, so that undecoded images need not fit into
            memory together.
        number: Number of images.
        form: Shape of the decoded images.

    Raises:
        UserError: An image cannot be used; the message names the first such image.
    """
    cores = num_local_cores()
    array = writer.array(name, (number, *form.shape), "uint8")

    def write(picture: Picture) -> None:
        try:
            array[picture.row] = decode(picture.content, form)
        except ImageError as error:
            raise error.about(picture.name) from error

    remaining = iter(pictures)
    with (
        writer.progress(f"decoding {number:,} images", number) as advance,
        ThreadPoolExecutor(cores) as threads,
    ):
        while chunk := list(itertools.islice(remaining, IMAGES_AT_ONCE * cores)):
            list(threads.map(write, chunk))
            advance(len(chunk))


def files_as_inputs(
    samples: Sequence[str | Path | bytes],
    shape: tuple[int, ...],
    resize: Literal["stretch", "crop"],
    white: float | None,
) -> Pixels:
    """Return new images as inputs of a trained model: decoded pixels, (N, H, W, C) uint8.

    Args:
        samples: Paths of image files, or the bytes of image files.
        shape: Shape (H, W, C) of the training images.
        resize: How the training images were made square; see `DatasetSpec.resize`.
        white: Pixel value of white in gray training images of more than 8 bits; None if there were
            no such images.

    Raises:
        UserError: An image cannot be decoded.
    """
    height, width, channels = shape
    form = ImageForm(
        height=height,
        width=width,
        channels=1 if channels == 1 else 3,
        is_scaled=True,
        is_greyed=True,
        resize=resize,
        white=white,
    )
    out = np.empty((len(samples), *form.shape), np.uint8)
    for row, sample in enumerate(samples):
        name = f"Image {row}" if isinstance(sample, bytes) else str(sample)
        try:
            out[row] = decode(sample if isinstance(sample, bytes) else name, form)
        except ImageError as error:
            raise error.about(name) from error
    return out
