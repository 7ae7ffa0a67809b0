"""LangChain's client of OpenAI. It sends ids of OpenAI's tokenizer unless it is told to send texts.

The tokenizer's file comes with a package, so that nothing is fetched here.
"""

import importlib.util
import json
import os
from pathlib import Path

TOKENIZERS = Path(importlib.util.find_spec("litellm").submodule_search_locations[0], "litellm_core_utils/tokenizers")
# Before the client is loaded, which reads it.
os.environ["TIKTOKEN_CACHE_DIR"] = str(TOKENIZERS)
# It is kept under the digest of the address that it was fetched from.
CL100K = TOKENIZERS / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"

import openai
from langchain_openai import OpenAIEmbeddings
from served import EMBEDDER, Served, embedded

TEXTS = ["the cat sat on the river", "a dog", "river"]


class LangChain(Served):
    def client(self, **options):
        return OpenAIEmbeddings(base_url=self.url + "/v1", api_key="none", model=EMBEDDER, max_retries=0, **options)

    def test_texts_are_embedded_as_by_the_command(self):
        client = self.client(check_embedding_ctx_length=False)
        self.assert_near(client.embed_documents(TEXTS), embedded(TEXTS))

    def test_ids_that_the_model_does_not_have_are_refused(self):
        with self.assertRaises(openai.BadRequestError):
            self.client().embed_documents(["Heaven knows what"])


class WithTheTokenFile(LangChain):
    settings = f"[server]\nopenai_token_file = {json.dumps(str(CL100K))}\n"

    def test_token_ids_are_embedded_as_the_texts_they_stand_for(self):
        self.assert_near(self.client().embed_documents(TEXTS), embedded(TEXTS))
        self.assert_near([self.client().embed_query("river")], embedded(["river"]))

    def test_ids_that_the_model_does_not_have_are_refused(self):
        self.assertEqual(len(self.client().embed_documents(["Heaven knows what"])), 1)
