"""Tests of the parts that need no peer: batches, tables, correlation, `.npy`. Use: python3 -m unittest discover bench"""

import random
import tempfile
import unittest
from pathlib import Path

from compare import machine, npy
from compare.batches import CLS, SEP, flops, make_batches, ragged_lengths
from compare.contenders import ONE_BY_ONE
from compare.correlation import cosine, ranks, spearman
from compare.report import Results, ratio_table, times_table


def results_of(times, cosines, precisions):
    """Results with these times; names that begin with `magray` are ours."""
    ours = {name for name in times if name.startswith("magray")}
    batches = {case: [[CLS, SEP]] for case in ("1x16", "1x128", "32x128", "32 ragged")}
    results = Results(precisions=precisions, ours=ours, batches=batches)
    results.times = times
    results.cosines = {name: {"32x128": value} for name, value in cosines.items()}
    return results


class Ratios(unittest.TestCase):
    def test_a_fast_but_wrong_peer_does_not_count(self):
        results = results_of(
            {"wrong": {"32x128": [10.0]}, "right": {"32x128": [30.0]}, "magray auto": {"32x128": [6.0]}},
            {"wrong": 0.876, "right": 0.9999, "magray auto": 0.9999},
            {"wrong": "int8", "right": "bf16", "magray auto": "auto"},
        )
        self.assertEqual(results.best_peer(["32x128"]), ("right", "32x128"))
        self.assertIn("5.00 (5.00-5.00)", ratio_table(results))
        self.assertIn("holds", ratio_table(results))

    def test_a_peer_that_was_not_compared_does_not_count(self):
        results = results_of({"unknown": {"1x16": [1.0]}}, {}, {"unknown": "f32"})
        self.assertIsNone(results.best_peer(["1x16"]))

    def test_the_ratio_pairs_the_rounds(self):
        times = {"peer": {"32x128": [10.0, 40.0, 30.0]}, "magray auto": {"32x128": [5.0, 10.0, 10.0]}}
        results = results_of(times, {"peer": 1.0, "magray auto": 1.0}, {"peer": "f32", "magray auto": "auto"})
        self.assertEqual(results.ratio("magray auto", "peer", "32x128", "32x128"), (3.0, 2.0, 4.0))
        # The fastest rounds decide; the medians stand beside them.
        self.assertRegex(ratio_table(results), r"\| 5\.00 +\| peer +\| 10\.00 +\| 2\.00 +\| 3\.0x \| MISSED +\| 10\.00, 3\.00 \(2\.00-4\.00\)")

    def test_too_slow_is_missed_and_inaccurate_is_said(self):
        times = {"peer": {"32x128": [10.0]}, "magray auto": {"32x128": [5.0]}}
        precisions = {"peer": "f32", "magray auto": "auto"}
        slow = results_of(times, {"peer": 1.0, "magray auto": 1.0}, precisions)
        self.assertIn("MISSED", ratio_table(slow))
        wrong = results_of(times, {"peer": 1.0, "magray auto": 0.5}, precisions)
        self.assertIn("NOT ACCURATE", ratio_table(wrong))

    def test_ragged_texts_run_alone_count_where_they_are_faster(self):
        times = {"peer": {"32 ragged": [90.0], ONE_BY_ONE: [40.0]}, "magray auto": {"32 ragged": [10.0]}}
        results = results_of(times, {"peer": 1.0, "magray auto": 1.0}, {"peer": "f32", "magray auto": "auto"})
        self.assertIn("peer, each alone", ratio_table(results))
        self.assertIn("9.00", ratio_table(results))
        self.assertIn("4.00", ratio_table(results))

    def test_the_f32_lines_look_at_f32_peers_only(self):
        times = {"half": {"1x16": [1.0]}, "full": {"1x16": [4.0]}, "magray f32 avx512": {"1x16": [2.0]}}
        precisions = {"half": "bf16", "full": "f32", "magray f32 avx512": "f32"}
        results = results_of(times, dict.fromkeys(times, 1.0), precisions)
        self.assertIn("2.00 (2.00-2.00)", ratio_table(results))

    def test_a_missing_case_is_a_dash(self):
        results = results_of({"peer": {"1x16": [1.0, 3.0]}}, {}, {"peer": "f32"})
        self.assertRegex(times_table(results), r"peer +\| 2\.00 \(1\.00-3\.00\) \| - ")


class Batches(unittest.TestCase):
    def test_the_seed_fixes_the_batches_and_each_text_is_whole(self):
        batches = make_batches()
        self.assertEqual(batches, make_batches())
        self.assertEqual([len(ids) for ids in batches["32x128"]], [128] * 32)
        for ids in batches["32 ragged"]:
            self.assertEqual((ids[0], ids[-1]), (CLS, SEP))
            self.assertTrue(all(1000 <= token < 29000 for token in ids[1:-1]))

    def test_ragged_lengths_stay_in_their_bounds(self):
        lengths = ragged_lengths(random.Random(1), 5000)
        self.assertEqual((min(lengths), max(lengths)), (5, 256))
        self.assertTrue(19 <= sorted(lengths)[2500] <= 27)

    def test_the_work_of_a_text_is_that_of_its_matrices(self):
        self.assertEqual(flops([[0] * 128]), 128 * 6 * 2 * (1_769_472 + 2 * 128 * 384))


class Numbers(unittest.TestCase):
    def test_ties_share_their_mean_rank(self):
        self.assertEqual(ranks([3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0])
        self.assertAlmostEqual(spearman([1, 2, 3, 4], [10, 20, 30, 25]), 0.8)
        self.assertAlmostEqual(spearman([1, 2, 3], [9, 5, 1]), -1.0)

    def test_cosine_of_nothing_is_zero(self):
        self.assertEqual(cosine([0.0, 0.0], [1.0, 0.0]), 0.0)
        self.assertAlmostEqual(cosine([1.0, 1.0], [2.0, 2.0]), 1.0)

    def test_npy_round_trips_and_refuses_a_cut_file(self):
        rows = [(0.5, -1.25, 3.0), (0.0, 1.0, -2.0)]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "rows.npy")
            npy.write_f16_rows(file, rows)
            self.assertEqual(npy.read_rows(file), rows)
            file.write_bytes(file.read_bytes()[:-1])
            with self.assertRaisesRegex(ValueError, "cut short"):
                npy.read_rows(file)

    def test_short_words_are_never_scrubbed(self):
        self.assertTrue(all(len(word) > 4 for word in machine.private_words("/", "a", "")))


if __name__ == "__main__":
    unittest.main()
