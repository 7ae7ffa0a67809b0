"""Embeddings, reranking, chat and vector search in one engine: on the CPU in this process, or on a GPU in a worker.

Imports nothing but what is used: neither numpy nor the engine is loaded before the first class is asked for.
"""

from __future__ import annotations

import importlib

# As in `typing`, which takes longer to import than all else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from magray._magray import Busy, Cancelled, DeviceError, Forked, MagrayError, WorkerLost, __version__
    from magray.chat import Answer, Chat, Piece
    from magray.collection import Collection, Hit
    from magray.cross_encoder import CrossEncoder
    from magray.encoder import Encoder
    from magray.engine import Engine

__all__ = [
    "Answer",
    "Busy",
    "Cancelled",
    "Chat",
    "Collection",
    "CrossEncoder",
    "DeviceError",
    "Encoder",
    "Engine",
    "Forked",
    "Hit",
    "MagrayError",
    "Piece",
    "WorkerLost",
    "__version__",
]

_HOMES = {
    "Answer": "chat",
    "Busy": "_magray",
    "Cancelled": "_magray",
    "Chat": "chat",
    "Collection": "collection",
    "CrossEncoder": "cross_encoder",
    "DeviceError": "_magray",
    "Encoder": "encoder",
    "Engine": "engine",
    "Forked": "_magray",
    "Hit": "collection",
    "MagrayError": "_magray",
    "Piece": "chat",
    "WorkerLost": "_magray",
    "__version__": "_magray",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'magray' has no attribute '{name}'")
    found = getattr(importlib.import_module(f"magray.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
