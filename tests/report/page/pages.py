"""Made-up studies and a parsed page for the page tests."""

from html.parser import HTMLParser

from tests.made_results import curve, results_folder, run_line

HOSTILE = (
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(2)">',
    "\"quoted' & <b>bold</b>",
    "שלום עולם",
    "学習 ñandú \u202eevil\u202c",
)
"""Strings that users or libraries may supply."""


class ParsedPage(HTMLParser):
    """A parsed page: its elements, and its text outside of styles and scripts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.within = [], [], [], []
        self.contents = {"script": [], "style": []}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend((tag, name, value) for name, value in attrs)
        self.within.append(tag)
        if tag in self.contents:
            self.contents[tag].append("")

    def handle_endtag(self, tag):
        while self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data):
        if self.within and self.within[-1] in self.contents:
            self.contents[self.within[-1]][-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def made_study(folder, *, hostile=()):
    """Return a small study with a confirmed winner, a failure, and hostile strings."""
    lines = []
    names = [*(f"{number:04d}" for number in range(4)), *hostile]
    for number, name in enumerate(names):
        lines += curve(name, [0.3, 0.7, 0.91, 0.93])
        lines.append(run_line(name, 2.0 + number, learning_rate=0.001 * (number + 1)))
    for seed in range(3):
        lines.append(
            run_line(f"0000-confirm{seed}", 2.1 + 0.1 * seed, role="confirm", learning_rate=0.001)
        )
    for name in ("broken", *(f"broken {text}" for text in hostile)):
        lines.append(run_line(name, failure="error") | {"message": f"no {name}"})
    return results_folder(folder, lines)
