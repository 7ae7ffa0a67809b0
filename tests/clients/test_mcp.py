"""The Python SDK of MCP, over stdio and over HTTP: the same tools, schemas and results through both."""

import asyncio
import json
import tempfile
import unittest
from contextlib import asynccontextmanager

import httpx2
from mcp import ClientSession, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from served import (
    BINARY,
    COMPUTING,
    EMBEDDER,
    FIXTURES,
    QUERY,
    RANKER,
    TEXTS,
    AsyncServed,
    ChatServed,
    bare_environment,
    embedded,
    ranked,
)

READING = {"chat", "evaluate_text", "get_gpu_status", "list_models", "embed_texts", "similarity", "rerank", "list_collections", "search_collection"}
CHANGING = {"offload_gpu", "release_gpu", "update_gpu_timeout", "preheat_gpu"}
# Called in the tests of the server itself.
CHANGING_TOO = {"update_gpu_priority", "clear_gpu_cache", "pull_model", "load_model", "unload_model", "alias_model", "delete_model", "add_documents"}


class Door:
    """What both doors must do; how a session is opened is told by each."""

    async def call(self, name, **arguments):
        async with self.session() as session:
            result = await session.call_tool(name, arguments)
        self.assertFalse(result.is_error, result)
        return result.structured_content

    async def test_the_tools_are_described(self):
        async with self.session() as session:
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        self.assertEqual(set(tools), READING | CHANGING | CHANGING_TOO)
        for name, tool in tools.items():
            self.assertTrue(tool.description, name)
            self.assertEqual(tool.input_schema["type"], "object", name)
            self.assertEqual(tool.output_schema["type"], "object", name)
            self.assertEqual(tool.annotations.read_only_hint, name in READING, name)

    async def test_vectors_are_those_of_the_command(self):
        found = await self.call("embed_texts", texts=TEXTS)
        self.assert_near(found["embeddings"], embedded(TEXTS))

    async def test_similarity(self):
        found = await self.call("similarity", source_sentence="river", sentences=TEXTS)
        first, *others = embedded(["river", *TEXTS])
        expected = [sum(a * b for a, b in zip(first, other)) for other in others]
        self.assert_near([found["similarities"]], [expected])

    async def test_ranks_are_those_of_the_server(self):
        found = await self.call("rerank", query=QUERY, documents=TEXTS)
        self.assertEqual([result["index"] for result in found["results"]], ranked(self.server)[0])

    async def test_documents_are_added_and_found(self):
        async with self.session() as session:
            documents = [{"text": text} for text in TEXTS if text]
            added = await session.call_tool("add_documents", {"collection": "notes", "documents": documents})
            self.assertFalse(added.is_error, added)
            asked = {"collection": "notes", "query": TEXTS[0], "hybrid": True, "limit": 1}
            found = (await session.call_tool("search_collection", asked)).structured_content
        self.assertEqual(found["results"][0]["document"]["text"], TEXTS[0])

    async def test_models_and_devices(self):
        names = {model["name"] for model in (await self.call("list_models"))["models"]}
        self.assertLessEqual({EMBEDDER, RANKER}, names)
        self.assertTrue(await self.call("get_gpu_status"))

    async def test_models_are_moved_and_their_timeout_is_changed(self):
        for tool in ("preheat_gpu", "offload_gpu", "release_gpu"):
            moved = await self.call(tool, model=EMBEDDER)
            self.assertEqual([model["name"] for model in moved["models"]], [EMBEDDER], tool)
        self.assertLess(1, len((await self.call("release_gpu"))["models"]), "all of them")
        changed = await self.call("update_gpu_timeout", timeout_seconds=300, model=EMBEDDER)
        self.assertEqual(changed, {"models": [EMBEDDER], "timeout": 300})
        self.assertIsNone((await self.call("update_gpu_timeout", timeout_seconds="never"))["timeout"])
        # What was released comes back with the next call.
        found = await self.call("embed_texts", texts=TEXTS)
        self.assert_near(found["embeddings"], embedded(TEXTS))

    async def test_a_wrong_argument_is_told_and_ends_nothing(self):
        async with self.session() as session:
            try:
                refused = (await session.call_tool("embed_texts", {"texts": 5})).is_error
            except MCPError:
                refused = True
            self.assertTrue(refused)
            self.assertFalse((await session.call_tool("get_gpu_status", {})).is_error)


