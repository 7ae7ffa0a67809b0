"""Tests of the one rule, of the lines of a page and of its plot. Use: python3 -m unittest discover bench"""

import tempfile
import unittest
from pathlib import Path

from compare import pages, plot
from compare.report import Bar, Line, judged, lines_table, page, summary
from compare.rounds import HIT, MISS, Figures, orders, verdict


def figures_of(**rounds):
    """Figures of contenders on one case."""
    figures = Figures()
    for name, values in rounds.items():
        for number, value in enumerate(values, 1):
            figures.add(name, "case", number, value)
    return figures


def line_of(bar, **rounds):
    peers = {(name, "case"): name for name in rounds if name != "ours"}
    return judged("a line", figures_of(**rounds), ("ours", "case"), peers, bar)


class Rule(unittest.TestCase):
    def test_the_median_decides_where_the_fastest_round_says_hit(self):
        # Fastest of each: 30 / 10 = 3x. Within the rounds: 1.5, 2, 2.5, 2, 3: the median is 2x.
        rounds = dict(ours=[20, 20, 20, 20, 10], peer=[30, 40, 50, 40, 30])
        line = line_of(Bar(ratio=3.0), **rounds)
        self.assertEqual(min(rounds["peer"]) / min(rounds["ours"]), 3.0)
        self.assertEqual((line.ratio.median, line.result), (2.0, MISS))
        self.assertIn("2.00 (1.50-3.00)", lines_table([line]))

    def test_the_median_decides_where_the_fastest_round_says_miss(self):
        line = line_of(Bar(ratio=3.0), ours=[10, 10, 10, 10, 10], peer=[10, 31, 32, 33, 34])
        self.assertEqual((line.ratio.median, line.result), (3.2, HIT))

    def test_the_median_of_ratios_is_not_the_ratio_of_medians(self):
        figures = figures_of(ours=[1, 2, 3, 4, 5], peer=[10, 8, 6, 4, 2])
        self.assertEqual(figures.ratio(("peer", "case"), ("ours", "case")).median, 2.0)
        figures = figures_of(ours=[1, 1, 3, 3, 3], peer=[9, 9, 3, 9, 9])
        self.assertEqual(figures.ratio(("peer", "case"), ("ours", "case")).median, 3.0)

    def test_fewer_than_five_rounds_decide_nothing(self):
        line = line_of(Bar(ratio=2.0), ours=[1, 1, 1, 1], peer=[9, 9, 9, 9])
        self.assertEqual(line.result, "undecided: 4 of 5 rounds")
        self.assertEqual(verdict(None, lambda _: True), "undecided: 0 of 5 rounds")

    def test_a_round_that_one_of_both_lacks_makes_no_ratio(self):
        figures = Figures()
        for number in (1, 2, 3):
            figures.add("ours", "case", number, 1.0)
        figures.add("peer", "case", 3, 7.0)
        self.assertEqual(figures.ratio(("peer", "case"), ("ours", "case")).rounds, (7.0,))
        self.assertIsNone(figures.ratio(("none", "case"), ("ours", "case")))

    def test_the_best_peer_is_the_one_with_the_lowest_median_ratio(self):
        line = line_of(Bar(ratio=1.0), ours=[1] * 5, once_fast=[1, 9, 9, 9, 9], steady=[4] * 5)
        self.assertEqual((line.peer, line.ratio.median), ("steady", 4.0))

    def test_rates_are_better_when_higher(self):
        figures = figures_of(ours=[90] * 5, peer=[30] * 5)
        line = judged("a line", figures, ("ours", "case"), {("peer", "case"): "peer"}, Bar(ratio=5.0), "texts/s", more_is_better=True)
        self.assertEqual((line.ratio.median, line.result), (3.0, MISS))

    def test_every_other_round_is_reversed(self):
        self.assertEqual(list(orders(3, ["a", "b"])), [(1, ["a", "b"]), (2, ["b", "a"]), (3, ["a", "b"])])


class Pages(unittest.TestCase):
    def lines(self):
        slow = line_of(Bar(ratio=3.0), ours=[10] * 5, peer=[26] * 5)
        late = line_of(Bar(at_most=9.0), ours=[10] * 5)
        return [slow, late, Line("recorded", "5 ms")]

    def test_a_miss_is_printed_as_a_miss(self):
        text = page("Title", self.lines(), about="About.", command="bench/x", facts={"cores": "2"}, details=["## More"])
        self.assertRegex(text, r"a line +\| 10\.00 ms +\| peer +\| 26\.00 ms +\| 2\.60 \(2\.60-2\.60\) +\| >= 3x +\| MISS")
        self.assertRegex(text, r"a line +\| 10\.00 ms +\| none +\| - +\| - +\| <= 9 ms +\| MISS")
        self.assertIn("**0 of 2 bars hit.** Missed: a line; a line.", text)

    def test_the_table_comes_first_then_the_command_then_the_machine(self):
        text = page("Title", self.lines(), about="About.", command="bench/x", facts={"cores": "2"}, details=["## More"])
        places = [text.index(part) for part in ("| line", "bench/x", "| cores", "## More")]
        self.assertEqual(places, sorted(places))

    def test_undecided_lines_are_not_counted_as_hit(self):
        words = summary([line_of(Bar(ratio=1.0), ours=[1], peer=[2])])
        self.assertEqual(words, "**0 of 1 bars hit, 1 undecided.**")

    def test_a_page_names_no_word_of_the_machine_and_has_its_raw_output_beside_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "cpu.md")
            pages.write(path, "in secret-folder", ["secret-folder 1"], ["secret-folder"], "<svg/>")
            self.assertEqual(path.read_text(), "in ...")
            self.assertEqual(Path(folder, "raw", pages.raw_name("cpu")).read_text(), "... 1\n")
            self.assertEqual(Path(folder, "cpu.svg").read_text(), "<svg/>")

    def test_a_plot_marks_hit_miss_and_the_bar(self):
        good = line_of(Bar(ratio=2.0), ours=[1] * 5, peer=[4] * 5)
        text = plot.ratios(page("Title", [good, *self.lines()], about="", command="x", facts={}, details=[]))
        count = lambda kind: text.count(f'class="{kind}"')
        self.assertEqual((count("ours"), count("missed"), count("asked")), (1, 1, 2))
        recorded = page("Title", [Line("recorded", "5 ms")], about="", command="x", facts={}, details=[])
        self.assertIsNone(plot.ratios(recorded))


if __name__ == "__main__":
    unittest.main()
