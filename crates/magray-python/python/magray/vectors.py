"""What is done to rows of numbers after they were computed: scaled, cut, made smaller. Computes no embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def normalized(rows: Floats) -> Floats:
    """Rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return (rows / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def quantized(
    rows: Any, precision: str, ranges: Any = None, calibration_embeddings: Any = None
) -> NDArray[Any]:
    """Rows in a smaller form, by the rules of sentence-transformers: `int8` and `uint8` divide the range of each column
    (of `ranges`, of `calibration_embeddings`, or of the rows themselves) in 255 steps, `binary` and `ubinary` keep the signs as bits."""
    rows = np.asarray(rows)
    if precision == "float32":
        return np.asarray(rows, np.float32)
    if precision in ("binary", "ubinary"):
        bits = np.packbits(rows > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if precision not in PRECISIONS:
        raise ValueError(f"there is no precision '{precision}': {', '.join(PRECISIONS)}")
    if ranges is None:
        known = rows if calibration_embeddings is None else np.asarray(calibration_embeddings)
        ranges = np.vstack((known.min(axis=0), known.max(axis=0)))
    starts = ranges[0, :]
    steps = (ranges[1, :] - ranges[0, :]) / 255
    steps = np.where(steps == 0, 1, steps)
    places: NDArray[Any] = np.clip((rows - starts) / steps, 0, 255)
    return places.astype(np.uint8) if precision == "uint8" else (places - 128).astype(np.int8)


def as_rows(vectors: Any) -> Floats:
    """Vectors of any kind (arrays, tensors, lists of either) as a table."""
    if isinstance(vectors, Sequence) and vectors and hasattr(vectors[0], "numpy"):
        vectors = np.stack([one.numpy() for one in vectors])
    elif hasattr(vectors, "detach"):
        vectors = vectors.detach().cpu().numpy()
    table = np.asarray(vectors, np.float32)
    return table[None, :] if table.ndim == 1 else table
