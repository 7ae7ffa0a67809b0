// Asks a collection: a text, how much words count beside meaning, a filter.

import { useState } from "preact/hooks";
import { Field, Notice, useAction } from "../parts";
import { type Collection, type Point, query, queryBody } from "./api";

interface Props {
  collection: Collection;
  found: (points: Point[]) => void;
  /** Told of the request whenever it changes; `null`: the filter is no JSON. */
  changed?: (body: Record<string, unknown> | null) => void;
}

export function SearchForm({ collection, found, changed }: Props) {
  const [text, setText] = useState("");
  const [words, setWords] = useState(0.5);
  const [filter, setFilter] = useState("");
  const [limit, setLimit] = useState(10);
  const action = useAction();
  const of = (next: { text?: string; words?: number; filter?: string; limit?: number }) => {
    try {
      const written = next.filter ?? filter;
      const parsed = written.trim() ? (JSON.parse(written) as unknown) : null;
      return queryBody(collection, { text: next.text ?? text, words: next.words ?? words, limit: next.limit ?? limit, filter: parsed });
    } catch {
      return null;
    }
  };
  const body = of({});
  const run = () =>
    action.run(async () => {
      if (!body) throw new Error("the filter is no JSON");
      found(await query(collection.name, body));
    });
  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        void run();
      }}
    >
      <Field label="What to look for">
        <input
          type="search"
          value={text}
          required
          onInput={(event) => {
            setText(event.currentTarget.value);
            changed?.(of({ text: event.currentTarget.value }));
          }}
        />
      </Field>
      {collection.textField !== null && (
        <Field label={`By meaning ${Math.round((1 - words) * 100)} % · by words ${Math.round(words * 100)} %`}>
          <input
            type="range"
            min="0"
            max="1"
            step="0.1"
            value={words}
            onInput={(event) => {
              setWords(event.currentTarget.valueAsNumber);
              changed?.(of({ words: event.currentTarget.valueAsNumber }));
            }}
          />
        </Field>
      )}
      <Field label="Filter, as Qdrant has it" hint='Such as {"must": [{"key": "author", "match": {"value": "Ann"}}]}'>
        <textarea
          class="mono"
          rows={2}
          spellcheck={false}
          value={filter}
          onInput={(event) => {
            setFilter(event.currentTarget.value);
            changed?.(of({ filter: event.currentTarget.value }));
          }}
        />
      </Field>
      <div class="row">
        <button type="submit" class="button main" disabled={action.busy || !text.trim()}>
          Search
        </button>
        <label class="check small muted">
          at most
          <input class="narrow" type="number" min="1" max="100" value={limit} onInput={(event) => setLimit(Math.min(100, Math.max(1, event.currentTarget.valueAsNumber || 1)))} />
        </label>
      </div>
      {!body && <Notice tone="warn">The filter is no JSON yet.</Notice>}
      {action.problem && <Notice tone="bad">{action.problem}</Notice>}
    </form>
  );
}
