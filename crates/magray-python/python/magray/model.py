"""A model that an engine of this process computes, or a server: what `Encoder`, `CrossEncoder` and `Chat` have in common. Computes nothing."""

from __future__ import annotations

from typing import Any, TypeVar

from magray.engine import Engine
from magray.server import Server, of_environment

Own = TypeVar("Own", bound="Model")


class Model:
    """Has either an engine or a server.

    `server` (or the variable MAGRAY_SERVER) names a server, `api_key` (or MAGRAY_API_KEY) its key; `server=""` names none. `engine` is one
    that was made before; else `settings` are those of a new `Engine`.
    """

    def __init__(
        self, model: str, server: str | None, api_key: str | None, engine: Engine | None, settings: dict[str, Any]
    ) -> None:
        address = of_environment(server) if engine is None else None
        self.model = model
        self.server = Server(address, api_key) if address else None
        self.engine = engine
        if self.server is None and engine is None:
            self.engine = Engine(model, **settings)

    def close(self) -> None:
        """Ends the engine."""
        if self.engine is not None:
            self.engine.close()

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
