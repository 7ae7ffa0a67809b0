// Models: where their weights are, when and why they moved, and what an administrator may do about it.
// Without the right to change, it shows and offers nothing more.

import { useState } from "preact/hooks";
import { Badge, Card, Empty, Notice, useAction } from "../parts";
import { bytes, count, seconds } from "../state/numbers";
import { type Live, refreshFeatures } from "../state/live";
import { askJson } from "../state/server";
import type { Model } from "../state/types";
import { Pull } from "./pull";
import { Timeline } from "./timeline";

export function Models({ live }: { live: Live }) {
  const { now, features } = live;
  const action = useAction();
  const mayChange = features?.may_change ?? false;
  const [asked, setAsked] = useState("");
  if (!now) return <Head />;
  const change = (route: string, body: unknown, what: string) =>
    action.run(async () => {
      setAsked(what);
      await askJson(route, { method: "POST", body });
      await refreshFeatures();
    });
  return (
    <>
      <Head>{now.engine.models.length} served</Head>
      <div class="stack">
        {action.problem && <Notice tone="bad">{action.problem}</Notice>}
        {action.busy && <p class="unseen" role="status">{`${asked} is under way`}</p>}
        {!mayChange && <Notice>To move models, use an administrator's key{features?.key ? `: '${features.key}' is a user's` : ""}.</Notice>}
        <div class="models">
          {now.engine.models.map((model) => (
            <ModelCard key={model.name} model={model} live={live} busy={action.busy} change={mayChange ? change : null} />
          ))}
        </div>
        {now.engine.models.length === 0 && <Empty title="No model is served">Pull one below, or start the server with --model.</Empty>}
        <Timeline now={now} />
        {mayChange && <Pull />}
      </div>
    </>
  );
}

function Head({ children }: { children?: preact.ComponentChildren }) {
  return (
    <div class="page-head">
      <h1>Models</h1>
      <p>{children}</p>
    </div>
  );
}

const PLACES: Record<Model["location"], ["good" | "warn" | "accent" | undefined, string]> = {
  gpu: ["good", "On a GPU"],
  loading: ["warn", "Loading"],
  cpu: ["accent", "In host memory"],
  unloaded: [undefined, "In no memory"],
};

const DOES: Record<string, string> = { embed: "embeds", rank: "reranks", classify: "classifies", generate: "generates" };

type Change = (route: string, body: unknown, what: string) => Promise<void>;

function ModelCard({ model, live, busy, change }: { model: Model; live: Live; busy: boolean; change: Change | null }) {
  const known = live.features?.models.find((other) => other.name === model.name);
  const [tone, place] = PLACES[model.location];
  const body = { model: model.name };
  return (
    <Card
      title={model.name}
      hint={known ? `${DOES[known.does]}${known.does === "embed" ? ` in ${known.outputs} numbers` : ""}` : undefined}
      end={
        <>
          {model.pinned && <Badge tone="accent">Pinned</Badge>}
          <Badge tone={tone}>{place}</Badge>
        </>
      }
    >
      <dl class="facts">
        <Item name="Weights" value={bytes(model.bytes)} />
        <Item name="Requests now" value={String(model.requests)} metric="magray_model_requests" model={model.name} />
        <Item name="Idle for" value={model.requests > 0 ? "in use" : seconds(model.idle_s)} />
        <Item name="Loaded" value={model.loads === 1 ? "once" : `${count(model.loads)} times`} />
        <Item name="Leaves after" value={model.pinned ? "never" : model.offload_after_use ? "each use" : model.idle_timeout_s === null ? "never" : seconds(model.idle_timeout_s)} />
        <Item name="Priority" value={model.priority} />
      </dl>
      <ul class="places">
        {model.residency.map((at) => (
          <li key={at.device}>
            <code>{at.device}</code> {at.where.replaceAll("_", " ")}
          </li>
        ))}
      </ul>
      {change && (
        <div class="model-actions">
          <button type="button" class="button slim" disabled={busy} onClick={() => change("/gpu/preheat", body, "Waking")}>
            Wake
          </button>
          <button type="button" class="button slim" disabled={busy} onClick={() => change("/gpu/offload", body, "Offloading")}>
            Offload
          </button>
          <button type="button" class="button slim" disabled={busy} onClick={() => change("/gpu/release", body, "Releasing")}>
            Release
          </button>
          <label class="check">
            <input type="checkbox" checked={model.pinned} disabled={busy} onChange={(event) => change("/gpu/pin", { ...body, pinned: event.currentTarget.checked }, "Pinning")} />
            Pinned
          </label>
          <IdleTimeout model={model} busy={busy} change={change} />
        </div>
      )}
    </Card>
  );
}

const TIMEOUTS: [string, string][] = [
  ["0", "at once"],
  ["30", "30 s"],
  ["60", "1 minute"],
  ["300", "5 minutes"],
  ["1800", "30 minutes"],
  ["never", "never"],
];

function IdleTimeout({ model, busy, change }: { model: Model; busy: boolean; change: Change }) {
  const now = model.idle_timeout_s === null ? "never" : String(model.idle_timeout_s);
  const all = TIMEOUTS.some(([value]) => value === now) ? TIMEOUTS : [...TIMEOUTS, [now, seconds(Number(now))] as [string, string]];
  return (
    <label class="check end">
      <span class="small muted">Idle time-out</span>
      <select disabled={busy} value={now} onChange={(event) => change("/gpu/timeout", { model: model.name, timeout: event.currentTarget.value }, "Changing the time-out")}>
        {all.map(([value, name]) => (
          <option key={value} value={value}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

function Item(props: { name: string; value: string; metric?: string; model?: string }) {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd {...(props.metric ? { "data-metric": props.metric, "data-model": props.model, "data-value": props.value } : {})}>{props.value}</dd>
    </div>
  );
}
