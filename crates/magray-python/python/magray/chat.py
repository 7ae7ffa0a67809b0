"""Conversations with a language model, whole or piece by piece. An engine of this process answers, or a server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any

from magray._magray import Answers, MagrayError
from magray.engine import Engine
from magray.model import Model
from magray.server import Connection

Message = Mapping[str, Any]
# Arguments of a request that are the server's under another name.
_OF_SERVERS = {"answers": "n", "template_variables": "chat_template_kwargs"}


@dataclass
class Piece:
    """What came of an answer: text, a thought, or a part of a call; the last one has `finish`."""

    text: str = ""
    thinking: str = ""
    call: int | None = None
    name: str | None = None
    arguments: str = ""
    finish: str | None = None
    tokens: int | None = None
    answer: int = 0

    def __str__(self) -> str:
        return self.text


@dataclass
class Answer:
    """A whole answer."""

    text: str = ""
    thinking: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    finish: str = ""
    tokens: int = 0

    def __str__(self) -> str:
        return self.text

    def add(self, piece: Piece) -> None:
        """Takes what came."""
        self.text += piece.text
        self.thinking += piece.thinking
        if piece.call is not None:
            while len(self.calls) <= piece.call:
                self.calls.append({"name": "", "arguments": ""})
            self.calls[piece.call]["name"] += piece.name or ""
            self.calls[piece.call]["arguments"] += piece.arguments
        if piece.finish is not None:
            self.finish, self.tokens = piece.finish, piece.tokens or 0


class Chat(Model):
    """A language model: a name, a folder, or a GGUF file. `server`, `api_key`, `engine` and `settings` as for `Model`.

    Arguments of a request: `max_tokens`, `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`, `frequency_penalty`,
    `presence_penalty`, `logit_bias`, `seed`, `stop`, `schema` (a JSON schema), `regex`, `choices`, `tools`, `tool_choice`,
    `thinks`, `template_variables`. A server takes those that OpenAI's API has.
    """

    def __init__(
        self,
        model: str,
        *,
        server: str | None = None,
        api_key: str | None = None,
        engine: Engine | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, server, api_key, engine, settings)
        if self.server is not None:
            self.model = self.server.model(model, "generate")["id"]
        if self.engine is not None and self.engine.known["does"] != "generate":
            raise ValueError(f"'{model}' generates no text ({self.engine.known['does']}): use a language model")

    def __call__(self, messages: str | Sequence[Message], **request: Any) -> Answer:
        """The whole answer to a question or a conversation."""
        answer = Answer()
        for piece in self.stream(messages, **request):
            answer.add(piece)
        return answer

    def stream(self, messages: str | Sequence[Message], **request: Any) -> Iterator[Piece]:
        """The answer piece by piece. An iterator that is dropped ends it."""
        return self._stream(_asked(messages, request))

    def complete(self, text: str, **request: Any) -> Answer:
        """How a text goes on, without a template."""
        answer = Answer()
        for piece in self._stream({"text": text} | request):
            answer.add(piece)
        return answer

    async def astream(self, messages: str | Sequence[Message], **request: Any) -> AsyncIterator[Piece]:
        """As `stream`, awaited."""
        asked = _asked(messages, request)
        if self.engine is None:
            async with aclosing(self._awaited_of_server(asked)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        from magray.awaiting import waker

        answers = self.engine.native().generate(json.dumps(_checked(asked)))
        try:
            while True:
                _, event = await waker().until(lambda wakeups, key: _ready(answers.poll(wakeups, key)))
                if event is None:
                    return
                for piece in _pieces(event):
                    yield piece
        finally:
            answers.cancel()

    async def acall(self, messages: str | Sequence[Message], **request: Any) -> Answer:
        """The whole answer, awaited."""
        answer = Answer()
        async for piece in self.astream(messages, **request):
            answer.add(piece)
        return answer

    def _stream(self, asked: dict[str, Any]) -> Iterator[Piece]:
        if self.engine is None:
            yield from self._of_server(asked)
            return
        answers: Answers = self.engine.native().generate(json.dumps(_checked(asked)))
        try:
            while True:
                _, event = answers.wait()
                if event is None:
                    return
                yield from _pieces(event)
        finally:
            answers.cancel()

    async def _awaited_of_server(self, asked: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        assert self.server is not None
        connection = self.server.connection()
        pieces = self._of_server(asked, connection)
        # A thread of its own: those of the loop are few, and streams that wait for their turn at the server would hold all of them.
        reader = ThreadPoolExecutor(1, "magray-stream")
        try:
            while (piece := await asyncio.get_running_loop().run_in_executor(reader, next, pieces, None)) is not None:
                yield piece
        finally:
            # The thread may be waiting for a piece that is not wanted any more: it ends then, and closes the connection.
            connection.interrupt()
            reader.submit(pieces.close)
            reader.shutdown(wait=False)

    def _of_server(self, asked: dict[str, Any], connection: Connection | None = None) -> Generator[Piece, None, None]:
        assert self.server is not None
        body = {_OF_SERVERS.get(name, name): value for name, value in asked.items()}
        for local in ("regex", "choices", "thinks"):
            if local in body:
                raise ValueError(f"'{local}' is for an engine of this process: a server takes what OpenAI's API has")
        if "schema" in body:
            named = {"name": "answer", "schema": body.pop("schema")}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if "tools" in body:
            body["tools"] = [{"type": "function", "function": tool} for tool in body["tools"]]
        is_chat = "messages" in body
        if is_chat:
            body["messages"] = [_of_api(message) for message in body["messages"]]
        else:
            body["prompt"] = body.pop("text")
        body |= {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        finish, tokens = None, None
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        with closing(self.server.lines(path, body, connection)) as events:
            for event in events:
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                for choice in event.get("choices", []):
                    yield from _of_delta(choice)
                    finish = choice.get("finish_reason") or finish
        if finish is None:
            raise MagrayError(f"{self.server.url} does not say why its answer ended")
        yield Piece(finish=finish, tokens=tokens)


def _ready(polled: tuple[bool, str | None]) -> tuple[bool, str | None] | None:
    return polled if polled[0] else None


def _asked(messages: str | Sequence[Message], request: dict[str, Any]) -> dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"messages": [dict(message) for message in messages]} | request


def _checked(asked: dict[str, Any]) -> dict[str, Any]:
    if isinstance(asked.get("stop"), str):
        asked["stop"] = [asked["stop"]]
    if isinstance(asked.get("logit_bias"), Mapping):
        asked["logit_bias"] = [[int(token), bias] for token, bias in asked["logit_bias"].items()]
    return {name: value for name, value in asked.items() if value is not None}


def _pieces(event: str) -> Iterator[Piece]:
    found = json.loads(event)
    for part in found["parts"]:
        yield Piece(answer=found["answer"], **part)
    if "finish" in found:
        yield Piece(answer=found["answer"], finish=found["finish"], tokens=found["tokens"])


def _of_api(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as OpenAI's API has it."""
    shown = {name: value for name, value in message.items() if name not in ("calls", "call_id", "thinking")}
    if message.get("calls"):
        shown["tool_calls"] = [
            {"id": call.get("id", ""), "type": "function",
             "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in message["calls"]
        ]
    if message.get("call_id"):
        shown["tool_call_id"] = message["call_id"]
    if message.get("thinking"):
        shown["reasoning_content"] = message["thinking"]
    return shown


def _of_delta(choice: dict[str, Any]) -> Iterator[Piece]:
    answer = choice.get("index", 0)
    if "text" in choice:
        if choice["text"]:
            yield Piece(text=choice["text"], answer=answer)
        return
    delta = choice.get("delta", {})
    if delta.get("reasoning_content"):
        yield Piece(thinking=delta["reasoning_content"], answer=answer)
    if delta.get("content"):
        yield Piece(text=delta["content"], answer=answer)
    for call in delta.get("tool_calls") or []:
        function = call.get("function", {})
        yield Piece(
            call=call["index"], name=function.get("name"), arguments=function.get("arguments") or "", answer=answer
        )
