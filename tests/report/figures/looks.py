"""What can be read of a figure, and whether it can."""

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text

from raybench.report.figures import parts


def texts(figure: Figure) -> list[Text]:
    """The texts that can be seen; of an axis, those of the ticks within its ends."""
    figure.draw_without_rendering()
    found = [*figure.texts]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in legends:
        found += [*legend.get_texts(), legend.get_title()] if legend is not None else []
    for axes in figure.axes:
        found += [*axes.texts, axes.title, axes._left_title, axes._right_title]
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            ticks = [one for one in axis.get_major_ticks() if low <= one.get_loc() <= high]
            found += [axis.label, *(one.label1 for one in ticks)]
    return [one for one in found if one.get_visible() and one.get_text().strip()]


def words(figure: Figure) -> str:
    """All text of a figure that can be seen."""
    return "\n".join(one.get_text() for one in texts(figure))


def look_at(name: str, figure: Figure) -> None:
    """Fail where a text is cut off, hidden, or too small for a telephone."""
    seen = texts(figure)
    boxes = [(one.get_text(), one.get_window_extent()) for one in seen]
    assert boxes, name
    for text, box in boxes:
        assert box.x0 >= -1, (name, text)
        assert box.y0 >= -1, (name, text)
        assert box.x1 <= figure.bbox.x1 + 1, (name, text)
        assert box.y1 <= figure.bbox.y1 + 1, (name, text)
    for (text, box), (other, its) in combinations(boxes, 2):
        wide = min(box.x1, its.x1) - max(box.x0, its.x0)
        high = min(box.y1, its.y1) - max(box.y0, its.y0)
        assert wide <= 1 or high <= 1, (name, text, other)
    assert min(one.get_fontsize() for one in seen) >= parts.SMALL, name
