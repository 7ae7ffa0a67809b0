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

    def test_awaited_vectors_have_the_prompts_of_the_others(self):
        import asyncio

        import numpy as np
        from installed import EMBEDDER, SETTINGS, TOLERANCE

        from magray.langchain import MagrayEmbeddings

        # The model has prompts for queries and for passages: without one a vector is another.
        embeddings = MagrayEmbeddings(EMBEDDER, **SETTINGS)
        query, documents = embeddings.embed_query("river"), embeddings.embed_documents(["river"])
        self.assertGreater(np.abs(np.subtract(query, documents[0])).max(), TOLERANCE)
        np.testing.assert_allclose(asyncio.run(embeddings.aembed_query("river")), query, atol=TOLERANCE)
        np.testing.assert_allclose(asyncio.run(embeddings.aembed_documents(["river"])), documents, atol=TOLERANCE)

    def test_documents_are_reranked(self):
        from installed import RANKER, SETTINGS
        from langchain_core.documents import Document

        from magray import CrossEncoder
        from magray.langchain import MagrayReranker

        reranker = MagrayReranker(model=CrossEncoder(RANKER, **SETTINGS), top_n=1)
        documents = [Document("a dog"), Document("the cat sat on the river", metadata={"a": 1})]
        (best,) = reranker.compress_documents(documents, "the river")
        self.assertIn("relevance_score", best.metadata)
