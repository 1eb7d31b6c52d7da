"""Images of every kind become the same bytes; many are decoded by several threads."""

from contextlib import nullcontext

import numpy as np
import pytest
from PIL import Image

from raybench.data.sources import images
from raybench.data.sources.images import ImageError, ImageForm, Picture, decode, decode_images
from raybench.data.store import Writer
from raybench.spec.errors import ErrorCode
from raybench.spec.run import DatasetSpec
from tests.data.making import content
from tests.refusals import refused

RED = (200, 30, 40)


def form(**changes):
    known = {"height": 4, "width": 6, "channels": 3, "is_scaled": False, "is_greyed": True}
    return ImageForm(**(known | changes))


def palette():
    image = Image.new("P", (6, 4), 1)
    image.putpalette([0, 0, 0, *RED])
    return image


@pytest.mark.parametrize(
    ("image", "kind", "color"),
    [
        (Image.new("RGB", (6, 4), RED), "PNG", RED),
        (palette(), "PNG", RED),
        (palette(), "GIF", RED),
        (Image.new("RGB", (6, 4), RED), "TIFF", RED),
        (Image.new("L", (6, 4), 90), "PNG", 90),
        (Image.new("1", (6, 4), 1), "PNG", 255),
        (Image.new("LA", (6, 4), (90, 255)), "PNG", 90),
        (Image.fromarray(np.full((4, 6), 257 * 90 + 100, np.uint16)), "PNG", 90),
    ],
)
def test_images_of_every_mode_are_eight_bits(image, kind, color):
    found = decode(content(image, kind), form())
    np.testing.assert_array_equal(found, np.broadcast_to(color, (4, 6, 3)))
    if isinstance(color, int):
        grey = decode(content(image, kind), form(channels=1))
        np.testing.assert_array_equal(grey, np.full((4, 6, 1), color))


def drawing(mode, color):
    """A square of ink in the middle, all else transparent."""
    image = Image.new(mode, (6, 4), (*color[:-1], 0))
    image.paste(color, (2, 1, 4, 3))
    return image


INK = Image.new("L", (6, 4), 0)  # of which 0 is transparent, where a file says so
INK.paste(9, (2, 1, 4, 3))


@pytest.mark.parametrize(
    ("image", "kind", "options"),
    [
        (drawing("RGBA", (0, 0, 0, 255)), "PNG", {}),
        (drawing("LA", (0, 255)), "PNG", {}),
        (drawing("RGBA", (0, 0, 0, 255)), "TIFF", {}),
        (drawing("RGBA", (0, 0, 0, 255)), "WEBP", {"lossless": True}),
        (INK, "PNG", {"transparency": 0}),
        (INK.convert("RGB"), "PNG", {"transparency": (0, 0, 0)}),
        (INK.convert("P"), "PNG", {"transparency": 0}),
        (INK.convert("P"), "GIF", {"transparency": 0}),
    ],
)
def test_what_is_transparent_lies_over_white(image, kind, options):
    found = decode(content(image, kind, **options), form(channels=1))[..., 0]
    wanted = np.full((4, 6), 255)
    wanted[1:3, 2:4] = found[1, 2]
    assert found[1, 2] < 20
    np.testing.assert_array_equal(found, wanted)
    half = decode(content(Image.new("RGBA", (6, 4), (255, 0, 0, 128))), form())
    np.testing.assert_array_equal(half[0, 0], (255, 127, 127))


