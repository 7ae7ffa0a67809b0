"""Spark: a function for `DataFrame.mapInPandas`. Needs `pyspark`, `pandas` and `pyarrow`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from magray import places
from magray.batches import Embedder


def embedder(
    model: str = places.DEFAULT_MODEL, *, text: str = "text", output: str = "embedding", **settings: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What adds a column of vectors: `frame.mapInPandas(embedder(), schema(frame))`. Other arguments are those of `Embedder`."""
    embed = Embedder(model, text=text, output=output, **settings)

    def embedded(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            yield embed(frame)

    return embedded


def schema(frame: Any, output: str = "embedding") -> Any:
    """The schema of a frame with its column of vectors."""
    from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

    return StructType([*frame.schema.fields, StructField(output, ArrayType(FloatType()))])
