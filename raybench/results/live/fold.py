"""Text in the columns of a terminal: characters of East Asia take two."""

from rich.cells import cell_len, chop_cells, set_cell_size

DOTS = "..."


def fold(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` columns, broken at spaces where it can be."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) <= width:
            line += f" {word}"
            continue
        if line:
            lines.append(line)
        *whole, line = chop_cells(word, width)
        lines += whole
    return [*lines, line] if line else lines


def cut(text: str, width: int) -> str:
    """Return a text in at most `width` columns; the middle goes, its ends say most."""
    if cell_len(text) <= width:
        return text
    tail = max((width - len(DOTS)) // 3, 0)
    start = len(text) - tail
    while cell_len(text[start:]) > tail:
        start += 1
    head = width - len(DOTS) - cell_len(text[start:])
    if head < 1:
        return set_cell_size(text, width)
    return f"{set_cell_size(text, head).rstrip()}{DOTS}{text[start:]}"
