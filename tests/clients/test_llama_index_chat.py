"""LlamaIndex with a language model, as a server that is like OpenAI's: chats, streams, texts, tools."""

from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from served import CHATTER, ChatServed

MESSAGES = [ChatMessage(role="system", content="be brief"), ChatMessage(role="user", content="hello")]


def add(a: Literal[1, 2, 3], b: Literal[4, 5]) -> int:
    """Adds two numbers."""
    return a + b


class Chats(ChatServed):
    def client(self, **more):
        settings = {"model": CHATTER, "api_base": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "is_chat_model": True}
        return OpenAILike(**settings, **more)

    def test_chats_and_streams(self):
        client = self.client(max_tokens=20, temperature=0)
        whole = client.chat(MESSAGES)
        chunks = list(client.stream_chat(MESSAGES))
        self.assertEqual(chunks[-1].message.content, whole.message.content)

    def test_texts(self):
        client = OpenAILike(model=CHATTER, api_base=f"{self.url}/v1", api_key="none", is_chat_model=False, max_tokens=10, temperature=0)
        self.assertEqual(client.complete("hello").text, "".join(chunk.delta for chunk in client.stream_complete("hello")))

    def test_tools(self):
        client = self.client(max_tokens=2000, is_function_calling_model=True)
        done = client.chat_with_tools([FunctionTool.from_defaults(add)], user_msg="add", tool_required=True)
        calls = client.get_tool_calls_from_response(done)
        self.assertEqual(calls[0].tool_name, "add")
        self.assertIn(calls[0].tool_kwargs["a"], (1, 2, 3))
