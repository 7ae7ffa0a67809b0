"""Promtool and Prometheus' own parser on `/metrics`, and the names that `deploy/` uses.

Promtool's rules of names are checked here as well, for machines that have no promtool.
"""

import json
import os
import re
import subprocess
import unittest
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families
from served import TEXTS, Served

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "magray.rules.yml"
PROMTOOL = os.environ.get("PROMTOOL")
# Where the server names what it exports: without a GPU nothing of one is shown.
SOURCE = ROOT / "crates" / "magray" / "src" / "server" / "metrics"
# As promtool has them: what ends so is not in base units.
OTHER_UNITS = re.compile(
    r"(nano|micro|milli|centi|deci|kilo|mega|giga|tera)?(seconds|bytes|bits|meters|grams|joules|volts|amperes|celsius)"
    r"|minutes|hours|days|weeks|kelvins?|fahrenheit|percent|calories"
)
BASE_UNITS = {"seconds", "bytes", "meters", "grams", "joules", "volts", "amperes", "celsius"}
ENDINGS = re.compile(r"_(bucket|sum|count)$")


class Metrics(Served):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server.post("/embed", {"inputs": TEXTS})
        cls.text = cls.server.get("/metrics")
        cls.families = {family.name: family for family in text_string_to_metric_families(cls.text)}
        cls.samples = {ENDINGS.sub("", sample.name) for family in cls.families.values() for sample in family.samples}

    def test_the_server_counts_what_it_did(self):
        texts = self.families["magray_texts"].samples
        self.assertEqual(sum(sample.value for sample in texts), len(TEXTS))

    def test_names_follow_the_rules(self):
        for family in self.families.values():
            with self.subTest(family.name):
                self.assertTrue(family.documentation)
                self.assertNotEqual(family.type, "unknown")
                self.assertRegex(family.name, r"^magray_[a-z0-9_]+$")
                # The parser takes `_total` from the names of counters, and from them alone.
                self.assertNotRegex(family.name, r"_(total|count|sum|bucket|counter|gauge|histogram|info)$")
                for word in family.name.split("_"):
                    self.assertFalse(OTHER_UNITS.fullmatch(word) and word not in BASE_UNITS, f"{word} is no base unit")

    @unittest.skipUnless(PROMTOOL, "there is no promtool")
    def test_promtool_has_nothing_to_say(self):
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=self.text, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    @unittest.skipUnless(PROMTOOL, "there is no promtool")
    def test_promtool_takes_the_alerts(self):
        done = subprocess.run([PROMTOOL, "check", "rules", ALERTS], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_dashboard_and_the_alerts_use_metrics_that_there_are(self):
        expressions = [*dashboard_expressions(), *alert_expressions()]
        named = {name for expression in expressions for name in re.findall(r"\bmagray_\w+", expression)}
        self.assertGreater(len(named), 10)
        used = {ENDINGS.sub("", name) for name in named}
        described = {name for file in SOURCE.glob("*.rs") for name in re.findall(r'"(magray_\w+)"', file.read_text())}
        self.assertLessEqual(self.samples, described)
        self.assertEqual(used - described, set())
        self.assertGreater(len(used & self.samples), len(used) / 2)


def dashboard_expressions():
    panels = json.loads((DEPLOY / "grafana" / "magray.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def alert_expressions():
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]
