"""SVG figures of a page: well-formed, in theme colors, and safe with any trial name."""

import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from raybench.report.figures import parts
from raybench.report.figures.parts import svg

HOSTILE = '"><script>alert(1)</script>'
SVG = "{http://www.w3.org/2000/svg}"


def gids(figure: Figure) -> list[str]:
    return [artist.get_gid() for artist in figure.findobj() if artist.get_gid()]


@pytest.fixture(scope="module")
def text() -> str:
    """The SVG of a figure, which is unchanged afterwards."""
    figure, axes = parts.new_figure(3)
    axes.plot([0, 1, 2], [0.123456, 0.5, 0.7], gid="0012", color=parts.QUIET, marker="o")
    axes.plot([0, 1], [1, 0], gid=HOSTILE, color="#0072B2")
    axes.axhline(0.5, gid="target", color=parts.INK)
    axes.bar([1], [0.5], hatch="//", facecolor="#E69F00", edgecolor=parts.PAPER)
    axes.text(0, 0.2, '<b>0.0109876</b> #333333 id="x" -->', color="#000000")
    axes.set_xlabel("seconds [s]", fontweight="bold")
    before = gids(figure)
    text = svg(figure, "a", 'Curves <&> "all"')
    assert gids(figure) == before
    return text


def test_a_figure_is_one_svg_image_with_a_label_and_no_size(text):
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.findtext(f"{SVG}title") == 'Curves <&> "all"'
    assert root.get("class") == "figure"
    assert root.get("viewBox") == "0 0 388.8 216"
    assert root.get("width") is None
    for word in ("<?xml", "<!DOCTYPE", "<!--", "<metadata", "<style", "xlink", "DejaVu"):
        assert word not in text


def test_colors_other_than_data_come_from_the_theme(text):
    tags = " ".join(re.findall(r"<[^>]*>", text))
    for color in ("#333333", "#eeeeee", "#c4c4c4", "#ffffff", "#000000"):
        assert color not in tags.lower()
    for variable in ("--ink", "--grid", "--quiet", "--paper"):
        assert f"var({variable})" in tags
    assert "var(--blue,#0072b2)" in tags
    assert "#e69f00" in tags


def test_trials_are_marked_in_the_svg(text):
    root = ElementTree.fromstring(text)
    trials = {element.get("data-trial") for element in root.iter()} - {None}
    assert trials == {"0012", HOSTILE}
    assert root.find(f".//{SVG}script") is None
