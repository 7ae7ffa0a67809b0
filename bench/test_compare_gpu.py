"""Tests of the parts of the GPU's comparison that need no GPU and no peer. Use: python3 -m unittest discover bench"""

import importlib.metadata
import json
import stat
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from compare import gpu_probes, gpu_report, gpu_ways, machine, nvml
from compare.contenders import Unavailable
from compare.gpu_cases import BY_TITLE, CASES, MINILM, SHAPES, make_batches
from compare.gpu_contenders import GpuInputs, MagrayOn
from compare.gpu_report import OURS, GpuResults
from compare.rounds import run_rounds
from compare.safetensors import Unsound, halved, joined, split


def results_of(times, cosines=None):
    """Results with these times in each of five rounds."""
    precisions = {name: "f32" if name.endswith("f32") else "f16" for name in times}
    results = GpuResults(precisions=precisions, ours={OURS, "magray f16", "magray f32"}, batches=make_batches(rehearse=True))
    for name, cases in times.items():
        for case, ms in cases.items():
            for number in range(1, 6):
                results.figures.add(name, case, number, ms)
    results.cosines = cosines or {}
    return results


def line_of(results, gpu_name="NVIDIA H200"):
    return gpu_report.lines(results, gpu_name)[0]


class Cases(unittest.TestCase):
    def test_the_ragged_batches_have_the_tokens_that_the_targets_were_set_for(self):
        batches = make_batches()
        self.assertEqual(batches, make_batches())
        lengths = {title: list(map(len, batch)) for title, batch in batches.items()}
        self.assertEqual((sum(lengths["MiniLM ragged 32"]), max(lengths["MiniLM ragged 32"])), (869, 98))
        self.assertEqual((sum(lengths["MiniLM ragged 512"]), max(lengths["MiniLM ragged 512"])), (15193, 228))
        self.assertEqual(lengths["bge-base 512"], [128] * 512)

    def test_the_weights_of_minilm_are_counted(self):
        self.assertEqual(SHAPES[MINILM].weights(), 22_565_376)

    def test_a_rehearsal_is_small_and_keeps_every_case(self):
        small = make_batches(rehearse=True)
        self.assertEqual(list(small), [case.title for case in CASES])
        self.assertTrue(all(len(batch) <= 8 and max(map(len, batch)) <= 64 for batch in small.values()))
        self.assertGreater(len(set(map(len, small["MiniLM ragged 32"]))), 1)

    def test_ways_take_what_they_can(self):
        self.assertFalse(gpu_ways.takes(gpu_ways.NO_MASK, "MiniLM ragged 32"))
        self.assertFalse(gpu_ways.takes(gpu_ways.SORTED, "MiniLM 32"))
        self.assertTrue(all(gpu_ways.takes(gpu_ways.GRAPH, title) for title in BY_TITLE))
        compiled = [title for title in BY_TITLE if gpu_ways.takes(gpu_ways.COMPILED, title)]
        self.assertEqual(compiled, ["MiniLM 512", "bge-base 512"])


