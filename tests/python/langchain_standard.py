"""The standard tests of langchain-tests over the classes of magray.langchain; pytest runs them for test_langchain.py."""

import tempfile
from pathlib import Path

import chat_model
import pytest
from installed import EMBEDDER, SETTINGS
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests, VectorStoreIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

from magray import Collection
from magray.langchain import ChatMagray, MagrayEmbeddings, MagrayVectorStore

_FOLDER = tempfile.TemporaryDirectory()
CHATTER = Path(_FOLDER.name, "chatter")
chat_model.write(CHATTER)
CHAT = {"model": str(CHATTER), "settings": SETTINGS}


class TestEmbeddingsUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self):
        return MagrayEmbeddings

    @property
    def embedding_model_params(self):
        return {"model": EMBEDDER, **SETTINGS}


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self):
        return MagrayEmbeddings

    @property
    def embedding_model_params(self):
        return {"model": EMBEDDER, **SETTINGS}


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path):
        yield MagrayVectorStore(Collection("store", folder=str(tmp_path)), self.get_embeddings())


class TestChatUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self):
        return ChatMagray

    @property
    def chat_model_params(self):
        return CHAT

    # A model of random weights calls no tool of its own accord.
    @property
    def has_tool_calling(self):
        return False


class TestChat(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatMagray

    @property
    def chat_model_params(self):
        return CHAT | {"max_tokens": 64}

    @property
    def has_tool_calling(self):
        return False

    @property
    def has_structured_output(self):
        return False
