"""The chart's autoscaling under a day of load in two hours: capacity comes in time, does not flap, and loses nothing.

Breaks one promise at a time too, and the simulator has to see it.
"""

import dataclasses
import math
import unittest

from autoscaling import Cluster, Rules, Trigger
from chart import documents

SEEDS = (1, 2, 3)
MINUTE = 60
DAY_S = 120 * MINUTE
LABELS = {"namespace": "prod", "workload": "r-magray-cpu"}
# Of one pod at the load it is meant for: busyRatio of its requests a second.
POD = Cluster(LABELS)
POD_REQUESTS_PER_S = POD.tokens_per_s / POD.tokens_per_request


def day(now):
    """Requests a second: a quiet night, a morning that grows fivefold in 20 minutes, noon with a peak, an evening."""
    minute = now / MINUTE
    shape = [(0, 20), (15, 20), (35, 100), (50, 100), (54, 125), (60, 125), (64, 100), (80, 95), (100, 25), (120, 20)]
    for (start, low), (end, high) in zip(shape, shape[1:]):
        if start <= minute < end:
            level = low + (high - low) * (minute - start) / (end - start)
            return level * (1 + 0.05 * math.sin(minute * 2.1) + 0.03 * math.sin(minute * 9.7))
    return shape[-1][1]


class Autoscaling(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        values = {"autoscaling": {"kind": "keda", "minReplicas": 2, "maxReplicas": 20}}
        rendered = documents(values, namespace="prod")
        [scaled] = [document for document in rendered if document["kind"] == "ScaledObject"]
        cls.rules = Rules.of(scaled, {"delaySeconds": 10, "timeoutSeconds": 30})
        [workload] = [document for document in rendered if document["kind"] == "Deployment"]
        assert workload["metadata"]["name"] == LABELS["workload"] == scaled["spec"]["scaleTargetRef"]["name"]
        cls.days = {seed: POD.play(day, DAY_S, cls.rules, 2, seed) for seed in SEEDS}

    def usual_p99(self, seed):
        """Of pods that are as busy as the chart wants them to be at most."""
        busy = self.rules.triggers[1].threshold
        steady = POD.play(lambda _: 5 * busy * POD_REQUESTS_PER_S, 10 * MINUTE, self.rules, 5, seed, is_scaled=False)
        return steady.p99()

    def test_capacity_comes_before_the_queue_time_doubles(self):
        for seed, played in self.days.items():
            with self.subTest(seed=seed):
                self.assertLess(played.worst_p99(5 * MINUTE, DAY_S), 2 * self.usual_p99(seed))
                self.assertGreaterEqual(max(count for _, count in played.replicas), 125 / POD_REQUESTS_PER_S)

    def test_capacity_goes_when_it_is_not_needed_and_does_not_come_back_at_once(self):
        for seed, played in self.days.items():
            with self.subTest(seed=seed):
                self.assertLessEqual(played.replicas[-1][1], 4, played.replicas)
                self.assertEqual(played.turns(10 * MINUTE, day), 0, played.replicas)

    def test_nothing_is_lost(self):
        for seed, played in self.days.items():
            with self.subTest(seed=seed):
                self.assertGreater(played.requests, 100_000)
                self.assertEqual(played.lost, 0)

    def test_the_same_seed_plays_the_same(self):
        short = lambda: POD.play(day, 20 * MINUTE, self.rules, 2, 1)
        self.assertEqual(short(), short())

    def test_pods_that_stop_at_once_are_seen_to_lose_requests(self):
        rude = dataclasses.replace(self.rules, drain_delay_s=0)
        self.assertGreater(POD.play(day, DAY_S, rude, 2, 1).lost, 0)

    def test_queues_alone_are_seen_to_flap(self):
        alone = dataclasses.replace(self.rules, triggers=self.rules.triggers[:1])
        self.assertGreater(POD.play(day, DAY_S, alone, 2, 1).turns(10 * MINUTE, day), 0)

    def test_a_scaler_that_sleeps_is_seen_to_be_late(self):
        asleep = dataclasses.replace(self.rules, triggers=[Trigger(one.query, 1e6) for one in self.rules.triggers])
        self.assertGreater(POD.play(day, 40 * MINUTE, asleep, 2, 1).worst_p99(5 * MINUTE, 40 * MINUTE), 2 * self.usual_p99(1))

    def test_queries_leave_out_other_pools_and_devices(self):
        for trigger in self.rules.triggers:
            self.assertIn('namespace="prod"', trigger.query)
            self.assertIn('pod=~"r-magray-cpu-.+"', trigger.query)
        self.assertIn("cuda", self.rules.triggers[1].query)