class Tables(unittest.TestCase):
    def test_a_time_is_judged_on_the_right_gpu_only(self):
        results = results_of({"peer": {"MiniLM 512": 6.0}, OURS: {"MiniLM 512": 4.0}})
        line = line_of(results)
        self.assertEqual((line.ratio.median, line.bar, line.result), (1.5, "<= 3.8 ms", "MISS"))
        self.assertEqual(line_of(results, "NVIDIA A100").result, "-")
        self.assertEqual(line_of(results_of({OURS: {"MiniLM 512": 3.8}})).result, "hit")
        self.assertRegex(gpu_report.goals_table(results), r"MiniLM 512 +\| 2\.6 +\| 4\.000 .*\| MISS")

    def test_vectors_that_were_compared_and_are_wrong_do_not_count(self):
        times = {"peer": {"MiniLM 1": 0.1}, "other": {"MiniLM 1": 0.3}, OURS: {"MiniLM 1": 0.1}}
        self.assertEqual(line_of(results_of(times)).peer, "peer")
        wrong = results_of(times, {"peer": {"MiniLM 1": 0.5}, OURS: {"MiniLM 1": 0.9}})
        self.assertEqual((line_of(wrong).peer, line_of(wrong).result), ("other", "MISS: not accurate"))

    def test_equal_precisions_stand_beside_each_other(self):
        times = {"torch graph f16": {"MiniLM 1": 0.3}, "torch graph f32": {"MiniLM 1": 0.9}}
        ours = {"magray f16": {"MiniLM 1": 0.1}, "magray f32": {"MiniLM 1": 0.6}}
        text = gpu_report.equal_precision_table(results_of(times | ours))
        self.assertRegex(text, r"torch graph f16 +\| magray f16 +\| 3\.00")
        self.assertRegex(text, r"torch graph f32 +\| magray f32 +\| 1\.50")

    def test_a_case_that_was_not_measured_has_no_row(self):
        found = gpu_report.lines(results_of({OURS: {"MiniLM 32": 0.4}}), "NVIDIA H200")
        self.assertEqual([(line.title, line.peer) for line in found], [("MiniLM 32 texts", "none")])

    def test_products_have_a_rate_and_the_best_one_is_the_floor(self):
        products = [(MINILM, 384, 1536, {4096: 48.0, 65536: 165.0})]
        self.assertAlmostEqual(gpu_report.best_tflops(products), 2 * 65536 * 384 * 1536 / 165.0 / 1e6)
        self.assertIn("165.0 us, 469", gpu_report.products_table(products))
        results = results_of({OURS: {"MiniLM 1": 1.0}})
        self.assertRegex(gpu_report.work_table(results, []), r"MiniLM 1 .*\| - +\| - ")
        self.assertIsNone(gpu_report.best_tflops([]))

    def test_memory_beyond_the_weights_has_a_limit(self):
        text = gpu_report.memory_table([("f32", 10**9, 2_090_000_000, 90_000_000), ("bf16", 0, 1_046_000_000, 45_000_000)])
        self.assertRegex(text, r"f32 .*\| 1090 +\| 90 +\| 1000 +\| hit")
        self.assertRegex(text, r"bf16 .*\| 1001 +\| MISS")

    def test_a_page_is_named_by_its_gpu(self):
        names = {"NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb", "NVIDIA GeForce RTX 4090": "rtx-4090"}
        self.assertEqual({name: gpu_report.page_name(name) for name in names}, names)
        self.assertEqual(gpu_report.page_name("NVIDIA"), "gpu")


class Rounds(unittest.TestCase):
    def test_every_other_round_is_reversed_and_a_failure_ends_one_contender_only(self):
        asked = []

        class Contender:
            def __init__(self, name):
                self.name = name

            def takes(self, case):
                return (self.name, case) != ("b", "y")

            def median_ms(self, case, _seconds):
                asked.append(self.name + case)
                if self.name == "c":
                    raise Unavailable("broken")
                return 1.0

        results = results_of({})
        plan = SimpleNamespace(rounds=2, seconds=0.1)
        run_rounds([Contender("a"), Contender("b"), Contender("c")], ["x", "y"], plan, results, lambda _line: None)
        self.assertEqual(asked, ["ax", "bx", "cx", "ay", "bx", "ax", "ay"])
        self.assertEqual(results.refused, {"c": "broken"})
        self.assertEqual([results.figures.spread("a", case).rounds for case in "xy"], [(1.0, 1.0)] * 2)


