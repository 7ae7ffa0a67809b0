"""Draws the ratios of a page's lines as an SVG of horizontal bars, from the page's own table. Measures nothing."""

from dataclasses import dataclass

from . import style
from .overview import cells, median

ROW, LETTER, WIDTH, RIGHT = 24, 6.4, 420, 80


@dataclass(frozen=True)
class Bar:
    """What the picture needs of a line."""

    title: str
    median: float
    least: float
    most: float
    # The least ratio asked for, where that is the bar.
    asked: float | None
    result: str

    def kind(self):
        if self.asked is None:
            return "plain"
        return "ours" if self.result.startswith("hit") else "missed" if self.result.startswith("MISS") else "plain"


def bars(page, only=lambda _bar: True):
    """The lines of a page's first table that have a ratio; `only` picks by the bar's words."""
    lines = page.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("|") and cells(line)[0] == "line")
    columns = cells(lines[begin])
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            return
        row = dict(zip(columns, cells(line)))
        if row["ratio"] == "-" or not only(row["bar"]):
            continue
        found, (least, most) = median(row["ratio"]), row["ratio"].split("(")[1].rstrip(")").split("-")
        asked = row["bar"].removeprefix(">= ").removesuffix("x") if row["bar"].startswith(">= ") and row["bar"].endswith("x") else None
        yield Bar(row["line"], found, float(least), float(most), float(asked) if asked else None, row["result"])


def ratios(page, only=lambda _bar: True):
    """The picture of a page's ratios; None where it has none."""
    found = list(bars(page, only))
    if not found:
        return None
    most = max(max(bar.most, bar.asked or 0) for bar in found)
    left = round(LETTER * max(len(bar.title) for bar in found)) + 16
    at = lambda value: left + value / most * WIDTH
    height = ROW * (len(found) + 2)
    title = "times the best peer: median, least to most of the rounds; the upright mark: what was asked for"
    parts = [style.text(8, 16, title, "note")]
    for row, bar in enumerate(found, 1):
        top, middle = ROW * row + 4, ROW * row + 15
        parts += [
            style.text(left - 8, middle, bar.title, anchor="end"),
            style.bar(left, top, at(bar.median) - left, bar.kind()),
            style.line(f"M{at(bar.least):.1f} {top + 7}H{at(bar.most):.1f}", "spread"),
            style.text(at(max(bar.most, bar.asked or 0)) + 6, middle, f"{bar.median:.2f}x"),
        ]
        if bar.asked:
            parts.append(style.line(f"M{at(bar.asked):.1f} {top - 2}v18", "asked"))
    parts.append(style.line(f"M{at(1):.1f} {ROW}V{height - ROW + 4}", "even"))
    return style.picture(left + WIDTH + RIGHT, height, title, parts)
