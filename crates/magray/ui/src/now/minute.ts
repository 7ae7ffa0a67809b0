// The last minute, second by second: what was computed, with zeroes for the seconds without anything.
// Leaves out the second that is under way.

import type { Second, Snapshot } from "../state/types";

export const SECONDS = 60;

export interface Minute {
  /** Sixty, the oldest first; `null`: before the engine's start or without anything. */
  seconds: (Second | null)[];
  latencies: number[];
  batches: number[];
}

export function minuteOf(now: Snapshot): Minute {
  const last = Math.floor(now.engine.uptime_s) - 1;
  const byNumber = new Map(now.seconds.map((second) => [second.second, second]));
  const seconds = Array.from({ length: SECONDS }, (_, at) => byNumber.get(last - SECONDS + 1 + at) ?? null);
  const sum = (of: (second: Second) => number[], length: number) => {
    const sums = new Array<number>(length).fill(0);
    for (const second of now.seconds) for (const [at, value] of of(second).entries()) sums[at]! += value;
    return sums;
  };
  return {
    seconds,
    latencies: sum((second) => second.latencies, now.latency_bounds_ms.length + 1),
    batches: sum((second) => second.batches, now.batch_bounds.length + 1),
  };
}

export function series(minute: Minute, of: (second: Second) => number): number[] {
  return minute.seconds.map((second) => (second ? of(second) : 0));
}

/** The mean of the last seconds: one alone jumps. */
export function lately(values: number[], over = 5): number {
  const last = values.slice(-over);
  return last.reduce((sum, value) => sum + value, 0) / Math.max(1, last.length);
}
