"""What is done with vectors after they were computed: compared, searched, mined, grouped. By numpy; no tensors are needed.

Functions have the names and arguments of `sentence_transformers.util`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magray.vectors import as_rows, normalized

Floats = NDArray[np.float32]
Score = Callable[[Any, Any], Floats]


def cos_sim(a: Any, b: Any) -> Floats:
    """The cosines of all pairs."""
    found: Floats = normalized(as_rows(a)) @ normalized(as_rows(b)).T
    return found


def dot_score(a: Any, b: Any) -> Floats:
    """The dot products of all pairs."""
    found: Floats = as_rows(a) @ as_rows(b).T
    return found


def euclidean_sim(a: Any, b: Any) -> Floats:
    """The distances of all pairs, negated."""
    first, second = as_rows(a), as_rows(b)
    found: Floats = -np.linalg.norm(first[:, None, :] - second[None, :, :], axis=2)
    return found


def manhattan_sim(a: Any, b: Any) -> Floats:
    """The sums of the absolute differences of all pairs, negated."""
    first, second = as_rows(a), as_rows(b)
    found: Floats = -np.abs(first[:, None, :] - second[None, :, :]).sum(axis=2)
    return found


def pairwise_cos_sim(a: Any, b: Any) -> Floats:
    """The cosines of the pairs at the same places."""
    found: Floats = (normalized(as_rows(a)) * normalized(as_rows(b))).sum(axis=1)
    return found


def pairwise_dot_score(a: Any, b: Any) -> Floats:
    """The dot products of the pairs at the same places."""
    found: Floats = (as_rows(a) * as_rows(b)).sum(axis=1)
    return found


def normalize_embeddings(embeddings: Any) -> Floats:
    """Rows of length 1."""
    return normalized(as_rows(embeddings))


def truncate_embeddings(embeddings: Any, truncate_dim: int | None) -> Any:
    """The first so many numbers of each row."""
    return embeddings[..., :truncate_dim]


def semantic_search(
    query_embeddings: Any,
    corpus_embeddings: Any,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500_000,
    top_k: int = 10,
    score_function: Score = cos_sim,
) -> list[list[dict[str, Any]]]:
    """By query the best of the corpus, the best first: `corpus_id` and `score`."""
    queries, corpus = as_rows(query_embeddings), as_rows(corpus_embeddings)
    found: list[list[dict[str, Any]]] = []
    for start in range(0, len(queries), query_chunk_size):
        some = queries[start : start + query_chunk_size]
        kept: list[list[tuple[float, int]]] = [[] for _ in some]
        for at in range(0, len(corpus), corpus_chunk_size):
            scores = np.asarray(score_function(some, corpus[at : at + corpus_chunk_size]))
            best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
            for row, places in enumerate(best):
                kept[row] += [(float(scores[row, place]), at + int(place)) for place in places]
        for of_query in kept:
            of_query.sort(key=lambda one: -one[0])
            found.append([{"corpus_id": at, "score": score} for score, at in of_query[:top_k]])
    return found


def paraphrase_mining(model: Any, sentences: list[str], *, top_k: int = 100, **encoding: Any) -> list[list[Any]]:
    """All pairs of sentences that are among each other's nearest, the nearest first: `[score, i, j]`."""
    return paraphrase_mining_embeddings(model.encode(sentences, **encoding), top_k=top_k)


def paraphrase_mining_embeddings(
    embeddings: Any,
    query_chunk_size: int = 5000,
    max_pairs: int = 500_000,
    top_k: int = 100,
    score_function: Score = cos_sim,
) -> list[list[Any]]:
    """As `paraphrase_mining`, of vectors."""
    rows = as_rows(embeddings)
    pairs: dict[tuple[int, int], float] = {}
    for start in range(0, len(rows), query_chunk_size):
        scores = np.asarray(score_function(rows[start : start + query_chunk_size], rows))
        best = np.argsort(-scores, axis=1, kind="stable")[:, : top_k + 1]
        for row, places in enumerate(best):
            own = start + row
            for place in map(int, places):
                if place != own:
                    pairs[min(own, place), max(own, place)] = float(scores[row, place])
    ordered = sorted(pairs.items(), key=lambda one: -one[1])[:max_pairs]
    return [[score, first, second] for (first, second), score in ordered]


def community_detection(
    embeddings: Any, threshold: float = 0.75, min_community_size: int = 10, batch_size: int = 1024
) -> list[list[int]]:
    """Groups of at least so many vectors that are near one of them, the largest first; the centre of each is its first."""
    rows = normalized(as_rows(embeddings))
    groups: list[list[int]] = []
    for start in range(0, len(rows), batch_size):
        scores = rows[start : start + batch_size] @ rows.T
        for own in scores:
            near = np.flatnonzero(own >= threshold)
            if len(near) >= min_community_size:
                groups.append([int(at) for at in near[np.argsort(-own[near], kind="stable")]])
    groups.sort(key=len, reverse=True)
    taken: set[int] = set()
    found: list[list[int]] = []
    for group in groups:
        left = [at for at in group if at not in taken]
        if len(left) >= min_community_size:
            found.append(left)
            taken.update(left)
    found.sort(key=len, reverse=True)
    return found
