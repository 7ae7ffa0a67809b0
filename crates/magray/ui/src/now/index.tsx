// Now: what the server computes at this moment, on what, for whom it waits, and what went wrong.
// Changes nothing.

import { Area } from "../parts/area";
import { Card, Empty } from "../parts";
import { count, percent, quantile, seconds } from "../state/numbers";
import type { Live } from "../state/live";
import type { Snapshot } from "../state/types";
import { Batches, Fallbacks } from "./counts";
import { Devices } from "./devices";
import { HeatMap } from "./heat_map";
import { Incidents } from "./incidents";
import { lately, type Minute, minuteOf, series } from "./minute";

export function Now({ live }: { live: Live }) {
  const now = live.now;
  if (!now) {
    return (
      <>
        <div class="page-head">
          <h1>Now</h1>
        </div>
        <div class="tiles" aria-busy="true">
          {Array.from({ length: 5 }, (_, at) => (
            <div class="card tile" key={at} />
          ))}
        </div>
      </>
    );
  }
  const minute = minuteOf(now);
  const requests = series(minute, (second) => second.requests);
  const tokens = series(minute, (second) => second.tokens + second.generated);
  return (
    <>
      <div class="page-head">
        <h1>Now</h1>
        <p>
          up for {seconds(now.engine.uptime_s)} · process {now.engine.pid}
        </p>
      </div>
      <div class="stack">
        <Tiles now={now} minute={minute} requests={requests} tokens={tokens} />
        <Devices live={live} now={now} />
        <div class="columns">
          <Card title="Requests a second" end="last minute">
            <Area values={requests} label="Requests a second" format={count} />
          </Card>
          <Card title="Tokens a second" end="read and generated">
            <Area values={tokens} label="Tokens a second" format={count} colour="var(--kv)" />
          </Card>
        </div>
        <div class="columns wide-left">
          <HeatMap minute={minute} bounds={now.latency_bounds_ms} />
          <Batches minute={minute} bounds={now.batch_bounds} />
        </div>
        <div class="columns wide-left">
          <Incidents now={now} />
          <Fallbacks now={now} />
        </div>
        {now.engine.devices.length === 0 && <Empty title="No device" />}
      </div>
    </>
  );
}

function Tiles(props: { now: Snapshot; minute: Minute; requests: number[]; tokens: number[] }) {
  const { now, minute } = props;
  const { engine } = now;
  const latency = (part: number) => {
    const found = quantile(minute.latencies, now.latency_bounds_ms, part);
    return found === null ? "–" : seconds(found / 1000);
  };
  // Each stays on one line.
  const within = (part: number) => `${part * 100} % within ${latency(part)}`.replaceAll(" ", "\u00a0");
  return (
    <div class="tiles">
      <Tile name="Requests a second" value={count(lately(props.requests))} below={`${count(engine.performance.requests)} in the last minute`} />
      <Tile name="Tokens a second" value={count(lately(props.tokens))} below={`${count(engine.performance.texts_per_s)} texts a second`} />
      <Tile name="Latency" value={latency(0.5)} below={`${within(0.95)}, ${within(0.99)}`} />
      <Tile
        name="In the queue"
        value={String(engine.requests)}
        below={`${engine.waiting} waiting · ${count(engine.tokens)} tokens`}
        metric="magray_queue_requests"
        exact={engine.requests}
      />
      <Tile name="Fallbacks to the CPU" value={percent(engine.performance.fallback_rate, 1)} below="of the last minute's requests" />
    </div>
  );
}

function Tile(props: { name: string; value: string; below: string; metric?: string; exact?: number }) {
  return (
    <dl class="card tile">
      <dt>{props.name}</dt>
      <dd class="figure" {...(props.metric ? { "data-metric": props.metric, "data-value": props.exact } : {})}>
        {props.value}
      </dd>
      <dd class="below">{props.below}</dd>
    </dl>
  );
}
