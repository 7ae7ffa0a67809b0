"""Components for Haystack: embedders of texts and documents, and a ranker. Needs `haystack-ai`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

from magray.cross_encoder import CrossEncoder
from magray.encoder import Encoder


class _Saved:
    """Settings as Haystack writes them; the model is loaded by the first run, or by `warm_up`."""

    # Classes below name it where others write super(): their decorator makes another class of them.
    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def to_dict(self) -> dict[str, Any]:
        """For a file of a pipeline."""
        found: dict[str, Any] = default_to_dict(self, **self.settings)
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """From a file of a pipeline."""
        return default_from_dict(cls, data)


@component
class MagrayTextEmbedder(_Saved):
    """The vector of a query; arguments are those of `magray.Encoder`."""

    def __init__(self, model: str = "all-MiniLM-L6-v2", **settings: Any) -> None:
        _Saved.__init__(self, model=model, **settings)
        self._encoder: Encoder | None = None

    def warm_up(self) -> None:
        """Loads the model."""
        self._encoder = self._encoder or Encoder(**self.settings)

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Embeds a query."""
        self.warm_up()
        assert self._encoder is not None
        return {"embedding": self._encoder.encode_query(text).tolist()}


@component
class MagrayDocumentEmbedder(_Saved):
    """Documents with their vectors; arguments are those of `magray.Encoder`."""

    def __init__(self, model: str = "all-MiniLM-L6-v2", **settings: Any) -> None:
        _Saved.__init__(self, model=model, **settings)
        self._encoder: Encoder | None = None

    def warm_up(self) -> None:
        """Loads the model."""
        self._encoder = self._encoder or Encoder(**self.settings)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Embeds documents."""
        self.warm_up()
        assert self._encoder is not None
        rows = self._encoder.encode_document([one.content or "" for one in documents]).tolist()
        return {"documents": [replace(one, embedding=row) for one, row in zip(documents, rows, strict=True)]}


@component
class MagrayRanker(_Saved):
    """Documents in the order in which they answer a query; arguments are those of `magray.CrossEncoder`."""

    def __init__(self, model: str, top_k: int = 10, **settings: Any) -> None:
        _Saved.__init__(self, model=model, top_k=top_k, **settings)
        self._encoder: CrossEncoder | None = None

    def warm_up(self) -> None:
        """Loads the model."""
        settings = {name: value for name, value in self.settings.items() if name != "top_k"}
        self._encoder = self._encoder or CrossEncoder(**settings)

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """Ranks documents."""
        self.warm_up()
        assert self._encoder is not None
        most = top_k or self.settings["top_k"]
        ranked = self._encoder.rank(query, [one.content or "" for one in documents], most)
        return {"documents": [replace(documents[one["corpus_id"]], score=float(one["score"])) for one in ranked]}
