// Puts documents in the order in which they answer a query.

import { useState } from "preact/hooks";
import { Card, Empty, Field, Notice, useAction } from "../parts";
import { ask } from "../state/server";
import type { FeatureModel } from "../state/types";
import { ModelChoice } from "./model_choice";
import { computedBy, Sample } from "./sample";

const DOCUMENTS = `Keys are rotated by the command vault rotate.
Paris is the capital of France.
A key that was lost is revoked first, then replaced.
The boat waits by the river.`;

interface Ranked {
  results: { text: string; score: number }[];
  how: string;
}

export function Rerank({ models }: { models: FeatureModel[] }) {
  const [query, setQuery] = useState("How do I change my keys?");
  const [written, write] = useState(DOCUMENTS);
  const [model, setModel] = useState(models[0]!.name);
  const [ranked, setRanked] = useState<Ranked | null>(null);
  const action = useAction();
  const documents = written
    .split("\n")
    .map((text) => text.trim())
    .filter(Boolean);
  const body = { model, query, documents };
  const run = () =>
    action.run(async () => {
      const response = await ask("/v1/rerank", { method: "POST", body });
      const answer = (await response.json()) as { results: { index: number; relevance_score: number }[] };
      const results = answer.results.map((result) => ({ text: documents[result.index] ?? "", score: result.relevance_score }));
      setRanked({ results, how: computedBy(response) });
    });
  const most = Math.max(1e-9, ...(ranked?.results.map((result) => Math.abs(result.score)) ?? []));
  return (
    <div class="columns">
      <Card title="Query and documents">
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            void run();
          }}
        >
          <ModelChoice models={models} chosen={model} choose={setModel} />
          <Field label="Query">
            <input type="text" value={query} required onInput={(event) => setQuery(event.currentTarget.value)} />
          </Field>
          <Field label="Documents, one a line">
            <textarea rows={6} value={written} onInput={(event) => write(event.currentTarget.value)} />
          </Field>
          <div class="row">
            <button type="submit" class="button main" disabled={action.busy || documents.length === 0}>
              Rerank
            </button>
          </div>
          {action.problem && <Notice tone="bad">{action.problem}</Notice>}
        </form>
        <Sample route="/v1/rerank" body={body} />
      </Card>
      <Card title="In order" end={ranked?.how}>
        {ranked ? (
          <ol class="ranked">
            {ranked.results.map((result, at) => (
              <li key={at}>
                <span class="place">{at + 1}</span>
                <div class="grow">
                  <p>{result.text}</p>
                  <div class="bar" aria-hidden="true">
                    <i style={{ transform: `scaleX(${Math.max(0, result.score / most)})` }} />
                  </div>
                </div>
                <b>{result.score.toFixed(3)}</b>
              </li>
            ))}
          </ol>
        ) : (
          <Empty title="Nothing ranked yet" />
        )}
      </Card>
    </div>
  );
}
