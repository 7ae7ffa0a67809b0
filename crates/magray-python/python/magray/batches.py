"""Columns of texts as columns of vectors, for engines of data: Ray, Daft, Spark. Knows none of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from magray import places
from magray._magray import WorkerLost
from magray.encoder import Encoder


class Embedder:
    """Adds a column of vectors to batches: dicts of arrays, tables of pyarrow, frames of pandas.

    For `ray.data.Dataset.map_batches(Embedder, fn_constructor_kwargs={...}, concurrency=N)`. `text` is the column that is read,
    `output` the one that is made; `encode` has arguments of `Encoder.encode`, all others are those of `Encoder`. The model is
    loaded by the first batch of each process.
    """

    def __init__(
        self,
        model: str = places.DEFAULT_MODEL,
        *,
        text: str = "text",
        output: str = "embedding",
        encode: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.model, self.text, self.output = model, text, output
        self.encode, self.settings = dict(encode or {}), settings
        self._encoder: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        """What embeds, in this process."""
        if self._encoder is None:
            self._encoder = Encoder(self.model, **self.settings)
        return self._encoder

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None}

    def rows(self, texts: list[Any]) -> Any:
        """The vectors of texts; what is no text is an error that names its place."""
        for at, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"row {at} of a batch has no text in '{self.text}', but {type(text).__name__}")
        return self._computed(texts, 0)

    def _computed(self, texts: list[Any], first: int) -> Any:
        """The vectors of texts, of which this is the place of the first. A request in which two workers ended is divided: where chance ended
        them, the halves are computed, and a text that ends workers by itself is named at last."""
        try:
            return self.encoder.encode(texts, **self.encode)
        except WorkerLost as error:
            if len(texts) == 1:
                raise WorkerLost(f"row {first} of a batch ends every worker that computes it: {error}") from error
            half = len(texts) // 2
            return _joined(self._computed(texts[:half], first), self._computed(texts[half:], first + half))

    def __call__(self, batch: Any) -> Any:
        """The batch with its vectors."""
        if isinstance(batch, dict):
            return batch | {self.output: self.rows([*map(_plain, batch[self.text])])}
        if hasattr(batch, "append_column"):
            return batch.append_column(self.output, as_column(self.rows(batch.column(self.text).to_pylist())))
        rows = self.rows(batch[self.text].tolist())
        return batch.assign(**{self.output: list(rows)})


def as_column(rows: Any) -> Any:
    """Rows as a column of pyarrow: lists of one length, over the same memory."""
    import pyarrow

    values = pyarrow.array(np.ascontiguousarray(rows).reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(values, rows.shape[1])


def _joined(first: Any, second: Any) -> Any:
    """What was computed of two halves: arrays, lists of what each text has, or tensors."""
    if isinstance(first, list):
        return first + second
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    import torch

    return torch.cat([first, second])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