class Binary(unittest.TestCase):
    """A stand-in for magray that prints a fixed report and keeps its arguments."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.scratch = Path(self.folder.name)

    def magray(self, report, **more):
        program = self.scratch / "magray"
        program.write_text(f"#!/bin/sh\necho \"$@\" > {self.scratch}/asked\necho '{json.dumps(report)}'\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        inputs = GpuInputs("cuda:0", more.pop("model_dir", None), self.scratch, make_batches(True), "python3", str(program))
        inputs.write()
        return MagrayOn(OURS, "auto", inputs, "cuda:0", **more)

    def test_the_exact_ids_are_given(self):
        magray = self.magray({"device": "cuda:0", "median_ms": 0.5})
        self.assertEqual(magray.median_ms("MiniLM ragged 32", 0.1), 0.5)
        asked = (self.scratch / "asked").read_text()
        self.assertIn("--device cuda:0 --model synthetic:minilm-l6 --precision auto --seconds 0.1", asked)
        ids = json.loads((self.scratch / "ids-MiniLM-ragged-32.json").read_text())
        self.assertEqual(ids, make_batches(True)["MiniLM ragged 32"])
        self.assertIn("fallback_enabled = false", (self.scratch / "settings.toml").read_text())

    def test_a_folder_stands_for_minilm_only(self):
        inputs = self.magray({"device": "cuda:0"}, model_dir="folder").inputs
        self.assertEqual(inputs.model_of("minilm-l6"), "folder")
        self.assertEqual(inputs.model_of("bge-base"), "synthetic:bge-base")

    def test_figures_of_the_cpu_are_not_taken_for_the_gpus(self):
        magray = self.magray({"device": "cpu", "median_ms": 9.0, "fallback": "out_of_memory"})
        with self.assertRaisesRegex(Unavailable, "computed on cpu: out_of_memory"):
            magray.median_ms("MiniLM 1", 0.1)

    def test_a_start_that_fails_is_told_and_the_others_go_on(self):
        notes = []
        magray = self.magray({"device": "cpu"})
        Path(magray.inputs.magray).write_text('#!/bin/sh\ncase "$*" in *cuda*) echo "error: no GPU" >&2; exit 7;; esac\n')
        rows = gpu_probes.start_up(gpu_probes.Probe(magray.inputs, 0.1, True, notes.append))
        self.assertEqual([title for title, _ in rows], ["on the CPU"])
        self.assertIn("start-up, filled cache: not measured: error: no GPU", notes)


class Halving(unittest.TestCase):
    def test_f32_becomes_f16_and_the_rest_stays(self):
        values = struct.pack("<3f", 1.0, -0.1, 3e-6)
        header = {
            "b": {"dtype": "F32", "shape": [3], "data_offsets": [8, 20]},
            "a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
            "__metadata__": {"format": "pt"},
        }
        made, body = split(halved(joined(header, [struct.pack("<q", 7), values])))
        self.assertEqual(made["a"], {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]})
        self.assertEqual(made["b"], {"dtype": "F16", "shape": [3], "data_offsets": [8, 14]})
        self.assertEqual(made["__metadata__"], {"format": "pt"})
        self.assertEqual(struct.unpack_from("<q3e", body), (7, 1.0, -0.0999755859375, 2.9802322387695312e-06))

    def test_what_f16_cannot_hold_is_refused(self):
        for value in (70000.0, float("nan"), float("-inf")):
            file = joined({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, [struct.pack("<f", value)])
            with self.assertRaisesRegex(Unsound, "w has values"):
                halved(file)

    def test_an_unsound_file_is_refused(self):
        sound = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
        outside = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}
        torn = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}}
        for file, words in [
            (b"abc", "shorter"),
            (struct.pack("<Q", 99) + b"{}", "cut short"),
            (struct.pack("<Q", 2) + b"{x", "no JSON"),
            (joined({"w": {"dtype": "F32"}}, []), "does not describe"),
            (joined([], []), "does not describe"),
            (joined(sound, []), "outside"),
            (joined(outside, [b"1234"]), "outside"),
            (joined(torn, [b"1234"]), "whole"),
        ]:
            with self.assertRaisesRegex(Unsound, words):
                halved(file)


class Machine(unittest.TestCase):
    def test_a_package_that_is_missing_hides_no_other(self):
        present = [one.metadata["Name"] for one in importlib.metadata.distributions()][:1]
        found = machine.versions(sys.executable, None, ".", ["no-such-package-here", *present])
        self.assertEqual(list(found), present)

    def test_a_word_of_the_machine_is_struck_out(self):
        self.assertEqual(machine.scrubbed("in abc/defg it is", ["abc/defg"]), "in ... it is")

    def test_without_a_driver_the_reason_is_told(self):
        try:
            self.assertGreater(nvml.Gpu(0).facts().keys(), {"GPU"})
        except nvml.NoNvml as reason:
            self.assertTrue(str(reason))


if __name__ == "__main__":
    unittest.main()
