"""Decoding of images: modes, transparency, bit depths, orientation and scaling."""

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
    expected = {"height": 4, "width": 6, "channels": 3, "is_scaled": False, "is_greyed": True}
    return ImageForm(**(expected | changes))


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
def test_images_of_every_mode_become_8_bit(image, kind, color):
    pixels = decode(content(image, kind), form())
    np.testing.assert_array_equal(pixels, np.broadcast_to(color, (4, 6, 3)))
    if isinstance(color, int):
        grey = decode(content(image, kind), form(channels=1))
        np.testing.assert_array_equal(grey, np.full((4, 6, 1), color))


def drawing(mode, color):
    """Return an image with a square of ink in the middle, otherwise transparent."""
    image = Image.new(mode, (6, 4), (*color[:-1], 0))
    image.paste(color, (2, 1, 4, 3))
    return image


INK = Image.new("L", (6, 4), 0)  # 0 is transparent in files that declare it
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
def test_transparent_pixels_are_composited_on_white(image, kind, options):
    pixels = decode(content(image, kind, **options), form(channels=1))[..., 0]
    expected = np.full((4, 6), 255)
    expected[1:3, 2:4] = pixels[1, 2]
    assert pixels[1, 2] < 20
    np.testing.assert_array_equal(pixels, expected)
    half = decode(content(Image.new("RGBA", (6, 4), (255, 0, 0, 128))), form())
    np.testing.assert_array_equal(half[0, 0], (255, 127, 127))


@pytest.mark.parametrize(
    ("dtype", "kind", "white"),
    [
        ("uint16", "PNG", 16383),
        ("uint16", "TIFF", 4095),
        ("uint16", "PNG", 1),
        ("int32", "TIFF", 65535),
        ("float32", "TIFF", 1),
        ("float32", "TIFF", 255),
    ],
)
def test_deep_images_are_scaled_by_the_white_level_of_the_first_images(dtype, kind, white):
    def file_of(values):
        return content(Image.fromarray(values.astype(dtype)), kind)

    values = np.zeros((4, 6))
    values[0], values[1] = white, white // 2
    files = [file_of(values), file_of(values // 2)]
    image_form = images.probe([Picture(0, "x", file) for file in files], DatasetSpec(channels=1))
    assert image_form.white == white
    pixels = [decode(file, image_form)[..., 0] for file in files]
    for decoded, expected in zip(pixels, (values, values // 2), strict=True):
        np.testing.assert_array_equal(decoded, np.rint(255 * expected / white))
    with pytest.raises(ImageError, match=f"{white:g}"):
        decode(file_of(values + 1), image_form)
    with_white = images.probe([Picture(0, "x", files[0])], DatasetSpec(channels=1, white=5 * white))
    np.testing.assert_array_equal(decode(files[0], with_white)[0, :, 0], 51)


def test_cmyk_and_grayscale_are_converted():
    jpeg = content(Image.new("CMYK", (6, 4), (0, 255, 255, 0)), "JPEG")
    red = decode(jpeg, form())[0, 0]
    assert red[0] > 200 > 60 > red[1]
    assert decode(jpeg, form(channels=1)).shape == (4, 6, 1)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_exif_orientation_is_applied(kind):
    pixels = np.arange(24, dtype=kind).reshape(4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees to the right
    turned = content(Image.fromarray(pixels), exif=exif)
    head = images.read_head(turned, "x")
    assert (head.width, head.height) == (4, 6)
    upright = decode(turned, form(height=6, width=4, channels=1, white=255))
    np.testing.assert_array_equal(upright[..., 0], np.rot90(pixels, -1))


def test_scaling_averages_all_pixels_and_crops_the_center():
    stripes = np.zeros((8, 16, 3), np.uint8)
    stripes[:, ::2] = 200
    small = images.fit(stripes, form(height=4, width=4, is_scaled=True))
    np.testing.assert_allclose(small, 100, atol=8)  # taking every other pixel would give 0 or 200
    sides = np.zeros((8, 16, 1), np.uint8)
    sides[:, 4:12] = 255
    square = form(height=4, width=4, channels=1, is_scaled=True, resize="crop")
    assert images.fit(sides, square).min() > 200, "stretching would leave sides of 0"


def test_the_image_form_comes_from_the_first_images():
    heads = [
        images.read_head(content(Image.new(mode, size)), name)
        for mode, size, name in (("L", (6, 4), "a"), ("RGB", (5, 5), "b"))
    ]
    spec = DatasetSpec(name="image_folder", path="x")
    assert images.form_of(spec, heads).shape == (4, 6, 3), "one image with colors is enough"
    assert images.form_of(spec, heads[:1]).shape == (4, 6, 1)
    resized = spec.model_copy(update={"image_size": 9, "channels": 1})
    assert images.form_of(resized, heads).shape == (9, 9, 1)


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
def test_unusable_images_are_refused(bytes_of, changes, values):
    with pytest.raises(ImageError, match=values):
        decode(bytes_of(), form(**changes))


def test_images_are_written_in_order_and_the_first_broken_one_is_refused(tmp_path):
    files = [content(Image.new("RGB", (6, 4), (row,) * 3)) for row in range(200)]
    writer = Writer(tmp_path, "dataset toy")
    for broken in ([], [70, 190]):
        pictures = (
            Picture(row, f"image {row}", b"" if row in broken else file)
            for row, file in enumerate(files)
        )
        with refused(ErrorCode.INVALID_DATA, "image 70 ") if broken else nullcontext():
            decode_images(writer, "images", pictures, 200, form())
            written = np.load(tmp_path / "images.npy")
            np.testing.assert_array_equal(written[:, 0, 0, 0], np.arange(200))
