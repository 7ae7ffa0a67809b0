"""Daft: a function of a column of texts that gives a column of vectors. Needs `daft` and `pyarrow`."""

from __future__ import annotations

from typing import Any

import daft

from magray import places
from magray.batches import Embedder, as_column

__all__ = ["Embedder", "embedder"]


def embedder(model: str = places.DEFAULT_MODEL, *, options: dict[str, Any] | None = None, **settings: Any) -> Any:
    """`frame.with_column("embedding", embedder()(frame["text"]))`. `options` are those of `daft.cls`, others of `Embedder`."""

    class MagrayEmbedder:
        def __init__(self) -> None:
            self.embed = Embedder(model, **settings)

        @daft.method.batch(return_dtype=daft.DataType.list(daft.DataType.float32()))
        def __call__(self, texts: daft.Series) -> Any:
            import pyarrow

            rows = as_column(self.embed.rows(texts.to_pylist()))
            return rows.cast(pyarrow.list_(pyarrow.float32()))

    return daft.cls(**(options or {}))(MagrayEmbedder)()
