// Pulls a model from the hub into the server's store and serves it, with its progress.

import { useRef, useState } from "preact/hooks";
import { Card, Field, Notice, useAction } from "../parts";
import { bytes } from "../state/numbers";
import { refreshFeatures } from "../state/live";
import { ask, lines } from "../state/server";

interface Progress {
  status: string;
  total?: number;
  completed?: number;
  error?: string;
}

export function Pull() {
  const [name, setName] = useState("");
  const [progress, setProgress] = useState<Progress | null>(null);
  const action = useAction();
  const stop = useRef<AbortController | null>(null);
  const pull = () =>
    action.run(async () => {
      stop.current = new AbortController();
      setProgress({ status: "asking the hub" });
      try {
        const response = await ask("/api/pull", { method: "POST", body: { model: name.trim(), stream: true }, signal: stop.current.signal, accept: "application/x-ndjson" });
        for await (const line of lines(response)) {
          const step = JSON.parse(line) as Progress;
          if (step.error) throw new Error(step.error);
          setProgress(step);
        }
        await refreshFeatures();
      } catch (error) {
        setProgress(null);
        throw error;
      }
    });
  const part = progress?.total ? (progress.completed ?? 0) / progress.total : null;
  return (
    <Card title="Pull a model" hint="from the hub into this server's store">
      <form
        class="row pull"
        onSubmit={(event) => {
          event.preventDefault();
          void pull();
        }}
      >
        <div class="grow">
          <Field label="Name on the hub">
            <input type="text" value={name} required placeholder="sentence-transformers/all-MiniLM-L6-v2" onInput={(event) => setName(event.currentTarget.value)} />
          </Field>
        </div>
        {action.busy ? (
          <button type="button" class="button" onClick={() => stop.current?.abort()}>
            Stop watching
          </button>
        ) : (
          <button type="submit" class="button main" disabled={!name.trim()}>
            Pull
          </button>
        )}
      </form>
      {progress && (
        <div class="pull-state" role="status">
          <div class="row between small">
            <span>{progress.status}</span>
            <span class="muted">{progress.total ? `${bytes(progress.completed ?? 0)} of ${bytes(progress.total)}` : ""}</span>
          </div>
          <div class="bar" role="progressbar" aria-label="Pulled" aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round((part ?? 0) * 100)}>
            <i style={{ transform: `scaleX(${part ?? (progress.status === "success" ? 1 : 0.03)})` }} />
          </div>
        </div>
      )}
      {action.problem && <Notice tone="bad">{action.problem}</Notice>}
    </Card>
  );
}
