"""Classes for LangChain: embeddings, a vector store, a reranker and a chat model. Needs `langchain-core`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun, Callbacks
from langchain_core.documents import Document
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, PrivateAttr

from magray.chat import Chat
from magray.collection import Collection, Hit
from magray.cross_encoder import CrossEncoder
from magray.encoder import Encoder

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool", "developer": "system"}


class MagrayEmbeddings(Embeddings):
    """Texts as vectors; arguments are those of `magray.Encoder`."""

    def __init__(self, model: str = "all-MiniLM-L6-v2", *, encoder: Encoder | None = None, **settings: Any) -> None:
        self.encoder = encoder or Encoder(model, **settings)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector a text."""
        found: list[list[float]] = self.encoder.encode_document(texts).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        found: list[float] = self.encoder.encode_query(text).tolist()
        return found

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """As `embed_documents`, awaited."""
        found: list[list[float]] = (await self.encoder.aencode_document(texts)).tolist()
        return found

    async def aembed_query(self, text: str) -> list[float]:
        """As `embed_query`, awaited."""
        found: list[float] = (await self.encoder.aencode_query(text)).tolist()
        return found


class MagrayVectorStore(VectorStore):
    """A `magray.Collection` as a vector store; texts are embedded by LangChain's embeddings."""

    def __init__(self, collection: Collection, embedding: Embeddings) -> None:
        self.collection = collection
        self._embedding = embedding
        if isinstance(embedding, MagrayEmbeddings):
            # So that the collection remembers the model, and commands search it with the same.
            collection.encoder = embedding.encoder

    @property
    def embeddings(self) -> Embeddings:
        """What embeds."""
        return self._embedding

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Adds texts, or replaces those with the same ids; returns the ids."""
        given = list(texts)
        wanted: Sequence[str | None] = ids or [None] * len(given)
        names = [str(uuid.uuid4()) if name is None else name for name in wanted]
        rows = self._embedding.embed_documents(given)
        # Metadata may have names of ours: it lies apart from them.
        kept = [{"metadata": one} for one in (metadatas or [{}] * len(given))]
        self.collection.add(given, names, kept, rows)
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Removes texts by their ids; without ids, all."""
        if ids is None:
            self.collection.drop()
        else:
            self.collection.delete(ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Texts by their ids; those that are not there are left out."""
        return [_document(hit) for hit in self.collection.get(list(ids))]

    def similarity_search(
        self, query: str, k: int = 4, filter: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        """The texts that fit best."""
        return [found for found, _ in self.similarity_search_with_score(query, k, filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: dict[str, Any] | None = None, hybrid: bool = False, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As `similarity_search`, each with its score; `hybrid`: by words too."""
        row = self._embedding.embed_query(query)
        hits = self.collection.search(query, k, filter=filter, hybrid=hybrid, vector=row)
        return [(_document(hit), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        """The texts that fit a vector best."""
        return [_document(hit) for hit in self.collection.search(None, k, filter=filter, vector=embedding)]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: (score + 1) / 2

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        collection: Collection | str = "langchain",
        **kwargs: Any,
    ) -> MagrayVectorStore:
        """A store with these texts."""
        kept = Collection(collection, **kwargs) if isinstance(collection, str) else collection
        store = cls(kept, embedding)
        store.add_texts(texts, metadatas, ids=ids)
        return store


def _document(hit: Hit) -> Document:
    metadata = hit.metadata.get("metadata", hit.metadata)
    return Document(id=str(hit.id), page_content=hit.text, metadata=metadata)


class MagrayReranker(BaseDocumentCompressor):
    """Puts documents into the order in which they answer a query, and keeps the first `top_n`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    model: CrossEncoder
    top_n: int | None = None

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The best documents, each with `relevance_score` in its metadata."""
        ranked = self.model.rank(query, [one.page_content for one in documents], self.top_n)
        found = []
        for one in ranked:
            document = documents[one["corpus_id"]]
            metadata = document.metadata | {"relevance_score": float(one["score"])}
            found.append(Document(id=document.id, page_content=document.page_content, metadata=metadata))
        return found


class ChatMagray(BaseChatModel):
    """A language model; `settings` are arguments of `magray.Chat`, the others of its requests."""

    model: str
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    _chat: Chat | None = PrivateAttr(default=None)

    @property
    def chat(self) -> Chat:
        """What answers."""
        if self._chat is None:
            self._chat = Chat(self.model, **self.settings)
        return self._chat

    @property
    def _llm_type(self) -> str:
        return "magray"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature, "max_tokens": self.max_tokens}

    def _request(self, stop: list[str] | None, more: dict[str, Any]) -> dict[str, Any]:
        names = ("temperature", "max_tokens", "top_p", "seed")
        request = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        found = stop or self.stop
        return request | ({"stop": found} if found else {}) | more

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = self.chat([_message(one) for one in messages], **self._request(stop, kwargs))
        calls = [
            {"name": call["name"], "args": _arguments(call["arguments"]), "id": f"call_{at}", "type": "tool_call"}
            for at, call in enumerate(answer.calls)
        ]
        usage = UsageMetadata(input_tokens=0, output_tokens=answer.tokens, total_tokens=answer.tokens)
        told = {"finish_reason": answer.finish, "model_name": self.model}
        message = AIMessage(content=answer.text, tool_calls=calls, response_metadata=told, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for piece in self.chat.stream([_message(one) for one in messages], **self._request(stop, kwargs)):
            message = AIMessageChunk(content=piece.text)
            if piece.call is not None:
                part = {"name": piece.name, "args": piece.arguments, "id": None, "index": piece.call, "type": "tool_call_chunk"}
                message = AIMessageChunk(content="", tool_call_chunks=[part | ({"id": f"call_{piece.call}"} if piece.name else {})])
            elif piece.finish is not None:
                message = AIMessageChunk(
                    content="",
                    chunk_position="last",
                    response_metadata={"finish_reason": piece.finish, "model_name": self.model},
                    usage_metadata=UsageMetadata(
                        input_tokens=0, output_tokens=piece.tokens or 0, total_tokens=piece.tokens or 0
                    ),
                )
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None:
                run_manager.on_llm_new_token(piece.text, chunk=chunk)
            yield chunk


def _arguments(text: str) -> dict[str, Any]:
    import json

    found = json.loads(text or "{}")
    return found if isinstance(found, dict) else {}


def _message(message: BaseMessage) -> dict[str, Any]:
    import json

    content = message.content
    if not isinstance(content, str):
        content = "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    told: dict[str, Any] = {"role": _ROLES.get(message.type, message.type), "content": content}
    if isinstance(message, AIMessage) and message.tool_calls:
        told["calls"] = [
            {"id": call["id"] or "", "name": call["name"], "arguments": json.dumps(call["args"])}
            for call in message.tool_calls
        ]
    call = getattr(message, "tool_call_id", None)
    return told | ({"call_id": call} if call else {})
