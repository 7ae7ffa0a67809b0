// What went wrong with devices, and what became of the requests that they had.

import { Badge, Card, Empty } from "../parts";
import { ago, seconds, words } from "../state/numbers";
import type { Incident, Snapshot } from "../state/types";

/** What each code means. */
const CODES: Record<string, string> = {
  killed: "Its worker was killed",
  crashed: "Its worker crashed",
  overdue: "A batch took far too long",
  silent: "Its worker fell silent",
  gpu_fault: "The GPU faulted",
  out_of_memory: "Its memory was full",
  wrong_answers: "It gave wrong answers",
  transient: "A batch failed",
  lost: "The device is gone",
  ruled_out: "Its telemetry ruled it out",
  not_started: "Its worker did not start",
  start_overdue: "Its worker did not become ready",
  load_overdue: "Weights did not arrive in time",
  replaced: "Its worker was replaced",
};

export function Incidents({ now }: { now: Snapshot }) {
  return (
    <Card title="Incidents" hint="and what became of the requests">
      {now.incidents.length === 0 ? (
        <Empty title="Nothing went wrong">A worker that dies appears here within a second.</Empty>
      ) : (
        <ol class="incidents" aria-live="polite">
          {now.incidents.slice(0, 12).map((incident) => (
            <Line key={`${incident.device} ${incident.at_s}`} incident={incident} uptime={now.engine.uptime_s} />
          ))}
        </ol>
      )}
    </Card>
  );
}

function Line({ incident, uptime }: { incident: Incident; uptime: number }) {
  const isBack = incident.back_after_s !== null;
  return (
    <li data-incident={incident.code}>
      <i class={`dot ${isBack ? "good" : "warn"}`} />
      <div class="grow">
        <p>
          <strong>{CODES[incident.code] ?? words(incident.code)}</strong> <span class="muted">on {incident.device}</span>
        </p>
        <p class="small muted">{fate(incident)}</p>
      </div>
      <div class="right small">
        <Badge tone={isBack ? "good" : "warn"}>{isBack ? `back after ${seconds(incident.back_after_s)}` : "not back yet"}</Badge>
        <p class="muted">{ago(uptime, incident.at_s)}</p>
      </div>
    </li>
  );
}

/** What became of the requests, as a sentence. */
function fate(incident: Incident): string {
  const { requests, answered, refused, cancelled } = incident;
  if (requests === 0) return "It had no request at that moment: nothing was lost.";
  const open = requests - answered - refused - cancelled;
  const parts = [`${answered} answered all the same`];
  if (open > 0) parts.push(`${open} being computed elsewhere`);
  if (refused > 0) parts.push(`${refused} refused with an error`);
  if (cancelled > 0) parts.push(`${cancelled} no longer wanted`);
  return `It had ${requests} ${requests === 1 ? "request" : "requests"}: ${parts.join(", ")}.`;
}
