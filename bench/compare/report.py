"""The form of every page: a table of lines with a bar each, and the tables below it. Pure: measures nothing, reads no file."""

from dataclasses import dataclass

from .rounds import MISS, ROUNDS_LEAST, Spread, verdict

RULE = (
    f"The rule: {ROUNDS_LEAST} rounds or more; contenders take turns within a round; a ratio is taken within a round; the median "
    "of the rounds decides (least and most in brackets). *Best peer* is the one with the lowest median ratio."
)
HEAD = ["line", "magray", "best peer", "its figure", "ratio", "bar", "result"]
NO_BAR = "no bar"


@dataclass(frozen=True)
class Line:
    """One line of a page's first table."""

    title: str
    ours: str
    peer: str = "-"
    theirs: str = "-"
    ratio: Spread | None = None
    bar: str = NO_BAR
    result: str = "-"
    # The least ratio asked for, where that is the bar.
    least_ratio: float | None = None

    def cells(self):
        ratio = f"{self.ratio:.2f}" if self.ratio else "-"
        return [self.title, self.ours, self.peer, self.theirs, ratio, self.bar, self.result]


@dataclass(frozen=True)
class Bar:
    """What is asked of a line: a ratio to the best peer at least, or a figure at most or at least."""

    ratio: float | None = None
    at_most: float | None = None
    at_least: float | None = None

    def words(self, unit):
        if self.ratio is not None:
            return f">= {self.ratio:g}x"
        if self.at_most is not None:
            return f"<= {self.at_most:g} {unit}"
        return f">= {self.at_least:,g} {unit}" if self.at_least is not None else NO_BAR

    def verdict(self, figure, ratio):
        if self.ratio is not None:
            return verdict(ratio, lambda found: found >= self.ratio)
        if self.at_most is not None:
            return verdict(figure, lambda found: found <= self.at_most)
        return verdict(figure, lambda found: found >= self.at_least) if self.at_least is not None else "-"


def judged(title, figures, ours, peers, bar=Bar(), unit="ms", spec=".2f", more_is_better=False):
    """The line of one (name, case) of ours against those of peers, which are all in the same unit; None where ours was not
    measured. `peers` maps each (name, case) to the words that name it."""
    found = figures.spread(*ours)
    if found is None:
        return None
    ratios = {peer: figures.ratio(ours, peer) if more_is_better else figures.ratio(peer, ours) for peer in peers}
    best = min((peer for peer in ratios if ratios[peer]), key=lambda peer: ratios[peer].median, default=None)
    ratio = ratios.get(best)
    theirs = f"{figures.spread(*best).median:{spec}} {unit}" if best else "-"
    words = (f"{found.median:{spec}} {unit}", peers.get(best, "none"), theirs)
    return Line(title, *words, ratio, bar.words(unit), bar.verdict(found, ratio), bar.ratio)


def lines_table(lines):
    """The first table of a page."""
    return table(HEAD, [line.cells() for line in lines])


def summary(lines):
    """How many bars were hit, and the names of those that were not."""
    asked = [line for line in lines if line.bar != NO_BAR]
    missed = [line.title for line in asked if line.result.startswith(MISS)]
    undecided = len([line for line in asked if line.result.startswith("undecided")])
    words = f"{len(asked) - len(missed) - undecided} of {len(asked)} bars hit"
    words += f", {undecided} undecided" if undecided else ""
    return f"**{words}.**" + (f" Missed: {'; '.join(missed)}." if missed else "")


def spreads_table(head, figures, names, cases, spec=".2f", more=lambda _name: []):
    """All figures: the median of the rounds, the least and the most. `more` gives cells that follow."""
    cell = lambda name, case: f"{found:{spec}}" if (found := figures.spread(name, case)) else "-"
    return table(head, [[name, *(cell(name, case) for case in cases), *more(name)] for name in names])


def table(head, rows):
    """A Markdown table whose columns line up, so that it reads as plain text too."""
    lines = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def page(title, lines, *, about, command, facts, details, plot=None):
    """A whole page: the table first, then the command, the machine, the details."""
    parts = [f"# {title}", about, lines_table(lines), summary(lines), RULE]
    parts += [f"![ratios]({plot})"] if plot else []
    parts += ["## Command", f"```\n{command}\n```", "## Machine and versions", table(["what", "which"], list(facts.items()))]
    return "\n\n".join([*parts, *details]) + "\n"
