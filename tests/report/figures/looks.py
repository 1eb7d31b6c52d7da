"""Checks that the text of a figure is legible."""

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text

from raybench.report.figures import parts


def texts(figure: Figure) -> list[Text]:
    """Return the visible texts of a figure, with tick labels within the axis limits."""
    figure.draw_without_rendering()
    candidates = [*figure.texts]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in legends:
        candidates += [*legend.get_texts(), legend.get_title()] if legend is not None else []
    for axes in figure.axes:
        candidates += [*axes.texts, axes.title, axes._left_title, axes._right_title]
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            candidates += [axis.label, *(tick.label1 for tick in ticks)]
    return [text for text in candidates if text.get_visible() and text.get_text().strip()]


def words(figure: Figure) -> str:
    """Return all visible text of a figure."""
    return "\n".join(text.get_text() for text in texts(figure))


def look_at(name: str, figure: Figure) -> None:
    """Fail if a text is cut off, overlaps another or is too small for a phone."""
    visible = texts(figure)
    boxes = [(text.get_text(), text.get_window_extent()) for text in visible]
    assert boxes, name
    for text, box in boxes:
        assert box.x0 >= -1, (name, text)
        assert box.y0 >= -1, (name, text)
        assert box.x1 <= figure.bbox.x1 + 1, (name, text)
        assert box.y1 <= figure.bbox.y1 + 1, (name, text)
    for (text, box), (other, other_box) in combinations(boxes, 2):
        wide = min(box.x1, other_box.x1) - max(box.x0, other_box.x0)
        high = min(box.y1, other_box.y1) - max(box.y0, other_box.y0)
        assert wide <= 1 or high <= 1, (name, text, other)
    assert min(text.get_fontsize() for text in visible) >= parts.SMALL, name
