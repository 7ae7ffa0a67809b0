"""Pairs of texts as scores, asked for as of a sentence-transformers CrossEncoder. Embeds nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from magray.engine import Engine
from magray.model import Model

Floats = NDArray[np.float32]
Pair = Sequence[str]


class CrossEncoder(Model):
    """A model that reads two texts together. `server`, `api_key`, `engine` and `settings` as for `Model`."""

    def __init__(
        self,
        model: str,
        *,
        server: str | None = None,
        api_key: str | None = None,
        engine: Engine | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, server, api_key, engine, settings)
        self.labels: list[str] = ["score"]
        if self.server is not None:
            self.model = self.server.model(model, "rank")["id"]
        if self.engine is None:
            return
        known = self.engine.known
        if known["does"] not in ("rank", "classify"):
            raise ValueError(f"'{model}' does not score pairs of texts ({known['does']})")
        self.labels = known["labels"]

    @property
    def num_labels(self) -> int:
        """Numbers that a pair gets."""
        return len(self.labels)

    def predict(
        self,
        sentences: Pair | Sequence[Pair],
        batch_size: int = 64,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
    ) -> Any:
        """A score for a pair, scores for several: of models with one label between 0 and 1, of others a row each.

        `activation_fn` takes the place of that function; `apply_softmax` makes shares of the labels' numbers.
        """
        is_one = bool(sentences) and isinstance(sentences[0], str)
        pairs = [cast(Pair, sentences)] if is_one else sentences
        for pair in pairs:
            if len(pair) != 2:
                raise ValueError(f"a pair has two texts, and this one has {len(pair)}")
        found = self._raw([(pair[0], pair[1]) for pair in pairs], batch_size, "Scoring" if show_progress_bar else None)
        rows: Any = found
        if activation_fn is not None:
            rows = activation_fn(rows)
        elif self.num_labels == 1:
            rows = _sigmoid(found)
        if apply_softmax and self.num_labels > 1:
            raised = np.exp(rows - rows.max(axis=1, keepdims=True))
            rows = raised / raised.sum(axis=1, keepdims=True)
        if self.num_labels == 1:
            rows = rows[:, 0]
        if convert_to_tensor:
            import torch

            rows = torch.from_dlpack(np.ascontiguousarray(rows))
        elif not convert_to_numpy and not is_one:
            return list(rows)
        return rows[0] if is_one else rows

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = 64,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
    ) -> list[dict[str, Any]]:
        """The documents that fit a query best, the best first: `corpus_id`, `score`, and `text` where that is wanted."""
        if self.num_labels != 1:
            raise ValueError(f"a model of one label ranks, and '{self.model}' has {self.num_labels}: use predict")
        pairs = [(query, text) for text in documents]
        scores = self.predict(pairs, batch_size, show_progress_bar, activation_fn)
        order = np.argsort(-np.asarray(scores), kind="stable")[:top_k]
        found: list[dict[str, Any]] = [{"corpus_id": int(at), "score": scores[at]} for at in order]
        if return_documents:
            for one in found:
                one["text"] = documents[one["corpus_id"]]
        return found

    def _raw(self, pairs: list[tuple[str, str]], portion: int, bar: str | None) -> Floats:
        if self.engine is not None:
            return self.engine.score(pairs, portion=portion, bar=bar)
        assert self.server is not None
        scores = np.zeros((len(pairs), 1), np.float32)
        by_query: dict[str, list[int]] = {}
        for at, (query, _) in enumerate(pairs):
            by_query.setdefault(query, []).append(at)
        for query, places in by_query.items():
            scores[places, 0] = self.server.rerank(query, [pairs[at][1] for at in places], self.model)
        return scores


def _sigmoid(rows: Floats) -> Floats:
    return (1 / (1 + np.exp(-rows.astype(np.float64)))).astype(np.float32)
