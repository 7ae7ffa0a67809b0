"""LangChain with a language model, as OpenAI's and as Ollama's client: chats, streams, tools, structured output."""

from typing import Literal

import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from served import CHATTER, ChatServed

MESSAGES = [SystemMessage("be brief"), HumanMessage("hello")]


class Answer(pydantic.BaseModel):
    """What is to be said."""

    model_config = pydantic.ConfigDict(extra="forbid")
    is_right: bool
    points: int = pydantic.Field(ge=0, le=99)


@tool
def add(a: Literal[1, 2, 3], b: Literal[4, 5]) -> int:
    """Adds two numbers."""
    return a + b


class Chats(ChatServed):
    def openai(self, **more):
        return ChatOpenAI(model=CHATTER, base_url=f"{self.url}/v1", api_key="none", max_retries=0, **more)

    def ollama(self, **more):
        return ChatOllama(model=CHATTER, base_url=self.url, **more)

    def test_chats_and_streams(self):
        for client in (self.openai(max_tokens=20, temperature=0), self.ollama(num_predict=20, temperature=0)):
            with self.subTest(type(client).__name__):
                whole = client.invoke(MESSAGES)
                streamed = "".join(chunk.content for chunk in client.stream(MESSAGES))
                self.assertEqual(streamed, whole.content)
                self.assertGreater(whole.usage_metadata["output_tokens"], 0)

    def test_tools(self):
        bound = self.openai(max_tokens=2000).bind_tools([add], tool_choice="add")
        call = bound.invoke(MESSAGES).tool_calls[0]
        self.assertEqual(call["name"], "add")
        self.assertIn(call["args"]["a"], (1, 2, 3))
        after = [*MESSAGES, AIMessage("", tool_calls=[call]), ToolMessage("3", tool_call_id=call["id"])]
        self.openai(max_tokens=5).invoke(after)
        self.ollama(num_predict=5).bind_tools([add]).invoke(after)

    def test_structured_output(self):
        clients = {
            "schema": self.openai(max_tokens=2000).with_structured_output(Answer, method="json_schema"),
            "call": self.openai(max_tokens=2000).with_structured_output(Answer, method="function_calling"),
            "ollama": self.ollama(num_predict=2000).with_structured_output(Answer, method="json_schema"),
        }
        for name, client in clients.items():
            with self.subTest(name):
                self.assertIsInstance(client.invoke(MESSAGES), Answer)
