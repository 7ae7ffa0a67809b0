"""Tests of the parts of bench/residency that need no GPU and no peer. Use: python3 -m unittest discover bench"""

import unittest

from compare import residency_report

H200 = "NVIDIA H200"


def report_of(size=16 * 10**9, runs=5, **medians):
    phases = [
        {"phase": phase, "runs": runs, "median_ms": ms, "min_ms": ms - 1, "max_ms": ms + 1} for phase, ms in medians.items()
    ]
    return {"bytes": size, "phases": phases, "memory": [], "failed": 0, "wrong": 0}


def state(name, used, has_worker):
    return {"state": name, "device_used_bytes": used, "magray_used_bytes": 0, "has_worker": has_worker, "pool": None}


class Tables(unittest.TestCase):
    def test_steps_are_judged_on_the_gpu_and_size_that_the_bars_were_set_for(self):
        lines = residency_report.lines(report_of(wake=400.0, offload=120.0, warm=9.0), H200, "it")
        found = [(line.title, line.result) for line in lines]
        self.assertEqual(found, [("it: wake to answer", "hit"), ("it: offload", "MISS")])
        for report, gpu in ((report_of(offload=120.0), "NVIDIA L4"), (report_of(10**9, offload=120.0), H200)):
            self.assertEqual(residency_report.lines(report, gpu, "it"), [])

    def test_fewer_than_five_runs_decide_nothing(self):
        line = residency_report.lines(report_of(runs=2, wake=400.0), H200, "it")[0]
        self.assertEqual(line.result, "undecided: 2 of 5 rounds")

    def test_a_state_without_a_worker_must_hold_nothing(self):
        report = report_of()
        report["memory"] = [
            state("before", 5_000_000, False),
            state("on_cpu", 600_000_000, True),
            state("on_cpu_cold", 5_000_000, False),
            state("released", 5_000_001, False),
        ]
        results = {line.title: (line.ours, line.result) for line in residency_report.lines(report, H200, "it")}
        self.assertEqual(results["it: left on the GPU, on_cpu_cold"], ("0 bytes", "hit"))
        self.assertEqual(results["it: left on the GPU, released"], ("1 bytes", "MISS"))
        self.assertEqual(len(results), 2)

    def test_files_are_judged_by_the_median_of_later_loads(self):
        line = residency_report.file_line(report_of(first_load=400.0, reload=1000.0), H200)
        self.assertEqual((line.ours, line.result), ("16.0 GB/s", "MISS"))
        line = residency_report.file_line(report_of(first_load=4000.0, reload=500.0), H200)
        self.assertEqual((line.ours, line.result), ("32.0 GB/s", "hit"))

    def test_torch_is_told_in_bytes_a_second(self):
        found = {"bytes": 16 * 10**9, "torch": "2.9", "ms": {"to GPU from pinned memory": [320.0, 300.0, 340.0]}}
        text = residency_report.torch_table(found)
        self.assertIn("50.0", text)
        self.assertIn("320.0 (300.0-340.0)", text)

    def test_rounds_tell_everything_that_is_left(self):
        left = dict.fromkeys(
            ["device_bytes", "pool_bytes", "shared_memory_bytes", "file_descriptors", "processes"], 0
        )
        counts = dict.fromkeys(["failed", "refused", "wrong", "other_bits", "loads", "offloads", "resident_max"], 0)
        report = counts | {"rounds": 200, "models": 6, "fit": 3, "seed": 1, "seconds": 9.5, "requests": 7, "left": left}
        words = residency_report.random_words(report)
        self.assertIn("200 rounds over 6 models with room for 3", words)
        self.assertIn("file descriptors 0, processes 0", words)


if __name__ == "__main__":
    unittest.main()
