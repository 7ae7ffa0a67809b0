"""Tests of the charts of the pages: what they read from raw output, their one style, and that the committed ones are current."""

import re
import unittest
import xml.etree.ElementTree

from compare import charts, overview, style

ROUNDS = """round 1: magray: a case: 4.0 ms, recall 1.0
round 1: other: a case: 9.0 ms
second command
round 1: magray: a case: 1.0 ms
round 1: other: a case: 5.0 ms
round 2: other: a case: 7.0 ms
round 2: magray: a case: 3.0 ms
round 3: magray: a case: 2.0 ms
round 1: magray: another case: 8.0 ms
"""


class Charts(unittest.TestCase):
    def test_rounds_are_gathered_and_the_last_command_counts(self):
        names = {"magray": "magray", "other": "a peer"}
        groups = charts.groups_of_rounds(ROUNDS, {"a case": "A case", "another case": "Another"}, "ms", names)
        self.assertEqual(groups[0].bars, {"magray": [1.0, 3.0, 2.0], "a peer": [5.0, 7.0]})
        self.assertEqual((groups[1].title, groups[1].bars), ("Another", {"magray": [8.0]}))

    def test_a_case_without_figures_is_an_error(self):
        with self.assertRaises(ValueError):
            charts.groups_of_rounds(ROUNDS, {"no such case": "x"}, "ms", {"magray": "magray"})
        for read in (charts.chat, charts.search, charts.decoders_h200, charts.http_gpu):
            with self.assertRaises((ValueError, KeyError)):
                read("round 1: nothing: of it: 1 ms")

    def test_a_bar_is_the_median_and_a_line_goes_from_least_to_most(self):
        group = charts.Group("a & b", "ms", {"magray": [1.0, 4.0, 2.0], "peer": [8.0]})
        drawn = charts.draw("title", [group], "note")
        self.assertIn("a &amp; b", drawn)
        bars = re.findall(r'width="([\d.]+)" height="14" rx="2" class="(\w+)"', drawn)
        self.assertEqual(bars, [(f"{charts.BAR * 2 / 8:.1f}", "ours"), (f"{charts.BAR:.1f}", "peer")])
        self.assertEqual(drawn.count('class="spread"'), 1)

    def test_figures_are_those_of_the_pages(self):
        figures = {
            "chat": ("2,981 tokens/s", "735 tokens/s"), "search": ("20.8 ms", "87 ms"), "decoders-h200": ("51,558 tokens/s", "3,743 tokens/s"),
            "generate-h200": ("30,327 tokens/s", "252 tokens/s"), "http-gpu": ("939,973 texts/s", "1,033,387 texts/s"),
            "residency": ("22.4 ms", "360 ms"), "search-h200": ("0.214 ms", "22.8 ms"),
        }
        for one in charts.CHARTS:
            text = charts.chart(one.stem)
            for figure in figures.get(one.stem, ()):
                self.assertIn(f">{figure}<", text, one.stem)

    def test_every_chart_has_the_one_style_in_light_and_dark_and_nothing_foreign(self):
        for name, text in {**charts.all_charts(), "overview.svg": overview.draw(overview.read_pages())}.items():
            root = xml.etree.ElementTree.fromstring(text)
            self.assertTrue(root.find("{http://www.w3.org/2000/svg}title").text, name)
            self.assertIn("prefers-color-scheme: dark", text, name)
            body = text.replace(style.CSS, "")
            self.assertIsNone(re.search(r"#[0-9a-f]{6}|<script|href|@import|url\(", body), name)
            known = set(re.findall(r"\.([a-z-]+)", style.CSS))
            self.assertLessEqual(set(re.findall(r'class="([a-z-]+)"', body)), known, name)

    def test_the_committed_charts_are_made_of_the_committed_figures(self):
        for name, text in charts.all_charts().items():
            self.assertEqual((charts.FOLDER / name).read_text(), text, f"run bench/charts and commit what it writes: {name}")

    def test_every_chart_is_shown_on_its_page(self):
        for name in charts.all_charts():
            page = (charts.FOLDER / name).with_suffix(".md").read_text()
            self.assertIn(f"]({name})", page)


if __name__ == "__main__":
    unittest.main()
