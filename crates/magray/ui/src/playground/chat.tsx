// A conversation with a language model: streamed, with tools and a schema for the answer.
// What a model says is shown as text, whatever it looks like.

import { useEffect, useRef, useState } from "preact/hooks";
import { Card, Empty, Field, Notice, useAction } from "../parts";
import { Icon } from "../parts/icons";
import { ask, events } from "../state/server";
import type { FeatureModel } from "../state/types";
import { ModelChoice } from "./model_choice";
import { Sample } from "./sample";

interface Call {
  id: string;
  name: string;
  arguments: string;
}

interface Turn {
  role: "user" | "assistant";
  content: string;
  thought: string;
  calls: Call[];
  how: string;
}

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
}

const TOOLS = `[{
  "type": "function",
  "function": {
    "name": "weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
  }
}]`;

const SCHEMA = `{
  "type": "object",
  "properties": {"answer": {"type": "string"}, "is_sure": {"type": "boolean"}},
  "required": ["answer", "is_sure"]
}`;

export function Chat({ models }: { models: FeatureModel[] }) {
  const [model, setModel] = useState(models[0]!.name);
  const [system, setSystem] = useState("");
  const [temperature, setTemperature] = useState(0.7);
  const [tokens, setTokens] = useState(256);
  const [tools, setTools] = useState<string | null>(null);
  const [schema, setSchema] = useState<string | null>(null);
  const [turns, setTurns] = useState<Turn[]>([]);
  const [draft, setDraft] = useState("");
  const action = useAction();
  const stop = useRef<AbortController | null>(null);
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [turns]);
  useEffect(() => () => stop.current?.abort(), []);

  const messages = (of: Turn[]) => [...(system ? [{ role: "system", content: system }] : []), ...of.map(({ role, content }) => ({ role, content }))];
  const body = (of: Turn[]): Record<string, unknown> => ({
    model,
    messages: messages(of),
    temperature,
    max_tokens: tokens,
    stream: true,
    ...(tools === null ? {} : { tools: JSON.parse(tools) as unknown }),
    ...(schema === null ? {} : { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) as unknown } } }),
  });
  const asked: Turn = { role: "user", content: draft.trim(), thought: "", calls: [], how: "" };

  const send = () =>
    action.run(async () => {
      const before = [...turns, asked];
      const request = parsed(() => body(before));
      let answer: Turn = { role: "assistant", content: "", thought: "", calls: [], how: "" };
      setTurns([...before, answer]);
      setDraft("");
      stop.current = new AbortController();
      const began = performance.now();
      let first = 0;
      let pieces = 0;
      try {
        const response = await ask("/v1/chat/completions", { method: "POST", body: request, signal: stop.current.signal, accept: "text/event-stream" });
        for await (const data of events(response)) {
          if (data === "[DONE]") break;
          const chunk = JSON.parse(data) as { choices?: { delta?: Delta }[]; error?: { message: string } };
          if (chunk.error) throw new Error(chunk.error.message);
          const delta = chunk.choices?.[0]?.delta;
          if (!delta) continue;
          first ||= performance.now();
          pieces += 1;
          answer = grown(answer, delta);
          answer.how = `first piece after ${(first - began).toFixed(0)} ms · ${pieces} pieces in ${((performance.now() - began) / 1000).toFixed(1)} s`;
          setTurns([...before, answer]);
        }
      } catch (error) {
        if (!answer.content && !answer.calls.length) setTurns(turns);
        throw error;
      }
    });
  const sample = (() => {
    try {
      return body(draft.trim() ? [...turns, asked] : turns);
    } catch {
      return null;
    }
  })();
  return (
    <div class="columns wide-left">
      <Card title="Conversation" end={turns.length > 0 && !action.busy ? <button type="button" class="button slim" onClick={() => setTurns([])}>Begin anew</button> : undefined}>
        <div class="chat" role="log" aria-label="Conversation" tabIndex={0}>
          {turns.length === 0 && <Empty title="Say something">The answer appears as it is generated.</Empty>}
          {turns.map((turn, at) => (
            <Said key={at} turn={turn} isOpen={action.busy && at === turns.length - 1} />
          ))}
          <div ref={end} />
        </div>
        {action.problem && <Notice tone="bad">{action.problem}</Notice>}
        <form
          class="composer"
          onSubmit={(event) => {
            event.preventDefault();
            if (!action.busy && draft.trim()) void send();
          }}
        >
          <textarea
            rows={2}
            aria-label="Message"
            placeholder="Write a message. Enter sends it, Shift and Enter begin a new line."
            value={draft}
            onInput={(event) => setDraft(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                event.currentTarget.form?.requestSubmit();
              }
            }}
          />
          {action.busy ? (
            <button type="button" class="button" onClick={() => stop.current?.abort()}>
              <Icon name="stop" /> Stop
            </button>
          ) : (
            <button type="submit" class="button main" disabled={!draft.trim()}>
              <Icon name="play" /> Send
            </button>
          )}
        </form>
      </Card>
      <Card title="How it answers">
        <div class="stack">
          <ModelChoice models={models} chosen={model} choose={setModel} />
          <Field label="System prompt">
            <textarea rows={2} value={system} onInput={(event) => setSystem(event.currentTarget.value)} />
          </Field>
          <Field label={`Temperature: ${temperature.toFixed(1)}`}>
            <input type="range" min="0" max="2" step="0.1" value={temperature} onInput={(event) => setTemperature(event.currentTarget.valueAsNumber)} />
          </Field>
          <Field label="At most so many tokens">
            <input type="number" min="1" max="100000" value={tokens} onInput={(event) => setTokens(event.currentTarget.valueAsNumber || 1)} />
          </Field>
          <Extra name="Tools" first={TOOLS} value={tools} set={setTools} />
          <Extra name="Schema of the answer" first={SCHEMA} value={schema} set={setSchema} />
        </div>
        {sample ? <Sample route="/v1/chat/completions" body={sample} streams /> : <Notice tone="warn">Tools or schema are no JSON yet.</Notice>}
      </Card>
    </div>
  );
}

