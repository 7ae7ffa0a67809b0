"""The congruence tests of qdrant-client, unmodified: all of them must pass but those of a list, which says why.

They compare a client of a server with the client's own copy of Qdrant in memory. All speak REST (over_rest.py), also those
that ask for gRPC, which the server does not have. MAGRAY_TEST_SEED sets what they draw by chance.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path
from urllib.parse import urlsplit

from served import Served

HERE = Path(__file__).resolve().parent
CHECKOUT = os.environ.get("CONGRUENCE")
# A line a test, `module::function: reason`.
FAILURES = HERE / "congruence_failures.txt"


class Congruence(Served):
    @unittest.skipUnless(CHECKOUT, "there is no repository of qdrant-client")
    def test_all_but_those_of_the_list_pass(self):
        lines = [line for line in FAILURES.read_text().splitlines() if line and not line.startswith("#")]
        listed = {test for test, _ in (line.split(": ", 1) for line in lines)}
        passed, failed, said = self.run_all()
        print(f"congruence: {len(passed)} of {len(passed | set(failed))} tests pass", file=sys.stderr)
        unlisted = [f"{test}: {failed[test]}" for test in sorted(set(failed) - listed)]
        self.assertFalse(unlisted, "\n".join([said, *unlisted]))
        self.assertEqual(listed & passed, set(), "they pass: take them off the list")

    def run_all(self):
        """Names of functions that passed, those that failed with the reason, and what pytest said."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.xml")
            # Without the repository's own, older client beside them.
            shutil.copytree(Path(CHECKOUT, "tests"), Path(folder, "tests"))
            options = ["-q", "--tb=short", "-p", "over_rest", "-p", "no:cacheprovider", f"--junitxml={report}"]
            tests = sorted(Path(folder, "tests", "congruence_tests").glob("test_*.py"))
            done = subprocess.run(
                [sys.executable, "-B", "-W", "ignore", "-m", "pytest", *options, "--continue-on-collection-errors", *tests],
                cwd=folder,
                env=os.environ | {"MAGRAY_PORT": str(urlsplit(self.url).port), "PYTHONPATH": f"{HERE}:{folder}"},
                capture_output=True,
                text=True,
            )
            cases = xml.etree.ElementTree.parse(report).getroot().iter("testcase")
            passed, failed = set(), {}
            for case in cases:
                module = (case.get("classname") or case.get("name")).rsplit(".", 1)[-1]
                name = f"{module}::{case.get('name').split('[')[0]}"
                wrong = next((part for part in case if part.tag in ("failure", "error")), None)
                if wrong is None:
                    passed.add(name)
                else:
                    failed[name] = (wrong.get("message") or "").splitlines()[0][:300]
        return passed - set(failed), failed, done.stdout[-20_000:]