@pytest.mark.parametrize(
    ("bytes_of", "white"),
    [
        (lambda v: content(Image.fromarray(v.astype(np.uint16)), "PNG"), 16383),
        (lambda v: content(Image.fromarray(v.astype(np.uint16)), "TIFF"), 4095),
        (lambda v: content(Image.fromarray(v.astype(np.uint16)), "PNG"), 1),
        (lambda v: content(Image.fromarray(v.astype(np.int32)), "TIFF"), 65535),
        (lambda v: content(Image.fromarray(v.astype(np.float32)), "TIFF"), 1),
        (lambda v: content(Image.fromarray(v.astype(np.float32)), "TIFF"), 255),
    ],
)
def test_more_than_8_bits_are_scaled_by_the_white_of_the_first_images(bytes_of, white):
    values = np.zeros((4, 6))
    values[0], values[1] = white, white // 2
    files = [bytes_of(values), bytes_of(values // 2)]
    made = images.probe([Picture(0, "x", one) for one in files], DatasetSpec(channels=1))
    assert made.white == white
    found = [decode(one, made)[..., 0] for one in files]
    for one, wanted in zip(found, (values, values // 2), strict=True):
        np.testing.assert_array_equal(one, np.rint(255 * wanted / white))
    with pytest.raises(ImageError, match=f"{white:g}"):
        decode(bytes_of(values + 1), made)
    asked = images.probe([Picture(0, "x", files[0])], DatasetSpec(channels=1, white=5 * white))
    np.testing.assert_array_equal(decode(files[0], asked)[0, :, 0], 51)


def test_cmyk_and_grey_from_colours():
    jpeg = content(Image.new("CMYK", (6, 4), (0, 255, 255, 0)), "JPEG")
    red = decode(jpeg, form())[0, 0]
    assert red[0] > 200 > 60 > red[1]
    assert decode(jpeg, form(channels=1)).shape == (4, 6, 1)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_an_image_stands_as_its_camera_noted(kind):
    pixels = np.arange(24, dtype=kind).reshape(4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    turned = content(Image.fromarray(pixels), exif=exif)
    head = images.read_head(turned, "x")
    assert (head.width, head.height) == (4, 6)
    found = decode(turned, form(height=6, width=4, channels=1, white=255))
    np.testing.assert_array_equal(found[..., 0], np.rot90(pixels, -1))


def test_scaling_averages_over_all_pixels_and_cuts_the_middle_out():
    stripes = np.zeros((8, 16, 3), np.uint8)
    stripes[:, ::2] = 200
    small = images.fit(stripes, form(height=4, width=4, is_scaled=True))
    np.testing.assert_allclose(small, 100, atol=8)  # one pixel of two would be 0 or 200
    sides = np.zeros((8, 16, 1), np.uint8)
    sides[:, 4:12] = 255
    square = form(height=4, width=4, channels=1, is_scaled=True, resize="crop")
    assert images.fit(sides, square).min() > 200, "stretched, its sides would be 0"


def test_the_form_is_told_by_the_first_images():
    heads = [
        images.read_head(content(Image.new(mode, size)), name)
        for mode, size, name in (("L", (6, 4), "a"), ("RGB", (5, 5), "b"))
    ]
    spec = DatasetSpec(name="image_folder", path="x")
    assert images.form_of(spec, heads).shape == (4, 6, 3), "one with colours is enough"
    assert images.form_of(spec, heads[:1]).shape == (4, 6, 1)
    asked = spec.model_copy(update={"image_size": 9, "channels": 1})
    assert images.form_of(asked, heads).shape == (9, 9, 1)


@pytest.mark.parametrize(
    ("bytes_of", "changes", "values"),
    [
        (lambda: b"no image at all", {}, "image"),
        (lambda: content(Image.effect_noise((64, 64), 50))[:900], {}, "decoded"),
        (lambda: content(Image.new("F", (6, 4), -0.5), "TIFF"), {}, "-0.5 "),
        (lambda: content(Image.new("F", (6, 4), np.nan), "TIFF"), {}, "nan"),
        (lambda: content(Image.new("I", (6, 4), 70_000), "TIFF"), {}, "70000.*65535"),
        (lambda: content(Image.new("RGB", (5, 5))), {}, "5 x 5"),
        (lambda: b"P5 15000 15000 255\n", {}, "limit"),
        (
            lambda: content(Image.new("RGB", (6, 4), RED)),
            {"channels": 1, "is_greyed": False},
            "colors",
        ),
    ],
)
def test_an_image_that_cannot_be_used_is_refused(bytes_of, changes, values):
    with pytest.raises(ImageError, match=values):
        decode(bytes_of(), form(**changes))


def test_every_image_is_written_to_its_row_and_the_first_that_is_broken_named(tmp_path):
    files = [content(Image.new("RGB", (6, 4), (row,) * 3)) for row in range(200)]
    writer = Writer(tmp_path, "dataset toy")
    for broken in ([], [70, 190]):
        pictures = (
            Picture(row, f"image {row}", b"" if row in broken else file)
            for row, file in enumerate(files)
        )
        with refused(ErrorCode.INVALID_DATA, "image 70 ") if broken else nullcontext():
            decode_images(writer, "images", pictures, 200, form())
            found = np.load(tmp_path / "images.npy")
            np.testing.assert_array_equal(found[:, 0, 0, 0], np.arange(200))