function parsed<T>(make: () => T): T {
  try {
    return make();
  } catch (error) {
    throw new Error(`tools or schema are no JSON: ${(error as Error).message}`);
  }
}

/** An answer with one piece more. */
function grown(turn: Turn, delta: Delta): Turn {
  const calls = turn.calls.map((call) => ({ ...call }));
  for (const piece of delta.tool_calls ?? []) {
    const call = (calls[piece.index] ??= { id: "", name: "", arguments: "" });
    call.id += piece.id ?? "";
    call.name += piece.function?.name ?? "";
    call.arguments += piece.function?.arguments ?? "";
  }
  return { ...turn, content: turn.content + (delta.content ?? ""), thought: turn.thought + (delta.reasoning_content ?? ""), calls };
}

function Said({ turn, isOpen }: { turn: Turn; isOpen: boolean }) {
  return (
    <article class={`said ${turn.role}`} aria-label={turn.role === "user" ? "You" : "The model"}>
      {turn.thought && (
        <details>
          <summary>Thoughts</summary>
          <p>{turn.thought}</p>
        </details>
      )}
      {(turn.content || (isOpen && turn.role === "assistant")) && (
        <p class="text">
          {turn.content}
          {isOpen && turn.role === "assistant" && <i class="caret" />}
        </p>
      )}
      {turn.calls.map((call) => (
        <p key={call.id} class="call">
          <span class="badge accent">calls {call.name}</span> <code>{call.arguments}</code>
        </p>
      ))}
      {turn.how && <p class="small muted">{turn.how}</p>}
    </article>
  );
}

function Extra(props: { name: string; first: string; value: string | null; set: (value: string | null) => void }) {
  return (
    <div class="stack tight">
      <label class="check">
        <input type="checkbox" checked={props.value !== null} onChange={(event) => props.set(event.currentTarget.checked ? props.first : null)} />
        {props.name}
      </label>
      {props.value !== null && <textarea class="mono" rows={7} aria-label={`${props.name}, as JSON`} spellcheck={false} value={props.value} onInput={(event) => props.set(event.currentTarget.value)} />}
    </div>
  );
}
