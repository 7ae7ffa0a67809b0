"""Classes for LlamaIndex: embeddings and a reranker. Needs `llama-index-core`."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from magray.cross_encoder import CrossEncoder
from magray.encoder import Encoder


class MagrayEmbedding(BaseEmbedding):
    """Texts as vectors; other arguments are those of `magray.Encoder`."""

    _encoder: Encoder = PrivateAttr()

    def __init__(
        self, model_name: str = "all-MiniLM-L6-v2", *, encoder: Encoder | None = None, embed_batch_size: int = 256,
        **settings: Any,
    ) -> None:
        super().__init__(model_name=model_name, embed_batch_size=embed_batch_size)
        self._encoder = encoder or Encoder(model_name, **settings)

    @classmethod
    def class_name(cls) -> str:
        """Its name in LlamaIndex's files."""
        return "MagrayEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        found: list[float] = self._encoder.encode_query(query).tolist()
        return found

    async def _aget_query_embedding(self, query: str) -> list[float]:
        found: list[float] = (await self._encoder.aencode_query(query)).tolist()
        return found

    def _get_text_embedding(self, text: str) -> list[float]:
        found: list[float] = self._encoder.encode_document(text).tolist()
        return found

    async def _aget_text_embedding(self, text: str) -> list[float]:
        found: list[float] = (await self._encoder.aencode_document(text)).tolist()
        return found

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = (await self._encoder.aencode_document(texts)).tolist()
        return found

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = self._encoder.encode_document(texts).tolist()
        return found


class MagrayRerank(BaseNodePostprocessor):
    """Puts nodes into the order in which they answer a query, and keeps the first `top_n`."""

    model: str = Field(description="The model that reads query and text together.")
    top_n: int = Field(default=5, description="Nodes that are kept.")
    _encoder: CrossEncoder = PrivateAttr()

    def __init__(
        self, model: str, top_n: int = 5, *, encoder: CrossEncoder | None = None, **settings: Any
    ) -> None:
        super().__init__(model=model, top_n=top_n)
        self._encoder = encoder or CrossEncoder(model, **settings)

    @classmethod
    def class_name(cls) -> str:
        """Its name in LlamaIndex's files."""
        return "MagrayRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("nodes are ranked by a query, and there is none")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        ranked = self._encoder.rank(query_bundle.query_str, texts, self.top_n)
        return [NodeWithScore(node=nodes[one["corpus_id"]].node, score=float(one["score"])) for one in ranked]
