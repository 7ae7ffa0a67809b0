"""Texts that are found by their meaning, by their words, or by both: in a folder of this machine, or at a server.

What it stores is what the commands `magray index` and `magray search` store, and the other way round.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magray import places
from magray._magray import Collections, MagrayError
from magray.encoder import Encoder
from magray.server import Server, of_environment, path_of

Floats = NDArray[np.float32]
Id = int | str
TEXT_FIELD = "text"
# Of reciprocal ranks, and what each part of a hybrid search finds at least: as the command `search` has them.
RRF_K = 60
CANDIDATES_MIN = 50
PORTION = 256

# One for a folder and a process: a folder can be opened once.
_OPEN: dict[tuple[int, str], weakref.ref[Folder]] = {}
_OPENING = threading.Lock()


@dataclass
class Hit:
    """A text that was found."""

    id: Id
    score: float
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


class Folder:
    """Collections of a folder, as this process has them open."""

    def __init__(self, path: str) -> None:
        self.native = Collections(path)


def _opened(path: str) -> Folder:
    key = (os.getpid(), os.path.realpath(path))
    with _OPENING:
        known = _OPEN.get(key)
        folder = known() if known is not None else None
        if folder is None:
            folder = Folder(path)
            _OPEN[key] = weakref.ref(folder)
        return folder


class Collection:
    """Texts with metadata under a name; made when the first are added.

    `folder`: where collections lie, by default beside the models. `server` as for `Encoder`: then they lie there. `encoder` embeds;
    by default one of the model that the collection was made with. `distance`: "cosine", "dot", "euclid" or "manhattan".
    """

    def __init__(
        self,
        name: str,
        encoder: Encoder | None = None,
        *,
        folder: str | None = None,
        server: str | None = None,
        api_key: str | None = None,
        distance: str = "cosine",
    ) -> None:
        self.name, self.distance, self._encoder = name, distance, encoder
        address = of_environment(server) if folder is None else None
        self._server = Server(address, api_key) if address else None
        self._path = folder or os.path.join(places.store_folder(), "collections")
        self._folder: Folder | None = None

    def add(
        self,
        texts: Sequence[str],
        ids: Sequence[Id] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        embeddings: Any = None,
    ) -> list[Id]:
        """Adds texts, or replaces those with the same ids; without ids the same text is the same point. Returns the ids."""
        for name, given in (("ids", ids), ("metadata", metadata)):
            if given is not None and len(given) != len(texts):
                raise ValueError(f"{len(given)} {name} for {len(texts)} texts: as many of both")
        kept: list[Id] = []
        payloads: list[dict[str, Any]] = []
        points: list[Id] = []
        for at, text in enumerate(texts):
            payload = dict((metadata[at] if metadata is not None else None) or {})
            payload[TEXT_FIELD] = text
            own = ids[at] if ids is not None else None
            point = _point(text if own is None else own, is_text=own is None)
            if own is not None and point != own:
                payload["id"] = own
            kept.append(point if own is None else own)
            points.append(point)
            payloads.append(payload)
        if not texts:
            return kept
        for start in range(0, len(texts), PORTION):
            part = slice(start, start + PORTION)
            rows = self._vectors(list(texts[part])) if embeddings is None else np.asarray(embeddings)[part]
            self._ensure(rows.shape[1])
            self._upsert(points[part], np.ascontiguousarray(rows, np.float32), payloads[part])
        return kept

    def search(
        self,
        query: str | None = None,
        k: int = 10,
        *,
        filter: Mapping[str, Any] | None = None,
        hybrid: bool = False,
        vector: Any = None,
    ) -> list[Hit]:
        """The `k` texts that fit best, the best first. `hybrid`: by words too, and both fused; `vector`: in place of the query's.

        `filter` is one of Qdrant's API: {"must": [{"key": "lang", "match": {"value": "en"}}]}.
        """
        if k < 1:
            raise ValueError(f"{k} texts are asked for: at least one")
        if query is None and vector is None:
            raise ValueError("a search needs a query or a vector")
        if hybrid and query is None:
            raise ValueError("words are searched by a query: name one")
        if self._known() is None:
            return []
        row = self._query_vector(query) if vector is None else np.asarray(vector, np.float32)
        words = query if hybrid else None
        found = self._found(row, words, k, filter)
        return [_hit(point, point["score"]) for point in found]

    def get(self, ids: Sequence[Id]) -> list[Hit]:
        """Texts by their ids, in the order of these; those that are not there are left out."""
        if not ids or self._known() is None:
            return []
        points = [_point(one) for one in ids]
        if self._server is not None:
            body = {"ids": points, "with_payload": True}
            found = self._server.ask("POST", path_of(self.name, "/points"), body)["result"]
        else:
            found = json.loads(self._here().get(self.name, [json.dumps(one) for one in points]))
        by_id = {str(point["id"]): point for point in found}
        return [_hit(by_id[str(one)], 0.0) for one in points if str(one) in by_id]

    def delete(self, ids: Sequence[Id] | None = None, *, filter: Mapping[str, Any] | None = None) -> None:
        """Removes texts by their ids, or those that a filter fits."""
        if (ids is None) == (filter is None):
            raise ValueError("name ids or a filter: one of them")
        if self._known() is None:
            return
        points = None if ids is None else [_point(one) for one in ids]
        if self._server is not None:
            body = {"filter": filter} if points is None else {"points": points}
            self._server.ask("POST", path_of(self.name, "/points/delete?wait=true"), body)
            return
        shown = None if points is None else [json.dumps(one) for one in points]
        self._here().remove(self.name, shown, None if filter is None else json.dumps(filter))

    def count(self, filter: Mapping[str, Any] | None = None) -> int:
        """How many texts there are, or fit a filter."""
        if self._known() is None:
            return 0
        if self._server is not None:
            body = {"exact": True} if filter is None else {"exact": True, "filter": filter}
            return int(self._server.ask("POST", path_of(self.name, "/points/count"), body)["result"]["count"])
        return self._here().count(self.name, None if filter is None else json.dumps(filter))

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[Hit]:
        """All texts, in the order of their ids."""
        offset: Any = None
        while self._known() is not None:
            page = self._page(offset, 1000)
            yield from (_hit(point, 0.0) for point in page["points"])
            offset = page["next"]
            if offset is None:
                return

    def drop(self) -> None:
        """Deletes the collection."""
        if self._known() is None:
            return
        if self._server is not None:
            self._server.ask("DELETE", path_of(self.name))
        else:
            self._here().delete(self.name)

    @property
    def encoder(self) -> Encoder:
        """What embeds the texts."""
        if self._encoder is None:
            known = self._known() or {}
            model = known.get("model") or places.DEFAULT_MODEL
            server = self._server
            self._encoder = (
                Encoder(model, server="") if server is None else Encoder(model, server=server.url + server.path, api_key=server.key)
            )
        return self._encoder

    @encoder.setter
    def encoder(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_folder": None}

    def _here(self) -> Collections:
        # A fork's child has none; to open the folder there fails with a sentence while the parent has it.
        if self._folder is None or (os.getpid(), os.path.realpath(self._path)) not in _OPEN:
            os.makedirs(self._path, exist_ok=True)
            self._folder = _opened(self._path)
        return self._folder.native

    def _known(self) -> dict[str, Any] | None:
        """What the collection is; `None`: there is none yet."""
        if self._server is None:
            told = self._here().info(self.name)
            found: dict[str, Any] | None = None if told is None else json.loads(told)
            return found
        if not self._server.ask("GET", path_of(self.name, "/exists"))["result"]["exists"]:
            return None
        config = self._server.ask("GET", path_of(self.name))["result"]["config"]
        vectors = config["params"]["vectors"]
        model = (config.get("metadata") or {}).get("model")
        return {"dimensions": vectors.get("size"), "model": model, "text_field": config.get("text_field")}

    def _ensure(self, dimensions: int) -> None:
        known = self._known()
        if known is not None:
            if known["dimensions"] != dimensions:
                told = f"the collection '{self.name}' has vectors of {known['dimensions']} numbers, not {dimensions}"
                raise ValueError(told)
            return
        model = self._encoder.model if self._encoder is not None else None
        if self._server is None:
            self._here().create(self.name, dimensions, self.distance, TEXT_FIELD, model)
            return
        body: dict[str, Any] = {
            "vectors": {"size": dimensions, "distance": self.distance.capitalize()},
            "text_field": TEXT_FIELD,
        }
        body |= {"metadata": {"model": model}} if model else {}
        self._server.ask("PUT", path_of(self.name), body)

    def _upsert(self, points: list[Id], rows: Floats, payloads: list[dict[str, Any]]) -> None:
        if self._server is None:
            ids = [json.dumps(one) for one in points]
            self._here().upsert(self.name, ids, rows.tobytes(), [json.dumps(one) for one in payloads])
            return
        zipped = zip(points, rows.tolist(), payloads, strict=True)
        body = {"points": [{"id": one, "vector": row, "payload": payload} for one, row, payload in zipped]}
        self._server.ask("PUT", path_of(self.name, "/points?wait=true"), body)

    def _found(
        self, row: Floats, words: str | None, limit: int, filter: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        if self._server is None:
            shown = None if filter is None else json.dumps(filter)
            found: list[dict[str, Any]] = json.loads(
                self._here().query(self.name, np.ascontiguousarray(row).tobytes(), words, limit, shown)
            )
            return found
        nearest = {"nearest": row.tolist()}
        body: dict[str, Any] = {"query": nearest, "limit": limit, "with_payload": True}
        if words is not None:
            most = max(limit * 4, CANDIDATES_MIN)
            by_words = {"query": {"text": {"query": words}}, "using": TEXT_FIELD, "limit": most}
            body |= {"prefetch": [{"query": nearest, "limit": most}, by_words], "query": {"rrf": {"k": RRF_K}}}
        body |= {"filter": filter} if filter is not None else {}
        result = self._server.ask("POST", path_of(self.name, "/points/query"), body)["result"]
        points: list[dict[str, Any]] = result["points"]
        return points

    def _page(self, offset: Any, limit: int) -> dict[str, Any]:
        if self._server is None:
            shown = None if offset is None else json.dumps(offset)
            page: dict[str, Any] = json.loads(self._here().scroll(self.name, None, shown, limit))
            return page
        body = {"limit": limit, "with_payload": True, "offset": offset}
        result = self._server.ask("POST", path_of(self.name, "/points/scroll"), body)["result"]
        return {"points": result["points"], "next": result["next_page_offset"]}

    def _vectors(self, texts: list[str]) -> Floats:
        rows: Floats = self.encoder.encode_document(texts)
        return rows

    def _query_vector(self, query: str | None) -> Floats:
        if query is None:
            raise MagrayError("a search without a query has a vector")
        row: Floats = self.encoder.encode_query(query)
        return row


def _point(own: Id, is_text: bool = False) -> Id:
    """The id of a point: an unsigned number or a UUID; what is neither becomes one by its hash, as in the program."""
    if not is_text:
        if isinstance(own, int) and not isinstance(own, bool) and 0 <= own < 1 << 64:
            return own
        if isinstance(own, str):
            try:
                return str(uuid.UUID(own))
            except ValueError:
                pass
    told = own if is_text else json.dumps(own, ensure_ascii=False)
    digest = bytearray(hashlib.sha256(str(told).encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def _hit(point: dict[str, Any], score: float) -> Hit:
    payload = dict(point.get("payload") or {})
    text = payload.pop(TEXT_FIELD, "")
    own = payload.pop("id", point["id"])
    return Hit(own, score, text if isinstance(text, str) else "", payload)
