"""Tests of the parts that need no peer: batches, tables, correlation, `.npy`. Use: python3 -m unittest discover bench"""

import os
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from compare import cpu_report, environment, machine, npy
from compare.batches import CLS, SEP, flops, make_batches, ragged_lengths, sorted_groups
from compare.contenders import ONE_BY_ONE, RAGGED, SORTED
from compare.correlation import cosine, ranks, spearman
from compare.cpu_report import Results


def results_of(times, cosines, precisions):
    """Results with these times in each of five rounds; names that begin with `magray` are ours."""
    ours = {name for name in times if name.startswith("magray")}
    results = Results(precisions=precisions, ours=ours, batches=make_batches())
    for name, cases in times.items():
        for case, ms in cases.items():
            for number in range(1, 6):
                results.figures.add(name, case, number, ms)
    results.cosines = {name: {"32x128": value} for name, value in cosines.items()}
    return results


def line_of(results, title):
    return next(line for line in cpu_report.lines(results) if line.title == title)


class Programs(unittest.TestCase):
    def test_load_programs_lie_beside_the_binary_or_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            magray, bench, other = (Path(folder, name) for name in ("magray", "magray-bench", "other"))
            for program in (magray, bench, other):
                program.write_text("")
                program.chmod(0o755)
            with mock.patch.dict(os.environ, {"MAGRAY_BIN": str(magray)}):
                self.assertEqual(environment.bench_binary(), str(bench))
                with mock.patch.dict(os.environ, {"MAGRAY_BENCH_BIN": str(other)}):
                    self.assertEqual(environment.bench_binary(), str(other))
                bench.unlink()
                self.assertRaises(environment.Missing, environment.bench_binary)


class Lines(unittest.TestCase):
    def test_a_fast_but_wrong_peer_does_not_count(self):
        results = results_of(
            {"wrong": {"32x128": 10.0}, "right": {"32x128": 30.0}, "magray auto": {"32x128": 6.0}},
            {"wrong": 0.876, "right": 0.9999, "magray auto": 0.9999},
            {"wrong": "int8", "right": "bf16", "magray auto": "auto"},
        )
        line = line_of(results, "default: 32 x 128 tokens")
        self.assertEqual((line.peer, line.ratio.median, line.result), ("right", 5.0, "hit"))
        self.assertIn("no: not accurate", cpu_report.equal_precision_table(results))

    def test_a_peer_that_was_not_compared_does_not_count(self):
        results = results_of({"unknown": {"1x16": 1.0}}, {}, {"unknown": "f32"})
        self.assertEqual(results.peers("1x16"), {})

    def test_ours_that_is_not_accurate_is_a_miss_however_fast(self):
        times = {"peer": {"32x128": 90.0}, "magray auto": {"32x128": 5.0}}
        wrong = results_of(times, {"peer": 1.0, "magray auto": 0.5}, {"peer": "f32", "magray auto": "auto"})
        self.assertEqual(line_of(wrong, "default: 32 x 128 tokens").result, "MISS: not accurate")

    def test_of_ragged_texts_the_best_way_of_a_peer_counts(self):
        times = {"peer": {RAGGED: 90.0, ONE_BY_ONE: 60.0, SORTED: 40.0}, "magray auto": {RAGGED: 10.0}}
        results = results_of(times, {"peer": 1.0, "magray auto": 1.0}, {"peer": "bf16", "magray auto": "auto"})
        line = line_of(results, "default: 32 ragged texts")
        self.assertEqual((line.peer, line.ratio.median, line.result), ("peer, sorted groups", 4.0, "MISS"))
        self.assertIn("4.00 (4.00-4.00)", cpu_report.equal_precision_table(results))

    def test_the_f32_lines_look_at_f32_peers_only(self):
        times = {"half": {"1x128": 1.0}, "full": {"1x128": 2.4}, "magray f32": {"1x128": 2.0}}
        results = results_of(times, dict.fromkeys(times, 1.0), {"half": "bf16", "full": "f32", "magray f32": "f32"})
        line = line_of(results, "f32: 1 x 128 tokens")
        self.assertEqual((line.peer, line.ratio.median, line.result), ("full", 1.2, "MISS"))

    def test_a_missing_case_is_a_dash(self):
        results = results_of({"peer": {"1x16": 2.0}}, {}, {"peer": "f32"})
        self.assertRegex(cpu_report.times_table(results), r"peer +\| 2\.00 \(2\.00-2\.00\) \| - ")

    def test_peers_that_pad_are_run_in_sorted_groups(self):
        groups = sorted_groups([[1] * length for length in (9, 3, 7, 5, 2, 8, 1, 4, 6, 10)])
        self.assertEqual([list(map(len, group)) for group in groups], [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])


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
