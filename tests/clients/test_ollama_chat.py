"""Ollama's client with a language model: chats, texts, formats, thoughts, and models that are loaded and unloaded."""

import json

import ollama
from served import CHATTER, ChatServed

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
QUIET = {"num_predict": 20, "temperature": 0}


def forecast(city: str) -> str:
    """Tells the weather.

    Args:
        city: Where
    """
    return f"sunny in {city}"


class Chats(ChatServed):
    def client(self):
        return ollama.Client(host=self.url)

    def test_a_chat_whole_and_streamed(self):
        whole = self.client().chat(model=CHATTER, messages=MESSAGES, options=QUIET)
        self.assertTrue(whole.done and whole.eval_count > 0 and whole.total_duration > 0)
        parts = list(self.client().chat(model=CHATTER, messages=MESSAGES, options=QUIET, stream=True))
        self.assertEqual("".join(part.message.content for part in parts), whole.message.content)
        self.assertTrue(parts[-1].done)

    def test_texts_and_formats(self):
        done = self.client().generate(model=CHATTER, prompt="hello", options=QUIET)
        parts = self.client().generate(model=CHATTER, prompt="hello", options=QUIET, stream=True)
        self.assertEqual("".join(part.response for part in parts), done.response)
        found = self.client().chat(model=CHATTER, messages=MESSAGES, format=SCHEMA, options={"num_predict": 100})
        self.assertIn(json.loads(found.message.content)["n"], range(10))

    def test_tools_and_thoughts(self):
        call = {"function": {"name": "forecast", "arguments": {"city": "Rome"}}}
        messages = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "sunny", "tool_name": "forecast"}]
        self.client().chat(model=CHATTER, messages=messages, tools=[forecast], options=QUIET)
        thinking = self.client().chat(model=CHATTER, messages=MESSAGES, think=True, options=QUIET)
        self.assertTrue(thinking.message.thinking)

    def test_a_model_is_shown_loaded_and_unloaded(self):
        shown = self.client().show(CHATTER)
        self.assertEqual(shown.capabilities, ["completion", "tools", "thinking"])
        self.assertTrue(shown.modelinfo)
        self.assertEqual(self.client().generate(model=CHATTER).done_reason, "load")
        self.assertIn(CHATTER, [model.model for model in self.client().ps().models])
        self.assertEqual(self.client().generate(model=CHATTER, keep_alive=0).done_reason, "unload")
        self.assertNotIn(CHATTER, [model.model for model in self.client().ps().models])

    def test_an_unknown_model_is_an_error_that_the_client_knows(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client().chat(model="no-such-model", messages=MESSAGES)
        self.assertEqual(caught.exception.status_code, 404)
