"""Tests of the comparison through HTTP: its bodies, its figures and its verdicts. Needs no server and no peer."""

import json
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import http_report, http_servers
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


class Turns(unittest.TestCase):
    def test_both_run_to_their_end_and_what_is_beside_them_stays_stopped(self):
        count = "import time; n = 0; end = time.monotonic() + 1.0\nwhile time.monotonic() < end: n += 1\nprint(n)"
        server = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            command = [sys.executable, "-c", count]
            ended, seconds = http_servers.take_turns(0.0, 0.8, [(command, [server]), (command, [])])
            state = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        finally:
            server.kill()
            server.wait()
        self.assertEqual([it.returncode for it in ended], [0, 0])
        self.assertTrue(all(int(it.stdout) > 0 for it in ended))
        self.assertEqual(state, "T")
        self.assertTrue(all(had > 0.0 for had in seconds))
        # Never both at once, and nothing after the windows, the second of which ends a turn later.
        self.assertLessEqual(sum(seconds), 0.8 + http_servers.TURN_S)

    def test_time_counts_within_the_window_alone(self):
        window = (4.0, 11.2)
        turns = [(n / 10, (n + 1) / 10) for n in range(0, 200, 2)]
        self.assertAlmostEqual(sum(http_servers.overlap(turn, window) for turn in turns), 3.6)
        later = [(start + 0.1, end + 0.1) for start, end in turns]
        self.assertAlmostEqual(sum(http_servers.overlap(turn, window) for turn in later), 3.6)
        self.assertEqual(http_servers.overlap((0.0, 1.0), window), 0.0)

    def test_nothing_goes_on_when_a_command_cannot_be_started(self):
        server = subprocess.Popen(["sleep", "60"], start_new_session=True)
        try:
            with self.assertRaises(OSError):
                http_servers.take_turns(0.0, 0.8, [(["sleep", "60.0625"], [server]), (["/no/such/program"], [])])
            self.assertEqual(subprocess.run(["pgrep", "-f", "^sleep 60.0625"], capture_output=True).stdout, b"")
        finally:
            server.kill()
            server.wait()

    def test_turns_are_whole_pairs(self):
        for seconds in (0.05, 0.2, 7.2, 7.3):
            pairs = http_servers.whole_turns(seconds) / (2 * http_servers.TURN_S)
            self.assertAlmostEqual(pairs, round(pairs))
            self.assertGreaterEqual(http_servers.whole_turns(seconds), seconds)


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
        results, case = Results(), "32 short, 1 conn."
        for name, figures in [("magray", ours), ("bare engine", engine), ("infinity-emb torch", peer)]:
            share = ours / engine if name == "magray" else None
            results.add(name, case, Figures(figures, 1.0, 2.0, 32_000 / figures, share))
        return results

    def test_the_least_disturbed_round_counts(self):
        results = Results()
        for texts, p50 in [(500.0, 4.0), (900.0, 2.0), (700.0, 3.0)]:
            results.add("magray", "a case", Figures(texts, p50, 9.0, p50))
        self.assertEqual([results.best("magray", "a case", what) for what in ("texts_per_s", "p50_ms")], [900.0, 2.0])

    def test_the_middle_of_an_overload_counts_and_of_its_goodput_all(self):
        results = Results()
        for answered, p99, carried in [(10, 3.0, 8), (20, 4.0, 20), (5, 30.0, 7)]:
            results.add_strain("load", http_report.strain_of(answer(answered, s200=(9, 5.0), s429=(9, p99)), 32, 64.0))
            results.add_goodput("load", http_report.goodput_of(answer(answered), answer(carried), 1.0, 32))
        strain = results.strain("load")
        self.assertEqual((strain.goodput, strain.refused_p99_ms, strain.refused), (160.0, 4.0, 27))
        self.assertEqual(results.share_of_peak("load"), 1.0)

    def test_what_holds_is_not_complained_of(self):
        results = self.results(950.0, 1000.0, 100.0)
        self.assertEqual(http_report.verdicts(results), [])
        self.assertIn("9.5 x infinity-emb torch", http_report.ratio_table(results))

    def test_one_connection_is_judged_by_what_each_request_tells(self):
        results = self.results(950.0, 1000.0, 100.0)
        for share in (0.93, 0.91, 0.93, 0.97):
            results.add("magray", "32 short, 1 conn.", Figures(600.0, 1.0, 2.0, 50.0, share))
        self.assertEqual(results.shares_of_engine("32 short, 1 conn."), (0.93, 0.91, 0.97))
        self.assertEqual(http_report.verdicts(results), [])
        self.assertIn("91% to 97%", http_report.ratio_table(results))

    def test_several_are_judged_by_what_both_answered_in_turns(self):
        results, case = self.results(600.0, 1000.0, 100.0), "32 short, 4 conn."
        results.add("magray", case, Figures(600.0, 1.0, 2.0, 50.0, 0.5))
        self.assertIsNone(results.shares_of_engine(case), "what requests tell that wait for each other says nothing")
        for answered, engine_texts_per_s in [(90, 1280.0), (270, 4160.0)]:
            engine = {"seconds": 2.0, "texts_per_s": engine_texts_per_s}
            results.add_share(case, http_report.share_of(answer(answered), engine, 1.0, 32))
        share, lowest, highest = results.shares_of_engine(case)
        self.assertEqual((lowest, highest), (8640 / 8320, 2880 / 2560))
        self.assertEqual(share, 11520 / 10880)

    def test_turns_of_unequal_length_are_made_equal(self):
        engine = {"seconds": 2.0, "texts_per_s": 160.0}
        self.assertEqual(float(http_report.share_of(answer(11), engine, 1.1, 32)), 1.0)

    def test_a_share_that_is_too_low_or_unknown_does_not_hold(self):
        for shares, said in [([(8, 10)], "80%"), ([(8, 0)], "an unknown part"), ([], "an unknown part")]:
            results, case = Results(), "32 short, 4 conn."
            results.add("magray", case, Figures(600.0, 1.0, 2.0, 50.0))
            for share in shares:
                results.add_share(case, http_report.Share(*share))
            self.assertEqual(http_report.verdicts(results), [f"{case}: {said} of the bare engine, not 90%"])
            http_report.ratio_table(results)

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
        results.add_strain("load", http_report.strain_of(strained, 32, 64.0))
        self.assertIn("load: an unknown part of the peak, not 95%", http_report.verdicts(results))
        results.add_goodput("load", http_report.goodput_of(answer(8), answer(5), 2.0, 32))
        found = http_report.verdicts(results)
        self.assertEqual(
            found,
            [
                "load: 80% of the peak, not 95%",
                "load: refusals within 7.0 ms, not 5",
                "load: 3 answers that were neither vectors nor refusals",
            ],
        )
        self.assertRegex(http_report.strain_table(results), r"160 +\| 80% ")
        self.assertEqual(http_report.unseen(results), [])

    def test_an_overload_that_refused_nobody_is_named(self):
        results = Results()
        results.add_strain("load", http_report.strain_of(answer(10, s200=(10, 50.0)), 32, 64.0))
        self.assertEqual(http_report.unseen(results), ["load: nothing was refused"])


if __name__ == "__main__":
    unittest.main()
