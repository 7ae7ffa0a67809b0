"""Ray: a class for `map_batches`, a job over Parquet files that can be started again, and a deployment of Ray Serve.

Needs `ray[data]` and `pyarrow`. A worker of a GPU that dies is replaced by the engine: Ray sees a slower batch, and no failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import ray

from magray import places
from magray.batches import Embedder
from magray.encoder import Encoder
from magray.jobs import Job, Portion, Reader
from magray.progress import Progress

__all__ = ["Embedder", "deployment", "embed_parquet"]


class _Portions:
    """Runs portions of a job, in one process of Ray."""

    def __init__(self, job: Job, done_keys: Any, embedder: Embedder) -> None:
        self.job, self.embedder, self.reader = job, embedder, Reader()
        self.done_keys = ray.get(done_keys) if isinstance(done_keys, ray.ObjectRef) else done_keys

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        portions = zip(batch["file"], batch["start"], batch["rows"], batch["source"], strict=True)
        each = [Portion(str(file), int(start), int(rows), str(source)) for file, start, rows, source in portions]
        done = [self.job.run(portion, self.done_keys, self.embedder, self.reader) for portion in each]
        return batch | {"written": [rows for rows, _ in done], "told": [told for _, told in done]}


def embed_parquet(
    inputs: str | Sequence[str],
    output: str,
    *,
    model: str = places.DEFAULT_MODEL,
    key: str = "id",
    text: str = "text",
    vectors: str = "embedding",
    portion: int = 2048,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    progress: bool = True,
    encode: dict[str, Any] | None = None,
    **settings: Any,
) -> int:
    """Embeds the column `text` of Parquet files into Parquet files of the folder `output`, or into a Lance dataset where `output` ends with
    `.lance`; how many rows this run has written.

    Started again, it computes only the keys that are missing in `output`; no key is there twice. The files must be in a place
    that all nodes see, and those of the input must not change while the job runs. A Lance dataset is for one job at a time. `concurrency` is
    how many processes compute; `settings` are those of `magray.Encoder`.
    """
    job = Job((inputs,) if isinstance(inputs, str) else tuple(inputs), output, key, text, vectors, portion)
    job.remove_unfinished()
    planned = job.plan()
    whole, done_keys = job.done(planned)
    left = [one for one in planned if one not in whole]
    if not left:
        return 0
    embedder = Embedder(model, text=text, output=vectors, encode=encode, **settings)
    arguments: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    done = ray.data.from_items([one.shown() for one in left], override_num_blocks=len(left)).map_batches(
        _Portions,
        batch_size=1,
        concurrency=concurrency,
        fn_constructor_args=(job, None if done_keys is None else ray.put(done_keys), embedder),
        **{name: value for name, value in arguments.items() if value is not None},
    )
    written, reached, take = 0, 0, job.taker()
    with Progress(sum(one.rows for one in left), "Embedding") if progress else nullcontext() as bar:
        for row in done.iter_rows():
            take(str(row["told"]))
            written += int(row["written"])
            reached += int(row["rows"])
            if bar is not None:
                bar.show(reached)
    return written


def deployment(model: str = places.DEFAULT_MODEL, *, options: dict[str, Any] | None = None, **settings: Any) -> Any:
    """An application of Ray Serve: POST {"texts": [...]} gives {"embeddings": [...]}, and handles call `embed.remote(texts)`.

    `options` are those of `serve.deployment`, `settings` those of `magray.Encoder`. Requests are batched by the engine.
    """
    from ray import serve

    class MagrayEmbedder:
        def __init__(self) -> None:
            self.encoder = Encoder(model, **settings)

        async def embed(self, texts: list[str]) -> Any:
            return await self.encoder.aencode(texts)

        async def __call__(self, request: Any) -> dict[str, Any]:
            texts = (await request.json()).get("texts")
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError('send {"texts": ["...", "..."]}')
            return {"embeddings": (await self.embed(texts)).tolist()}

    return serve.deployment(**(options or {}))(MagrayEmbedder).bind()
