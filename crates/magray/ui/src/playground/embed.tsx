// Embeds texts, one a line, and shows how near each is to each other one.

import { useState } from "preact/hooks";
import { Card, Empty, Field, Notice, useAction } from "../parts";
import { ask } from "../state/server";
import type { FeatureModel } from "../state/types";
import { ModelChoice } from "./model_choice";
import { computedBy, Sample } from "./sample";

const TEXTS = `The boat waits by the river.
A ship lies at the river bank.
My cat sleeps on the sofa all day.
Kittens nap a lot.
The stock market fell on Monday.`;

/** As many as a matrix can be read of. */
const TEXTS_MAX = 24;

interface Compared {
  texts: string[];
  similar: number[][];
  how: string;
  dimensions: number;
}

export function Embed({ models }: { models: FeatureModel[] }) {
  const [written, write] = useState(TEXTS);
  const [model, setModel] = useState(models[0]!.name);
  const [compared, setCompared] = useState<Compared | null>(null);
  const action = useAction();
  const texts = written
    .split("\n")
    .map((text) => text.trim())
    .filter(Boolean);
  const body = { model, input: texts };
  const run = () =>
    action.run(async () => {
      const response = await ask("/v1/embeddings", { method: "POST", body });
      const answer = (await response.json()) as { data: { embedding: number[] }[] };
      const vectors = answer.data.map((item) => item.embedding);
      setCompared({ texts, similar: vectors.map((a) => vectors.map((b) => cosine(a, b))), how: computedBy(response), dimensions: vectors[0]?.length ?? 0 });
    });
  return (
    <div class="columns">
      <Card title="Texts" hint="one a line">
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            void run();
          }}
        >
          <ModelChoice models={models} chosen={model} choose={setModel} />
          <Field label="Texts">
            <textarea rows={7} value={written} onInput={(event) => write(event.currentTarget.value)} />
          </Field>
          <div class="row">
            <button type="submit" class="button main" disabled={action.busy || texts.length === 0 || texts.length > TEXTS_MAX}>
              Compare
            </button>
            <span class="muted small">{texts.length > TEXTS_MAX ? `At most ${TEXTS_MAX} can be compared here.` : `${texts.length} texts`}</span>
          </div>
          {action.problem && <Notice tone="bad">{action.problem}</Notice>}
        </form>
        <Sample route="/v1/embeddings" body={body} />
      </Card>
      <Card title="Similarity" hint="cosine of each pair">
        {compared ? <Matrix compared={compared} /> : <Empty title="Nothing compared yet">Compare the texts to see which are near each other.</Empty>}
      </Card>
    </div>
  );
}

function Matrix({ compared }: { compared: Compared }) {
  const { texts, similar } = compared;
  return (
    <div class="stack">
      <p class="muted small">
        {compared.dimensions} numbers a text · {compared.how}
      </p>
      <div class="scroll-x" tabIndex={0} role="region" aria-label="Similarities">
        <table class="matrix">
          <thead>
            <tr>
              <td />
              {texts.map((_, at) => (
                <th key={at} scope="col">
                  {at + 1}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {texts.map((text, row) => (
              <tr key={row}>
                <th scope="row">
                  <span>{row + 1}</span> {text}
                </th>
                {similar[row]!.map((value, column) => (
                  <td key={column} class={strength(value)}>
                    {value.toFixed(2)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

/** Colour by steps: each has enough contrast with its number. */
function strength(value: number): string {
  return `near-${Math.min(5, Math.max(0, Math.floor(value * 6)))}`;
}

export function cosine(a: number[], b: number[]): number {
  let product = 0;
  let ofA = 0;
  let ofB = 0;
  for (const [at, value] of a.entries()) {
    const other = b[at] ?? 0;
    product += value * other;
    ofA += value * value;
    ofB += other * other;
  }
  return product / (Math.sqrt(ofA * ofB) || 1);
}
