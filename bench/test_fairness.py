"""Tests of the measurement of fairness: what counts as a failure, and when a request is sent again. Needs no server."""

import importlib.machinery
import importlib.util
import unittest
from pathlib import Path
from unittest import mock

LOADER = importlib.machinery.SourceFileLoader("fairness", str(Path(__file__).resolve().parent / "fairness"))
fairness = importlib.util.module_from_spec(importlib.util.spec_from_loader("fairness", LOADER))
LOADER.exec_module(fairness)


class Retries(unittest.TestCase):
    def asked(self, *answers):
        """What came of a request that gets these answers, and how long it waited between them."""
        pauses = []
        with mock.patch.object(fairness, "post", side_effect=answers), mock.patch.object(fairness.time, "sleep", pauses.append):
            return fairness.ask(None, "{}"), pauses

    def test_a_refused_request_is_sent_again_when_it_was_told_to(self):
        result, pauses = self.asked((429, {"retry-after-ms": "1500"}), (200, {}))
        self.assertEqual((result, pauses), ((1, True), [1.5]))

    def test_one_that_is_refused_three_times_has_failed(self):
        result, pauses = self.asked((429, {}), (503, {}), (429, {}))
        self.assertEqual((result, len(pauses)), ((2, False), 2))

    def test_what_cannot_be_mended_is_not_sent_again(self):
        self.assertEqual(self.asked((413, {})), ((0, False), []))


class Percentiles(unittest.TestCase):
    def test_of_a_hundred_values_the_99th_part_is_the_last(self):
        self.assertEqual(fairness.percentile(list(range(100)), 0.99), 99)
        self.assertEqual(fairness.percentile([5], 0.5), 5)


if __name__ == "__main__":
    unittest.main()
