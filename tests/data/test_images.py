"""Images of every kind become the same bytes; many are decoded by several threads."""

import io

import numpy as np
import pytest
from PIL import Image

from raybench.data.sources import images
from raybench.data.sources.images import ImageError, ImageForm, Picture, decode, decode_images
from raybench.data.store.build import Writer
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

RED = (200, 30, 40)


def content(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def form(**changes):
    known = {"height": 4, "width": 6, "channels": 3, "is_scaled": False, "is_greyed": True}
    return ImageForm(**(known | changes))


def palette():
    image = Image.new("P", (6, 4), 1)
    image.putpalette([0, 0, 0, *RED])
    return image


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (Image.new("RGB", (6, 4), RED), "PNG"),
        (palette(), "PNG"),
        (palette(), "GIF"),
        (Image.new("RGB", (6, 4), RED), "TIFF"),
    ],
)
def test_colours_of_every_mode_are_rgb(image, kind):
    np.testing.assert_array_equal(decode(content(image, kind), form()), np.full((4, 6, 3), RED))


@pytest.mark.parametrize(
    ("image", "value"),
    [
        (Image.new("L", (6, 4), 90), 90),
        (Image.new("1", (6, 4), 1), 255),
        (Image.new("LA", (6, 4), (90, 10)), 90),
        (Image.fromarray(np.full((4, 6), 257 * 90 + 100, np.uint16)), 90),
    ],
)
def test_grey_of_every_mode_is_eight_bits(image, value):
    found = decode(content(image), form(channels=1))
    np.testing.assert_array_equal(found, np.full((4, 6, 1), value))
    np.testing.assert_array_equal(decode(content(image), form()), np.full((4, 6, 3), value))


def test_cmyk_and_grey_from_colours():
    jpeg = content(Image.new("CMYK", (6, 4), (0, 255, 255, 0)), "JPEG")
    red = decode(jpeg, form())[0, 0]
    assert red[0] > 200 > 60 > red[1]
    assert decode(jpeg, form(channels=1)).shape == (4, 6, 1)


def test_an_image_stands_as_its_camera_noted():
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    turned = content(Image.fromarray(pixels), exif=exif)
    head = images.read_head(turned, "x")
    assert (head.width, head.height) == (4, 6)
    found = decode(turned, form(height=6, width=4, channels=1))
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
    ("bytes_of", "message"),
    [
        (lambda: b"no image at all", "is no image"),
        (lambda: content(Image.effect_noise((64, 64), 50))[:900], "cannot be decoded"),
        (lambda: content(Image.new("F", (6, 4), 0.5), "TIFF"), "floating-point"),
        (lambda: content(Image.new("RGB", (5, 5))), "is 5 x 5 pixels"),
        (lambda: b"P5 12000 12000 255\n", "is huge, above PIL's limit of 89,"),
    ],
)
def test_what_is_wrong_with_an_image_is_said(bytes_of, message):
    with images.huge_images_refused(), pytest.raises(ImageError, match=message):
        decode(bytes_of(), form())


def test_colours_are_not_lost_unless_that_is_asked_for():
    colours = content(Image.new("RGB", (6, 4), RED))
    with pytest.raises(ImageError, match="has colours, and the first images are grey"):
        decode(colours, form(channels=1, is_greyed=False))


def pictures(number, broken=()):
    for row in range(number):
        image = np.full((4, 6, 3), row % 251, np.uint8)
        bytes_ = b"" if row in broken else content(Image.fromarray(image))
        yield Picture(row, f"image {row}", bytes_)


def decoded(folder, number, broken=()):
    writer = Writer(folder, "dataset toy")
    decode_images(writer, "images", pictures(number, broken), number, form())


def test_every_image_is_written_to_its_row(tmp_path):
    message = r"^image 70 is no image that PIL can read \(3 such images\); mend or remove it\.$"
    with pytest.raises(UserError, match=message):
        decoded(tmp_path, 300, broken=(250, 70, 190))
    found = np.load(tmp_path / "images.npy")
    wanted = np.arange(300) % 251
    wanted[[250, 70, 190]] = 0
    assert (found == wanted[:, None, None, None]).all()


def test_decoding_ends_early_where_most_are_broken(tmp_path):
    with pytest.raises(UserError, match=r"image 0 .*\(100 or more such images\)"):
        decoded(tmp_path, 1000, broken=range(0, 1000, 2))
