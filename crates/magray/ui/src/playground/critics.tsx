// Lets the server's critics judge a text: each one's score and reasons, and what they say together.
// What critics say is shown as text.

import { useState } from "preact/hooks";
import { Badge, Card, Empty, Field, Notice, useAction } from "../parts";
import { askJson } from "../state/server";
import type { FeatureModel } from "../state/types";
import { Sample } from "./sample";

interface Evaluation {
  aggregate: { decision: string; score: number | null; vetoed_by: string[]; missing: string[] };
  critics: { name: string; status: string; score: number | null; reasons: string[]; error: string | null; is_veto: boolean; latency_ms: number; model: string | null; device: string | null }[];
}

export function Critics({ models }: { models: FeatureModel[] }) {
  const [text, setText] = useState("We share the addresses of our users with partners, without asking them.");
  const [said, setSaid] = useState<Evaluation | null>(null);
  const [model, setModel] = useState("");
  const action = useAction();
  const body = { text, ...(model ? { model } : {}) };
  const run = () => action.run(async () => setSaid(await askJson<Evaluation>("/v1/evaluate", { method: "POST", body })));
  return (
    <div class="columns">
      <Card title="Text">
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            void run();
          }}
        >
          <Field label="Model of critics that have none of their own">
            <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
              <option value="">the first</option>
              {models.map((known) => (
                <option key={known.name} value={known.name}>
                  {known.name}
                </option>
              ))}
            </select>
          </Field>
          <Field label="Text to judge">
            <textarea rows={6} required value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </Field>
          <div class="row">
            <button type="submit" class="button main" disabled={action.busy || !text.trim()}>
              Judge
            </button>
          </div>
          {action.problem && <Notice tone="bad">{action.problem}</Notice>}
        </form>
        <Sample route="/v1/evaluate" body={body} />
      </Card>
      <Card title="Verdicts" end={said && <Badge tone={said.aggregate.decision.startsWith("accept") ? "good" : "bad"}>{said.aggregate.decision.replaceAll("_", " ")}</Badge>}>
        {said ? (
          <ol class="ranked">
            {said.critics.map((critic) => (
              <li key={critic.name}>
                <div class="grow">
                  <p>
                    <strong>{critic.name}</strong> {critic.is_veto && <Badge tone="bad">veto</Badge>} {critic.status !== "judged" && <Badge tone="warn">{critic.status}</Badge>}
                  </p>
                  {critic.reasons.map((reason, at) => (
                    <p key={at} class="small">
                      {reason}
                    </p>
                  ))}
                  {critic.error && <p class="small muted">{critic.error}</p>}
                  <p class="small muted">{[critic.model, critic.device, `${critic.latency_ms.toFixed(0)} ms`].filter(Boolean).join(" · ")}</p>
                </div>
                <b>{critic.score === null ? "–" : critic.score.toFixed(2)}</b>
              </li>
            ))}
          </ol>
        ) : (
          <Empty title="Nothing judged yet">All critics of the settings judge the text side by side.</Empty>
        )}
      </Card>
    </div>
  );
}
