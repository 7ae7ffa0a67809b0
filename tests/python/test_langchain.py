"""LangChain's own standard tests of the classes for it."""

import importlib.util
import subprocess
import sys
import unittest
from pathlib import Path

from installed import Isolated


@unittest.skipUnless(importlib.util.find_spec("langchain_tests"), "langchain-tests is not installed")
class LangchainTest(Isolated):
    def test_the_standard_tests_pass(self):
        tests = Path(__file__).with_name("langchain_standard.py")
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--asyncio-mode=auto", str(tests)],
            capture_output=True, text=True, cwd=self.home,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
        self.assertIn(" passed", done.stdout)
        print(done.stdout.strip().splitlines()[-1], file=sys.stderr)

    def test_documents_are_reranked(self):
        from installed import RANKER, SETTINGS
        from langchain_core.documents import Document

        from magray import CrossEncoder
        from magray.langchain import MagrayReranker

        reranker = MagrayReranker(model=CrossEncoder(RANKER, **SETTINGS), top_n=1)
        documents = [Document("a dog"), Document("the cat sat on the river", metadata={"a": 1})]
        (best,) = reranker.compress_documents(documents, "the river")
        self.assertIn("relevance_score", best.metadata)
