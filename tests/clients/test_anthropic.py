"""Anthropic's client: messages whole and streamed, tools, counts of tokens, and errors."""

import anthropic
from served import CHATTER, ChatServed

MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {
    "name": "forecast",
    "description": "Tells the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Messages(ChatServed):
    environment = {"MAGRAY_API_KEYS": "secret"}

    def client(self, key="secret"):
        return anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0)

    def test_a_message_whole_and_streamed(self):
        asked = {"model": CHATTER, "max_tokens": 20, "system": "be brief", "messages": MESSAGES}
        whole = self.client().messages.create(**asked, extra_body={"temperature": 0})
        self.assertEqual(whole.content[0].type, "text")
        self.assertIn(whole.stop_reason, ("end_turn", "max_tokens"))
        with self.client().messages.stream(**asked, extra_body={"temperature": 0}) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        counted = self.client().messages.count_tokens(model=CHATTER, system="be brief", messages=MESSAGES)
        self.assertEqual(counted.input_tokens, whole.usage.input_tokens)

    def test_tools(self):
        asked = {"model": CHATTER, "max_tokens": 300, "messages": MESSAGES, "tools": [TOOL], "tool_choice": {"type": "any"}}
        done = self.client().messages.create(**asked)
        self.assertEqual(done.stop_reason, "tool_use")
        call = next(block for block in done.content if block.type == "tool_use")
        self.assertIn(call.input["city"], ["Rome", "Oslo"])
        with self.client().messages.stream(**asked) as stream:
            call = next(block for block in stream.get_final_message().content if block.type == "tool_use")
        self.assertIn(call.input["city"], ["Rome", "Oslo"])
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
        again = [*MESSAGES, {"role": "assistant", "content": done.content}, result]
        self.client().messages.create(model=CHATTER, max_tokens=5, messages=again, tools=[TOOL])

    def test_errors_are_those_that_the_client_knows(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.client().messages.create(model="no-such-model", max_tokens=5, messages=MESSAGES)
        with self.assertRaises(anthropic.BadRequestError):
            self.client().messages.create(model=CHATTER, max_tokens=5, messages=[])
        with self.assertRaises(anthropic.AuthenticationError):
            self.client("wrong").messages.create(model=CHATTER, max_tokens=5, messages=MESSAGES)
