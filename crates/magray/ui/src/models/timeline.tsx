// When models came to devices and left them, and why: a lane for each model on each device, and the moves as a list.

import { useState } from "preact/hooks";
import { Badge, Card, Empty, Tabs, useWidth } from "../parts";
import { ago, seconds } from "../state/numbers";
import type { Move, Snapshot } from "../state/types";

/** What each reason means. */
const REASONS: Record<string, string> = {
  needed: "a request needed it",
  preheated: "it was woken",
  restored: "its worker had ended, or it belongs there",
  requested: "it was asked to go",
  evicted: "another needed the memory",
  idle: "nothing came for its idle time-out",
  after_use: "it leaves after each use",
};

const WINDOWS = [
  ["60", "1 min"],
  ["600", "10 min"],
  ["3600", "1 h"],
] as const;

const LANE = 36;

export function Timeline({ now }: { now: Snapshot }) {
  const [span, setSpan] = useState<(typeof WINDOWS)[number][0]>("600");
  return (
    <Card title="Residency" hint="when models came and left, and why" end={<Tabs label="Span" tabs={WINDOWS} chosen={span} choose={setSpan} />}>
      {now.moves.length === 0 ? (
        <Empty title="No model has moved yet">The first request for a model loads it.</Empty>
      ) : (
        <>
          <Lanes now={now} span={Number(span)} />
          <div class="scroll-x" tabIndex={0} role="region" aria-label="Moves of models">
            <table class="rows moves">
              <thead>
                <tr>
                  <th>When</th>
                  <th>Model</th>
                  <th>Move</th>
                  <th>Why</th>
                  <th class="right">Took</th>
                </tr>
              </thead>
              <tbody>
                {now.moves.slice(0, 14).map((move) => (
                  <tr key={`${move.model} ${move.device} ${move.at_s}`}>
                    <td class="muted">{ago(now.engine.uptime_s, move.at_s)}</td>
                    <td>
                      <strong>{move.model}</strong>
                    </td>
                    <td>{words(move)}</td>
                    <td class="muted">{move.reason ? REASONS[move.reason] : "it was released"}</td>
                    <td class="right">{move.took_s === null ? <Badge tone="warn">under way</Badge> : move.is_done ? seconds(move.took_s) : <Badge tone="bad">failed</Badge>}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </Card>
  );
}

function words(move: Move): string {
  if (move.kind === "load") return `came to ${move.device}`;
  if (move.kind === "offload") return `left ${move.device}`;
  return "left the host's memory";
}

interface Lane {
  name: string;
  device: string;
  stays: { from: number; to: number; arriving: number; why: string }[];
}

/** The time that each model spent on each device, from its moves; what began before the first that is kept begins there. */
export function lanesOf(now: Snapshot): Lane[] {
  const lanes = new Map<string, Lane>();
  const uptime = now.engine.uptime_s;
  for (const move of [...now.moves].reverse()) {
    if (move.device === null) continue;
    const key = `${move.model} ${move.device}`;
    const lane = lanes.get(key) ?? { name: move.model, device: move.device, stays: [] };
    lanes.set(key, lane);
    const end = move.at_s + (move.took_s ?? Math.max(0, uptime - move.at_s));
    const open = lane.stays.at(-1);
    if (move.kind === "load" && move.is_done !== false) {
      if (open && open.to === uptime) open.to = move.at_s;
      lane.stays.push({ from: move.at_s, to: uptime, arriving: end, why: move.reason ?? "" });
    } else if (move.kind === "offload") {
      if (open && open.to === uptime) open.to = end;
      else lane.stays.push({ from: 0, to: end, arriving: 0, why: "" });
    }
  }
  // A worker that died took its models along: only the present says so.
  for (const lane of lanes.values()) {
    const place = now.engine.models.find((model) => model.name === lane.name)?.residency.find((at) => at.device === lane.device)?.where;
    const open = lane.stays.at(-1);
    const isThere = place === "on_gpu" || place === "ready" || place === "loading" || place === "leaving";
    if (open && open.to === uptime && !isThere) open.to = Math.max(open.from, lastIncident(now, lane.device) ?? open.arriving);
  }
  return [...lanes.values()].sort((a, b) => a.name.localeCompare(b.name) || a.device.localeCompare(b.device));
}

function lastIncident(now: Snapshot, device: string): number | undefined {
  return now.incidents.find((incident) => incident.device === device)?.at_s;
}

function Lanes({ now, span }: { now: Snapshot; span: number }) {
  const [element, width] = useWidth<HTMLDivElement>();
  const lanes = lanesOf(now);
  const left = Math.min(190, width * 0.36);
  const uptime = now.engine.uptime_s;
  const x = (at: number) => left + Math.max(0, 1 - (uptime - at) / span) * (width - left);
  const height = lanes.length * LANE + 22;
  return (
    <div ref={element} class="lanes">
      <svg width={width} height={height} role="img" aria-label={`Residency of ${lanes.length} lanes; the table below has the same moves`}>
        {[0, 0.25, 0.5, 0.75, 1].map((part) => (
          <g key={part}>
            <line x1={left + part * (width - left)} x2={left + part * (width - left)} y1="0" y2={height - 20} stroke="var(--line)" />
            <text class="axis" x={left + part * (width - left)} y={height - 5} text-anchor={part === 1 ? "end" : part === 0 ? "start" : "middle"}>
              {part === 1 ? "now" : `${seconds(span * (1 - part))} ago`}
            </text>
          </g>
        ))}
        {lanes.map((lane, row) => (
          <g key={`${lane.name} ${lane.device}`}>
            <text x="0" y={row * LANE + 15} class="lane-name">
              {lane.name.length > 22 ? `${lane.name.slice(0, 21)}…` : lane.name}
            </text>
            <text x="0" y={row * LANE + 28} class="axis">
              {lane.device}
            </text>
            {lane.stays
              .filter((stay) => stay.to > uptime - span)
              .map((stay) => (
                <g key={stay.from}>
                  <rect class="stay" x={x(stay.from)} y={row * LANE + 7} width={Math.max(3, x(stay.to) - x(stay.from))} height={LANE - 15} rx="5">
                    <title>{`${lane.name} on ${lane.device} for ${seconds(stay.to - stay.from)}${stay.why ? `: ${REASONS[stay.why] ?? stay.why}` : ""}`}</title>
                  </rect>
                  {stay.arriving > stay.from && stay.arriving > uptime - span && (
                    <rect class="arriving" x={x(stay.from)} y={row * LANE + 7} width={Math.max(2, x(Math.min(stay.arriving, stay.to)) - x(stay.from))} height={LANE - 15} rx="5" />
                  )}
                </g>
              ))}
          </g>
        ))}
      </svg>
    </div>
  );
}
