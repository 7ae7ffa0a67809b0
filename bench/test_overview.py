"""Tests of the README's chart: what it reads from the pages, and that the committed one is current."""

import unittest

from compare import overview

PAGE = """# A page

| ms: median (least-most) | 1x16 | 32 ragged | 32 ragged, sorted groups |
|---|---|---|---|
| magray auto | 0.82 (0.74-0.92) | 12.19 (11.46-16.73) | - |
| torch f32 | 1,009.24 (9.04-15.42) | 470.57 (426.29-509.37) | 216.19 (214.18-245.62) |

| another | table |
|---|---|
| torch f32 | 1 |
"""


class Chart(unittest.TestCase):
    def panel(self, column):
        rows = (("magray", "magray auto"), ("PyTorch", "torch f32"))
        return overview.Panel("a panel", "cpu", "ms: median (least-most)", column, rows)

    def test_a_bar_is_the_median_of_its_cell(self):
        self.assertEqual(overview.figures(self.panel("1x16"), PAGE), [("magray", 0.82), ("PyTorch", 1009.24)])

    def test_ours_is_never_sorted(self):
        bars = overview.figures(self.panel("32 ragged, sorted groups"), PAGE)
        self.assertEqual(bars, [("magray", 12.19), ("PyTorch", 216.19)])

    def test_a_figure_that_is_not_there_is_an_error(self):
        with self.assertRaises(KeyError):
            overview.figures(self.panel("64x128"), PAGE)
        with self.assertRaises(ValueError):
            overview.table(PAGE, "no such table")

    def test_figures_have_three_digits_or_all(self):
        self.assertEqual([overview.shown(value) for value in (0.1234, 54.31, 1073.24)], ["0.123", "54.3", "1,073"])

    def test_the_committed_chart_is_made_of_the_committed_pages(self):
        drawn = overview.draw(overview.read_pages())
        self.assertEqual(overview.CHART.read_text(), drawn, "run bench/overview and commit what it writes")


if __name__ == "__main__":
    unittest.main()
