"""OpenAI's client with a language model: chats whole and streamed, tools, schemas, completions, responses."""

import json

import openai
import pydantic
from served import CHATTER, ChatServed

MESSAGES = [{"role": "user", "content": "hello"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "forecast", "description": "Tells the weather.", "parameters": PARAMETERS}}


class Answer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    is_right: bool
    points: int = pydantic.Field(ge=0, le=99)


class Chats(ChatServed):
    def client(self):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def assert_called(self, arguments):
        made = json.loads(arguments)
        self.assertIn(made["city"], ["Rome", "Oslo"])
        self.assertIn(made["days"], range(1, 10))

    def test_a_chat_whole_and_streamed(self):
        asked = {"model": CHATTER, "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
        whole = self.client().chat.completions.create(**asked)
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        stream = self.client().chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage, whole.usage)

    def test_tools(self):
        asked = {"model": CHATTER, "messages": MESSAGES, "max_tokens": 300, "tools": [TOOL], "tool_choice": "required"}
        message = self.client().chat.completions.create(**asked).choices[0].message
        call = message.tool_calls[0]
        self.assertEqual(call.function.name, "forecast")
        self.assert_called(call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        again = {**asked, "messages": [*MESSAGES, message, result], "tool_choice": "none", "max_tokens": 10}
        self.assertIsNone(self.client().chat.completions.create(**again).choices[0].message.tool_calls)
        arguments = ""
        for chunk in self.client().chat.completions.create(**asked, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or []:
                arguments += delta.function.arguments or ""
        self.assert_called(arguments)

    def test_an_answer_is_parsed_by_its_schema(self):
        done = self.client().chat.completions.parse(
            model=CHATTER, messages=MESSAGES, response_format=Answer, max_tokens=2000, temperature=1
        )
        self.assertIsInstance(done.choices[0].message.parsed, Answer)
        with self.client().chat.completions.stream(model=CHATTER, messages=MESSAGES, response_format=Answer, max_tokens=2000) as stream:
            self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Answer)

    def test_several_answers_and_how_likely_they_were(self):
        done = self.client().chat.completions.create(
            model=CHATTER, messages=MESSAGES, n=3, max_tokens=8, logprobs=True, top_logprobs=2, seed=5, logit_bias={"256": -100}
        )
        self.assertEqual([choice.index for choice in done.choices], [0, 1, 2])
        for choice in done.choices:
            self.assertEqual(len(choice.logprobs.content), 8)
            self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 2)

    def test_completions(self):
        done = self.client().completions.create(model=CHATTER, prompt=["a", "b"], max_tokens=5, logprobs=2)
        self.assertEqual(len(done.choices), 2)
        streamed = self.client().completions.create(model=CHATTER, prompt="a", max_tokens=5, temperature=0, stream=True)
        whole = self.client().completions.create(model=CHATTER, prompt="a", max_tokens=5, temperature=0)
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed), whole.choices[0].text)

    def test_responses(self):
        client = self.client()
        done = client.responses.create(model=CHATTER, input="hello", max_output_tokens=20, temperature=0)
        self.assertIn(done.status, ("completed", "incomplete"))
        with client.responses.stream(model=CHATTER, input="hello", max_output_tokens=20, temperature=0) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            # A response that was cut has no final one in this client.
        self.assertEqual(text, done.output_text)
        tool = {"type": "function", "strict": True, **TOOL["function"]}
        called = client.responses.create(model=CHATTER, input="hello", tools=[tool], tool_choice="required", max_output_tokens=300)
        call = next(item for item in called.output if item.type == "function_call")
        self.assert_called(call.arguments)
        outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        items = [{"role": "user", "content": "hello"}, *called.output, *outputs]
        client.responses.create(model=CHATTER, input=items, tools=[tool], max_output_tokens=5)
        parsed = client.responses.parse(model=CHATTER, input="hello", text_format=Answer, max_output_tokens=200)
        self.assertIsInstance(parsed.output_parsed, Answer)

    def test_errors_are_those_that_the_client_knows(self):
        with self.assertRaises(openai.NotFoundError):
            self.client().chat.completions.create(model="no-such-model", messages=MESSAGES)
        with self.assertRaises(openai.BadRequestError):
            self.client().chat.completions.create(model=CHATTER, messages=[], max_tokens=5)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().responses.create(model=CHATTER, input="a", previous_response_id="resp_1")
        self.assertEqual(caught.exception.param, "previous_response_id")
