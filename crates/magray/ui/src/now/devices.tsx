// The devices: state, speed, temperature, power, and a map of the memory by who holds it.

import { Badge, Card } from "../parts";
import { bytes, count, percent, words } from "../state/numbers";
import type { Live } from "../state/live";
import type { Device, MemoryMap, Owner, Snapshot } from "../state/types";

export function Devices({ live, now }: { live: Live; now: Snapshot }) {
  return (
    <div class="devices">
      {now.engine.devices.map((device, at) => (
        <DeviceCard key={device.name} device={device} map={now.memory[at] ?? null} busy={busyLately(live, at)} />
      ))}
    </div>
  );
}

/** The part of the last seconds in which it computed. */
function busyLately(live: Live, at: number): number | null {
  const last = live.past.at(-1);
  const before = live.past.at(-7) ?? live.past[0];
  if (!last || !before || last === before) return null;
  const busy = (last.busy_s[at] ?? 0) - (before.busy_s[at] ?? 0);
  return Math.min(1, Math.max(0, busy / (last.uptime_s - before.uptime_s)));
}

const STATES: Record<Device["state"], ["good" | "warn" | "bad" | "accent", string]> = {
  starting: ["accent", "Starting"],
  in_rotation: ["good", "In use"],
  resting: ["accent", "Resting"],
  recovering: ["warn", "Recovering"],
  out: ["bad", "Out of use"],
};

function DeviceCard({ device, map, busy }: { device: Device; map: MemoryMap | null; busy: number | null }) {
  const [tone, state] = STATES[device.state];
  return (
    <Card
      title={device.name}
      hint={device.hardware ?? (device.is_gpu ? "simulated" : "this machine")}
      end={
        <>
          {device.reason && <span>{words(device.reason)}</span>}
          <Badge tone={tone}>{state}</Badge>
        </>
      }
    >
      <dl class="facts">
        <Fact name="Busy" value={percent(busy)} part={busy} />
        <Fact name="Speed" value={device.speed === null ? "–" : percent(device.speed)} part={device.speed} hint={device.speed === null ? undefined : "of its best"} />
        {device.is_gpu && (
          <>
            <Fact name="Temperature" value={device.temperature_celsius === null ? "–" : `${device.temperature_celsius} °C`} metric="magray_device_temperature_celsius" device={device.name} exact={device.temperature_celsius} />
            <Fact
              name="Power"
              value={device.power_watts === null ? "–" : `${device.power_watts.toFixed(0)} W`}
              part={device.power_watts !== null && device.power_limit_watts ? device.power_watts / device.power_limit_watts : null}
              hint={device.power_limit_watts ? `of ${device.power_limit_watts.toFixed(0)} W` : undefined}
            />
          </>
        )}
        <Fact name="Texts" value={count(device.texts_finished)} metric="magray_device_texts_total" device={device.name} exact={device.texts_finished} />
        <Fact name="Batches" value={count(device.batches_finished)} metric="magray_device_batches_total" device={device.name} exact={device.batches_finished} hint={device.batches > 0 ? `${device.batches} now` : undefined} />
        <Fact name="Failures" value={String(device.failures)} metric="magray_device_failures_total" device={device.name} exact={device.failures} hint={device.worker_restarts > 0 ? `${device.worker_restarts} new ${device.worker_restarts === 1 ? "worker" : "workers"}` : undefined} />
      </dl>
      {map && <Memory map={map} isGpu={device.is_gpu} />}
      {device.last_error && <p class="last-error">{device.last_error}</p>}
    </Card>
  );
}

function Fact(props: { name: string; value: string; hint?: string | undefined; part?: number | null; metric?: string; device?: string; exact?: number | null }) {
  const marks = props.metric && props.exact !== null && props.exact !== undefined ? { "data-metric": props.metric, "data-device": props.device, "data-value": props.exact } : {};
  return (
    <div>
      <dt>{props.name}</dt>
      <dd {...marks}>
        {props.value}
        {props.hint && <small>{props.hint}</small>}
      </dd>
      {props.part !== undefined && props.part !== null && (
        <dd class="bar" aria-hidden="true">
          <i style={{ transform: `scaleX(${Math.min(1, Math.max(0, props.part)).toFixed(3)})` }} />
        </dd>
      )}
    </div>
  );
}

const OWNERS: Record<Owner | "others" | "free", string> = {
  weights: "Weights",
  kv: "Keys and values",
  vectors: "Vectors",
  workspace: "Workspace",
  context: "Context",
  others: "Other processes",
  free: "Free",
};

interface Part {
  owner: keyof typeof OWNERS;
  model: string | null;
  bytes: number;
}

function Memory({ map, isGpu }: { map: MemoryMap; isGpu: boolean }) {
  const order = Object.keys(OWNERS);
  const parts: Part[] = map.accounts.filter((account) => account.bytes > 0);
  if (map.others_bytes) parts.push({ owner: "others", model: null, bytes: map.others_bytes });
  const held = parts.reduce((sum, part) => sum + part.bytes, 0);
  const total = Math.max(map.total_bytes ?? 0, held);
  if (map.total_bytes !== null && total > held) parts.push({ owner: "free", model: null, bytes: total - held });
  parts.sort((a, b) => order.indexOf(a.owner) - order.indexOf(b.owner));
  if (total === 0) return <p class="muted small">{isGpu ? "No worker is there: nothing of its memory is held." : "Holds no weights at this moment."}</p>;
  const name = (part: Part) => OWNERS[part.owner] + (part.model ? ` of ${part.model}` : "");
  return (
    <figure class="memory">
      <div class="memory-bar" role="img" aria-label={`Memory of ${map.device}: ${parts.map((part) => `${name(part)} ${bytes(part.bytes)}`).join(", ")}`}>
        {parts.map((part) => (
          <i key={name(part)} class={`own-${part.owner}`} title={`${name(part)}: ${bytes(part.bytes)}`} style={{ flexGrow: part.bytes / total }} />
        ))}
      </div>
      <figcaption>
        <ul>
          {parts.map((part) => (
            <li key={name(part)}>
              <i class={`own-${part.owner}`} />
              <span>{name(part)}</span>
              <b>{bytes(part.bytes)}</b>
            </li>
          ))}
        </ul>
      </figcaption>
    </figure>
  );
}
