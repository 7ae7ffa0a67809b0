"""Texts as vectors, asked for as of a SentenceTransformer. An engine of this process computes them, or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from magray import places, vectors
from magray.engine import Engine
from magray.model import Model

Floats = NDArray[np.float32]
Text = str | Sequence[str]
# Names of prompts that models have for the two, the first one found is taken.
_QUERY = ("query", "search_query")
_DOCUMENT = ("document", "passage", "search_document", "corpus")


class Encoder(Model):
    """A model that embeds. `server`, `api_key`, `engine` and `settings` as for `Model`.

    `prompts` adds prompts to those of the model, `truncate_dim` keeps the first so many numbers of each vector.
    """

    def __init__(
        self,
        model: str = places.DEFAULT_MODEL,
        *,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
        server: str | None = None,
        api_key: str | None = None,
        engine: Engine | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, server, api_key, engine, settings)
        self.truncate_dim = truncate_dim
        known = self._known()
        if known["does"] != "embed":
            raise ValueError(f"'{model}' does not embed texts ({known['does']})")
        self._own_prompts: dict[str, str] = dict(known.get("prompts") or {})
        self.prompts: dict[str, str] = self._own_prompts | dict(prompts or {})
        self.default_prompt_name: str | None = default_prompt_name
        if default_prompt_name is not None and default_prompt_name not in self.prompts:
            raise ValueError(self._unknown(default_prompt_name))

    def _known(self) -> dict[str, Any]:
        if self.engine is not None:
            return self.engine.known
        assert self.server is not None
        # By default a server chooses; a name is that of one of its models.
        name = None if self.model == places.DEFAULT_MODEL else self.model
        model = self.server.model(name, "embed")
        self.model = model["id"]
        return {
            "does": "embed",
            "dimensions": model.get("outputs"),
            "max_tokens": model.get("max_tokens"),
            "prompts": dict.fromkeys(model.get("prompts") or (), ""),
            "default_prompt": None,
        }

    @overload
    def encode(
        self, sentences: Text, prompt_name: str | None = ..., prompt: str | None = ..., batch_size: int = ...,
        show_progress_bar: bool | None = ..., output_value: Literal["sentence_embedding"] = ...,
        precision: Literal["float32"] = ..., convert_to_numpy: Literal[True] = ...,
        convert_to_tensor: Literal[False] = ..., device: str | None = ..., normalize_embeddings: bool = ...,
        truncate_dim: int | None = ...,
    ) -> Floats: ...

    @overload
    def encode(
        self, sentences: Text, prompt_name: str | None = ..., prompt: str | None = ..., batch_size: int = ...,
        show_progress_bar: bool | None = ..., output_value: str = ..., precision: str = ...,
        convert_to_numpy: bool = ..., convert_to_tensor: bool = ..., device: str | None = ...,
        normalize_embeddings: bool = ..., truncate_dim: int | None = ...,
    ) -> Any: ...

    def encode(
        self,
        sentences: Text,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 64,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """A vector for a text, rows for several. As `SentenceTransformer.encode`:

        `prompt_name` or `prompt` is put before each text; `batch_size` is how many texts are handed to the queue together,
        and changes no vector; `output_value` is "sentence_embedding" or "token_embeddings"; `precision` is "float32",
        "int8", "uint8", "binary" or "ubinary"; `convert_to_tensor` gives a torch tensor over the same memory. `device` is
        chosen when the encoder is made: another one here is an error.
        """
        self._check(device, batch_size, precision)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        texts, name = self._prompted(texts, prompt_name, prompt)
        if output_value == "token_embeddings":
            by_text = self._local("token_embeddings").embed_tokens(texts, prompt=name)
            return by_text[0] if isinstance(sentences, str) else by_text
        if output_value != "sentence_embedding":
            raise ValueError(f"output_value is 'sentence_embedding' or 'token_embeddings', not '{output_value}'")
        bar = "Embedding" if show_progress_bar else None
        rows = self._rows(texts, name, batch_size, truncate_dim or self.truncate_dim, normalize_embeddings, bar)
        return _shaped(rows, isinstance(sentences, str), precision, convert_to_numpy, convert_to_tensor)

    async def aencode(
        self,
        sentences: Text,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 64,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Floats:
        """As `encode`, awaited: no thread waits for it, and a task that is cancelled cancels the work."""
        self._check(None, batch_size, "float32")
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        texts, name = self._prompted(texts, prompt_name, prompt)
        dimensions = truncate_dim or self.truncate_dim
        if self.engine is None:
            import asyncio

            rows = await asyncio.to_thread(
                self._rows, texts, name, batch_size, dimensions, normalize_embeddings, None
            )
        else:
            rows = await self.engine.aembed(
                texts, prompt=name, portion=batch_size, dimensions=dimensions, normalize=normalize_embeddings
            )
        return rows[0] if isinstance(sentences, str) else rows

    def encode_query(self, sentences: Text, **arguments: Any) -> Any:
        """As `encode`, with the prompt "query" where there is one and none is named."""
        return self.encode(sentences, **self._named(arguments, _QUERY))

    def encode_document(self, sentences: Text, **arguments: Any) -> Any:
        """As `encode`, with the prompt "document" or "passage" where there is one and none is named."""
        return self.encode(sentences, **self._named(arguments, _DOCUMENT))

    async def aencode_query(self, sentences: Text, **arguments: Any) -> Floats:
        """As `encode_query`, awaited; the arguments are those of `aencode`."""
        return await self.aencode(sentences, **self._named(arguments, _QUERY))

    async def aencode_document(self, sentences: Text, **arguments: Any) -> Floats:
        """As `encode_document`, awaited; the arguments are those of `aencode`."""
        return await self.aencode(sentences, **self._named(arguments, _DOCUMENT))

    def _named(self, arguments: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        if arguments.get("prompt_name") is None and arguments.get("prompt") is None:
            arguments["prompt_name"] = next((name for name in names if name in self.prompts), None)
        return arguments

    def similarity(self, first: Any, second: Any) -> Floats:
        """The cosines of all pairs."""
        first, second = (vectors.normalized(vectors.as_rows(some)) for some in (first, second))
        found: Floats = first @ second.T
        return found

    def similarity_pairwise(self, first: Any, second: Any) -> Floats:
        """The cosines of the pairs at the same places."""
        first, second = (vectors.normalized(vectors.as_rows(some)) for some in (first, second))
        found: Floats = (first * second).sum(axis=1)
        return found

    def get_sentence_embedding_dimension(self) -> int:
        """Numbers of a vector."""
        every = int(self._known()["dimensions"])
        return min(every, self.truncate_dim) if self.truncate_dim else every

    get_embedding_dimension = get_sentence_embedding_dimension

    @property
    def max_seq_length(self) -> int:
        """Tokens that the model reads of a text."""
        return int(self._known()["max_tokens"])

    def get_max_seq_length(self) -> int:
        """Tokens that the model reads of a text."""
        return self.max_seq_length

    @property
    def device(self) -> str:
        """Where it is computed."""
        return self.engine.device if self.engine is not None else "server"

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of texts, special ones included."""
        return self._local("tokens").tokens(texts)

    def _local(self, what: str) -> Engine:
        if self.engine is None:
            raise ValueError(f"a server gives no {what}: use an engine of this process (server='')")
        return self.engine

    def _check(self, device: str | None, batch_size: int, precision: str) -> None:
        if device is not None and device != self.device and {device, self.device} != {"cpu", "auto"}:
            raise ValueError(f"this encoder computes on '{self.device}': make another one for '{device}'")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: at least 1")
        if precision not in vectors.PRECISIONS:
            raise ValueError(f"there is no precision '{precision}': {', '.join(vectors.PRECISIONS)}")

    def _unknown(self, name: str) -> str:
        return f"the model has no prompt named '{name}'; it has: {', '.join(sorted(self.prompts)) or 'none'}"

    def _prompted(self, texts: list[str], name: str | None, prompt: str | None) -> tuple[list[str], str | None]:
        """The texts with a prompt of the caller's before them, or the name of one of the model's."""
        if prompt is None:
            name = self.default_prompt_name if name is None else name
            if name is None or self.prompts.get(name) == self._own_prompts.get(name, ""):
                if name is not None and name not in self._own_prompts:
                    raise ValueError(self._unknown(name))
                return texts, name
            if name not in self.prompts:
                raise ValueError(self._unknown(name))
            prompt = self.prompts[name]
        known = self._known()
        for own, text in self._own_prompts.items():
            if text == prompt and self.engine is not None:
                return texts, own
        if known.get("include_prompt") is False:
            raise ValueError("this model leaves its prompts out of the vectors, and this prompt is none of its own")
        if known.get("default_prompt"):
            raise ValueError("this model puts its default prompt before every text: name another one of its own")
        return [prompt + text for text in texts], None

    def _rows(
        self, texts: list[str], prompt: str | None, portion: int, dimensions: int | None, normalize: bool, bar: str | None
    ) -> Floats:
        if self.engine is not None:
            return self.engine.embed(
                texts, prompt=prompt, portion=portion, dimensions=dimensions, normalize=normalize, bar=bar
            )
        assert self.server is not None
        if not texts:
            return np.empty((0, self.get_sentence_embedding_dimension()), np.float32)
        rows = self.server.embed(texts, self.model, prompt, portion)[:, :dimensions]
        return vectors.normalized(rows) if normalize else rows


def _shaped(rows: Floats, is_one: bool, precision: str, to_numpy: bool, to_tensor: bool) -> Any:
    shaped: Any = rows if precision == "float32" else vectors.quantized(rows, precision)
    if to_tensor:
        import torch

        shaped = torch.from_dlpack(shaped)
    elif not to_numpy and not is_one:
        return list(shaped)
    return shaped[0] if is_one else shaped
