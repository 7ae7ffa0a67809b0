"""Tests of the comparison through HTTP: its bodies, its figures and its verdicts. Needs no server and no peer."""

import json
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import http_report, http_servers
from compare.http_cases import CASES, LONG, OVERLOADS, SHORT, Case, bodies, words_of
from compare.http_report import Results

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
    CASE, RETRY = "32 short, 1 conn.", "32 short: 20 clients that retry at once"

    def results(self, ours, peer):
        """Five rounds of one case."""
        results = Results()
        for number in range(1, 6):
            results.add("magray", self.CASE, number, answer(ours, s200=(ours, 9.0)), 32)
            results.add("infinity-emb torch bf16", self.CASE, number, answer(peer, s200=(peer, 9.0)), 32)
        return results

    def line(self, results, words):
        return next(line for line in http_report.lines(results) if line.title.endswith(words))

    def test_throughput_counts_answers_of_the_measured_time(self):
        results = Results()
        results.add("magray", "a case", 1, answer(50, s200=(60, 9.0)), 32)
        found = [figures.spread("magray", "a case").median for figures in (results.texts, results.p50, results.p99)]
        self.assertEqual(found, [800.0, 1.0, 9.0])

    def test_peers_are_judged_by_the_rule(self):
        line = self.line(self.results(90, 10), self.CASE)
        self.assertEqual((line.peer, line.ratio.median, line.result), ("infinity-emb torch bf16", 9.0, "hit"))
        self.assertEqual(self.line(self.results(40, 10), self.CASE).result, "MISS")

    def test_a_peer_that_answered_nothing_in_a_round_gives_no_ratio_there(self):
        results = self.results(90, 10)
        results.add("infinity-emb torch bf16", self.CASE, 3, answer(0), 32)
        self.assertEqual(self.line(results, self.CASE).result, "undecided: 4 of 5 rounds")

    def test_what_http_adds_to_one_text_is_taken_within_a_round(self):
        results = Results()
        for number, (ours, engine) in enumerate([(1.0, 0.9), (5.0, 1.0), (2.0, 1.6), (3.0, 2.7), (2.0, 1.8)], 1):
            results.p50.add("magray", "1 short, 1 conn.", number, ours)
            results.p50.add("bare engine", "1 short, 1 conn.", number, engine)
        line = self.line(results, ": p50")
        self.assertEqual((line.ours, line.result), ("0.30 ms more", "hit"))

    def test_shares_of_the_engine_and_of_the_peak_have_bars_of_their_own(self):
        results = Results()
        results.strains[self.RETRY] = [http_report.strain_of(answer(10, s200=(10, 50.0)), 32, 64.0)]
        for number in range(1, 6):
            results.shares.add("magray", self.CASE, number, 0.92)
            results.shares.add("magray", self.RETRY, number, 0.92)
        self.assertEqual(self.line(results, "share of the bare engine").result, "hit")
        self.assertEqual(self.line(results, "share of the peak without overload").result, "MISS")

    def test_turns_of_unequal_length_are_made_equal(self):
        engine = {"seconds": 2.0, "texts_per_s": 160.0}
        self.assertEqual(http_report.share_of(answer(11), engine, 1.1, 32), 1.0)
        self.assertEqual(http_report.goodput_of(answer(8), answer(5), 2.0), 0.8)
        self.assertEqual(http_report.goodput_of(answer(8), answer(0), 2.0), 0.0)

    def test_overload_is_judged_by_refusals_and_other_answers(self):
        results = Results()
        strained = answer(10, broken=1, s200=(10, 50.0), s429=(90, 7.0), s503=(2, 1.0))
        results.strains["load"] = [http_report.strain_of(strained, 32, 64.0)] * 5
        self.assertEqual(self.line(results, "p99 of refusals").result, "MISS")
        others = self.line(results, "neither vectors nor refusals")
        self.assertEqual((others.ours, others.result), ("15", "MISS"))
        self.assertRegex(http_report.strain_table(results), r"load +\| 160 +\| 50\.0 +\| 450 ")

    def test_an_overload_that_refused_nothing_says_so_and_claims_nothing(self):
        results = Results()
        results.strains["load"] = [http_report.strain_of(answer(10, s200=(10, 50.0)), 32, 64.0)] * 5
        line = self.line(results, "p99 of refusals")
        self.assertEqual((line.ours, line.bar, line.result), ("nothing refused", "no bar", "-"))

    def test_f32_peers_stand_beside_ours_in_f32(self):
        results = self.results(90, 10)
        for number in range(1, 6):
            results.add("magray f32", self.CASE, number, answer(20, s200=(20, 9.0)), 32)
            results.add("infinity-emb ONNX f32", self.CASE, number, answer(10, s200=(10, 9.0)), 32)
        text = http_report.equal_precision_table(results)
        self.assertRegex(text, r"infinity-emb ONNX f32 +\| magray f32 +\| 2\.0 ")
        self.assertRegex(text, r"infinity-emb torch bf16 +\| magray +\| 9\.0 ")


if __name__ == "__main__":
    unittest.main()
