"""Tests of the comparison through HTTP: its bodies, its figures and its verdicts. Needs no server and no peer."""

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import http_report
from compare.http_cases import CASES, LONG, OVERLOADS, SHORT, Case, bodies, words_of
from compare.http_report import Figures, Results

WORDS = ["cat", "dog", "river", "stone"]


def answer(answered, seconds=2.0, broken=0, **statuses):
    times = lambda count, p99: {"count": count, "mean_ms": 1.5, "p50_ms": 1.0, "p99_ms": p99}
    return {
        "seconds": seconds,
        "answered_in_time": answered,
        "broken": broken,
        "statuses": {status.lstrip("s"): times(*found) for status, found in statuses.items()},
        "since_sent": {status.lstrip("s"): times(*found) for status, found in statuses.items()},
        "lateness": times(1, 0.5),
    }


class Durations(unittest.TestCase):
    def test_a_request_takes_its_median_or_is_too_slow_to_be_counted(self):
        self.assertEqual(http_report.request_seconds(answer(2, s200=(2, 1.0)), 8.0), 0.001)
        self.assertEqual(http_report.request_seconds(answer(0), 8.0), 8.0)


class Bodies(unittest.TestCase):
    def test_texts_have_the_tokens_they_are_to_have(self):
        lines = bodies(Case(32, LONG, 4), WORDS, "m").splitlines()
        texts = json.loads(lines[0])["input"]
        self.assertEqual((len(texts), {len(text.split()) for text in texts}), (32, {LONG - 2}))
        self.assertGreater(len(set(lines)), 1)

    def test_a_case_has_the_same_bodies_in_every_run_and_at_any_number_of_connections(self):
        self.assertEqual(bodies(Case(1, SHORT, 1), WORDS, "m"), bodies(Case(1, SHORT, 64), WORDS, "m"))

    def test_only_whole_plain_words_are_used(self):
        vocabulary = {"[CLS]": 0, "##ing": 1, "an": 2, "cat": 3, "Dog": 4, "x1y": 5, "été": 6}
        self.assertEqual(words_of({"model": {"vocab": vocabulary}}), ["cat"])

    def test_names_tell_cases_apart(self):
        names = [case.name for case in CASES] + [overload.name for overload in OVERLOADS]
        self.assertEqual(len(names), len(set(names)))
        self.assertLessEqual({overload.kind.name for overload in OVERLOADS}, set(names))


class Report(unittest.TestCase):
    def test_throughput_counts_answers_of_the_measured_time(self):
        found = http_report.figures_of(answer(50, s200=(60, 9.0)), 32)
        self.assertEqual(found, Figures(800.0, 1.0, 9.0, 1.5))

    def results(self, ours, engine, peer):
        results = Results()
        for name, figures in [("magray", ours), ("bare engine", engine), ("infinity-emb torch", peer)]:
            results.add(name, "32 short, 1 conn.", Figures(figures, 1.0, 2.0, 32_000 / figures))
        return results

    def test_the_least_disturbed_round_counts(self):
        results = Results()
        for texts, p50 in [(500.0, 4.0), (900.0, 2.0), (700.0, 3.0)]:
            results.add("magray", "a case", Figures(texts, p50, 9.0, p50))
        self.assertEqual([results.best("magray", "a case", what) for what in ("texts_per_s", "p50_ms")], [900.0, 2.0])

    def test_the_best_goodput_and_peak_and_the_middle_of_all_else_count(self):
        results = Results()
        for answered, p99 in [(10, 3.0), (20, 4.0), (5, 30.0)]:
            found = http_report.strain_of(answer(answered, s200=(9, 5.0), s429=(9, p99)), 32, 320.0, 64.0)
            results.add_strain("load", found)
        strain = results.strain("load")
        self.assertEqual((strain.share, strain.refused_p99_ms, strain.refused), (1.0, 4.0, 27))

    def test_what_holds_is_not_complained_of(self):
        results = self.results(950.0, 1000.0, 100.0)
        self.assertEqual(http_report.verdicts(results), [])
        self.assertIn("9.5 x infinity-emb torch", http_report.ratio_table(results))

    def test_one_connection_is_judged_by_what_each_request_tells(self):
        results = self.results(600.0, 1000.0, 100.0)
        for share in (0.93, 0.91, 0.97):
            results.add("magray", "32 short, 1 conn.", Figures(600.0, 1.0, 2.0, 50.0, share))
        self.assertEqual(results.share_of_engine("32 short, 1 conn."), 0.93)
        self.assertEqual(http_report.verdicts(results), [])
        self.assertIn("60%", http_report.ratio_table(results))

    def test_against_peers_only_the_rounds_count_that_they_ran_too(self):
        results = self.results(600.0, 1000.0, 100.0)
        results.add("magray", "32 short, 1 conn.", Figures(900.0, 1.0, 2.0, 1.5))
        self.assertEqual(results.best_peer("32 short, 1 conn."), ("infinity-emb torch", 6.0))

    def test_what_does_not_hold_is_named(self):
        found = http_report.verdicts(self.results(800.0, 1000.0, 400.0))
        self.assertEqual(
            found,
            [
                "32 short, 1 conn.: 80% of the bare engine, not 90%",
                "32 short, 1 conn.: 2.0 times infinity-emb torch, not 5",
            ],
        )

    def test_overload_is_judged_by_goodput_refusals_and_other_answers(self):
        results = Results()
        strained = answer(10, broken=1, s200=(10, 50.0), s429=(90, 7.0), s503=(2, 1.0))
        results.add_strain("load", http_report.strain_of(strained, 32, 200.0, 64.0))
        found = http_report.verdicts(results)
        self.assertEqual(
            found,
            [
                "load: 80% of the peak, not 95%",
                "load: refusals within 7.0 ms, not 5",
                "load: 3 answers that were neither vectors nor refusals",
            ],
        )
        self.assertIn("160 (80%)", http_report.strain_table(results))


if __name__ == "__main__":
    unittest.main()
