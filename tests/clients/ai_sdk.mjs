// What a program of the AI SDK asks: a text, a stream, an object of a schema, a call of a tool.
// node ai_sdk.mjs FOLDER_OF_NODE_MODULES URL MODEL
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [prefix, url, name] = process.argv.slice(2);
const require = createRequire(`${prefix}/package.json`);
const load = (module) => import(pathToFileURL(require.resolve(module)).href);
const { generateText, streamText, tool, Output } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { z } = await load("zod");

const magray = createOpenAICompatible({ name: "magray", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
const model = magray(name);
const quiet = { model, prompt: "hello", maxRetries: 0, temperature: 0, maxOutputTokens: 20 };

const whole = await generateText(quiet);
assert.ok(["stop", "length"].includes(whole.finishReason), whole.finishReason);
assert.ok(whole.usage.outputTokens > 0);

const streamed = streamText(quiet);
let text = "";
for await (const part of streamed.textStream) text += part;
assert.equal(text, whole.text);

const schema = z.object({ city: z.enum(["Rome", "Oslo"]), days: z.number().int().min(1).max(9) });
const made = await generateText({ ...quiet, maxOutputTokens: 200, output: Output.object({ schema }) });
assert.ok(["Rome", "Oslo"].includes(made.output.city));

const forecast = tool({ description: "Tells the weather.", inputSchema: schema });
const called = await generateText({ ...quiet, maxOutputTokens: 300, tools: { forecast }, toolChoice: "required" });
assert.equal(called.finishReason, "tool-calls");
assert.equal(called.toolCalls[0].toolName, "forecast");
assert.ok(called.toolCalls[0].input.days >= 1);

const calls = streamText({ ...quiet, maxOutputTokens: 300, tools: { forecast }, toolChoice: "required" });
assert.equal((await calls.toolCalls)[0].toolName, "forecast");
