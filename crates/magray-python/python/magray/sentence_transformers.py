"""Names of sentence-transformers, so that one changed line moves a script here:

    from magray.sentence_transformers import SentenceTransformer, CrossEncoder, util

Has what computes vectors and scores; nothing that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magray import cross_encoder, encoder, similarity, vectors

util = similarity
quantize_embeddings = vectors.quantized

__all__ = ["CrossEncoder", "SentenceTransformer", "quantize_embeddings", "util"]

# Of models that magray keeps under the same name without its organisation.
_PREFIX = "sentence-transformers/"


class SentenceTransformer(encoder.Encoder):
    """An `Encoder` with the arguments of a SentenceTransformer."""

    def __init__(
        self,
        model_name_or_path: str = "all-MiniLM-L6-v2",
        device: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            model_name_or_path.removeprefix(_PREFIX),
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            truncate_dim=truncate_dim,
            device=device or "auto",
            **settings,
        )


class CrossEncoder(cross_encoder.CrossEncoder):
    """A `magray.CrossEncoder` with the arguments of that of sentence-transformers."""

    def __init__(self, model_name_or_path: str, device: str | None = None, **settings: Any) -> None:
        super().__init__(model_name_or_path, device=device or "auto", **settings)