class Http(Door, AsyncServed):
    @asynccontextmanager
    async def session(self):
        async with streamable_http_client(self.url + "/mcp") as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            yield session


class Chat(ChatServed, unittest.IsolatedAsyncioTestCase):
    """A language model that answers, and tells its progress."""

    async def test_an_answer_fits_its_schema_and_progress_is_told(self):
        # The debug mode of such tests tells of every task that is slow.
        asyncio.get_running_loop().set_debug(False)
        told = []

        async def tell(progress, total, message):
            told.append(progress)

        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
        arguments = {"prompt": "hello", "json_schema": schema, "max_tokens": 100}
        async with streamable_http_client(self.url + "/mcp") as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            result = await session.call_tool("chat", arguments, progress_callback=tell)
        self.assertFalse(result.is_error, result)
        self.assertIn(json.loads(result.structured_content["text"])["n"], (1, 2))
        self.assertTrue(told)


class Keys(AsyncServed):
    """Who may call the tools that change something."""

    environment = {"MAGRAY_API_KEYS": "user", "MAGRAY_ADMIN_KEYS": "admin"}
    calls = {
        "offload_gpu": {},
        "release_gpu": {"model": EMBEDDER},
        "preheat_gpu": {"model": EMBEDDER},
        "update_gpu_timeout": {"timeout_seconds": 300},
    }

    @asynccontextmanager
    async def session(self, key):
        self.statuses = set()

        async def note(response):
            self.statuses.add(response.status_code)

        headers = {"Authorization": f"Bearer {key}"}
        async with (
            httpx2.AsyncClient(headers=headers, event_hooks={"response": [note]}) as client,
            streamable_http_client(self.url + "/mcp", http_client=client) as streams,
            ClientSession(*streams[:2]) as session,
        ):
            await session.initialize()
            yield session

    async def test_an_administrator_changes_and_a_user_does_not(self):
        self.assertEqual(set(self.calls), CHANGING)
        async with self.session("user") as session:
            for tool, arguments in self.calls.items():
                refused = await session.call_tool(tool, arguments)
                self.assertTrue(refused.is_error, tool)
                self.assertIn("administrator", refused.content[0].text, tool)
            self.assertEqual(await self.timeouts(session), {60})
        async with self.session("admin") as session:
            for tool, arguments in self.calls.items():
                allowed = await session.call_tool(tool, arguments)
                self.assertFalse(allowed.is_error, (tool, allowed))
            self.assertEqual(await self.timeouts(session), {300})

    async def test_a_wrong_key_opens_no_session(self):
        with self.assertRaises(ExceptionGroup):
            async with self.session("wrong"):
                pass
        self.assertEqual(self.statuses, {401})

    async def timeouts(self, session):
        status = (await session.call_tool("get_gpu_status", {})).structured_content
        return {model["idle_timeout_s"] for model in status["models"]}


class Stdio(Door, AsyncServed):
    @asynccontextmanager
    async def session(self):
        models = [word for name in (EMBEDDER, RANKER) for word in ("--model", str(FIXTURES / name))]
        with tempfile.TemporaryDirectory() as home:
            program = StdioServerParameters(
                command=BINARY, args=["mcp", *COMPUTING, *models], env=bare_environment(home), cwd=home
            )
            async with stdio_client(program) as streams, ClientSession(*streams[:2]) as session:
                await session.initialize()
                yield session
