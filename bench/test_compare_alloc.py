"""Tests of the parts of the allocators' comparison that need no GPU and no peer. Use: python3 -m unittest discover bench"""

import gzip
import json
import stat
import tempfile
import unittest
from pathlib import Path

from compare import alloc_contenders, alloc_report
from compare.alloc_contenders import ASYNC, OURS, TORCH, Contender
from compare.alloc_report import AllocResults
from compare.contenders import Unavailable


def pair(case, p50, p99=None):
    return {"case": case, "pairs": 10, "p50_ns": p50, "p99_ns": p99 or p50, "mean_ns": p50, "driver_calls": 0}


def waste(case, used, reserved):
    found = {"peak_used_bytes": used << 20, "peak_reserved_bytes": reserved << 20, "wasted": 1 - used / reserved}
    return {"case": case, "allocations": 3, **found}


class Lines(unittest.TestCase):
    def results(self, ours=100, theirs=1000, reserved=102):
        results = AllocResults()
        for number in range(1, 6):
            held = [pair("1000 alive, up to 256 KiB", ours), pair("100000 alive, up to 256 KiB", ours * 1.4)]
            results.add(OURS, number, [{"clock_ns": 20}, pair("64 KiB", ours), *held])
            results.add(ASYNC, number, [{"clock_ns": 30}, pair("64 KiB", theirs)])
            results.add(TORCH, number, [{"clock_ns": 30, "by": "python"}, pair("64 KiB", theirs + 1)])
        results.add(OURS, 0, [waste("load", 100, reserved)])
        results.add(ASYNC, 0, [waste("load", 100, 125)])
        return results

    def test_what_holds_and_what_is_missed(self):
        good = [line.result for line in alloc_report.lines(self.results(), ["load"])]
        self.assertEqual([word.split()[0] for word in good], ["hit", "-", "-", "hit", "hit", "hit", "hit"])
        bad = [line.result for line in alloc_report.lines(self.results(ours=400, reserved=120), ["load"])]
        self.assertEqual([word.split()[0] for word in bad], ["MISS", "-", "-", "MISS", "hit", "MISS", "MISS"])

    def test_the_ratio_takes_both_clocks_off(self):
        ratio = lambda results: results.net.ratio((ASYNC, "64 KiB"), (OURS, "64 KiB")).median
        self.assertAlmostEqual(ratio(self.results()), 970 / 80)
        self.assertAlmostEqual(ratio(self.results(ours=20)), 970)

    def test_what_did_not_run_is_told_in_its_place(self):
        results = self.results()
        results.add(ASYNC, 1, [{"case": "1000 alive, up to 256 KiB", "skipped": "too slow"}])
        self.assertRegex(alloc_report.times_table(results), r"1000 alive, up to 256 KiB +\| 100, 100 +\| too slow")
        self.assertIn("125.0 (20.00%)", alloc_report.waste_table(results))


class Programs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)

    def program(self, body):
        file = self.path / "program"
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return Contender("it", [str(file)])

    def test_lines_that_are_not_json_are_passed_over(self):
        lines = self.program('echo hello; echo \'{"clock_ns": 3}\'').answers(["--live", 5])
        self.assertEqual(lines, [{"clock_ns": 3}])

    def test_a_program_that_fails_tells_its_last_words(self):
        with self.assertRaisesRegex(Unavailable, "ended with 3: no GPU"):
            self.program("echo no GPU >&2; exit 3").answers([])
        with self.assertRaises(Unavailable):
            Contender("none", [str(self.path / "none")]).answers([])

    def test_survivors_give_back_what_they_took(self):
        for stay, left in ((False, 1), (True, 1000)):
            lines = [line.split() for line in alloc_contenders.survivors(stay)]
            taken = {words[1] for words in lines if words[0] == "a"}
            given = {words[1] for words in lines if words[0] == "f"}
            self.assertEqual((len(taken), len(taken - given), given <= taken), (3000, left, True))

    def test_recorded_traces_are_unpacked(self):
        packed = self.path / "load.trace.gz"
        packed.write_bytes(gzip.compress(b"a 1 100\nf 1\n"))
        files = alloc_contenders.gather_traces(self.path, [packed])
        self.assertEqual([file.name for file in files], ["survivors-go", "survivors-stay", "load.trace"])
        self.assertEqual(files[2].read_text(), "a 1 100\nf 1\n")

    def test_flags_suit_each_program(self):
        ours = alloc_contenders.pair_flags(OURS, 0.5)
        theirs = alloc_contenders.pair_flags(ASYNC, 0.5)
        self.assertIn("1000,10000,100000", ours)
        self.assertEqual((theirs.count("--live"), "--seconds" in ours, "--seconds" in theirs), (3, False, True))
        self.assertEqual(json.dumps(alloc_contenders.trace_flags(["a", "b"])), '["--trace", "a", "--trace", "b"]')


if __name__ == "__main__":
    unittest.main()
