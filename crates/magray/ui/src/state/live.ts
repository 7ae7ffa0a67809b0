// The server from moment to moment: one stream of events for all views, with what the page remembers of it.
// Reconnects by itself, and never asks while the page cannot be seen.

import { useEffect, useState } from "preact/hooks";
import { ask, askJson, events, Refused } from "./server";
import type { Features, Snapshot } from "./types";

export type Link = "connecting" | "live" | "lost" | "key";

export interface Live {
  link: Link;
  now: Snapshot | null;
  features: Features | null;
  /** Earlier moments, the oldest first. */
  past: Past[];
}

/** What is kept of an earlier moment. */
export interface Past {
  uptime_s: number;
  waiting: number;
  requests: number;
  busy_s: number[];
}

const PAST_MAX = 140;
const AGAIN_MS = 1000;
/** The server tells something twice a second: a connection that is silent for so long is dead, though nobody closed it. */
const SILENT_MS = 10_000;

let live: Live = { link: "connecting", now: null, features: null, past: [] };
const watchers = new Set<(live: Live) => void>();
let stop = new AbortController();

function change(part: Partial<Live>): void {
  live = { ...live, ...part };
  for (const watcher of watchers) watcher(live);
}

export function useLive(): Live {
  const [seen, see] = useState(live);
  useEffect(() => {
    watchers.add(see);
    see(live);
    return () => void watchers.delete(see);
  }, []);
  return seen;
}

/** Asks again what there is: after a key has come or gone, or a model. */
export async function refreshFeatures(signal?: AbortSignal): Promise<Features> {
  const features = await askJson<Features>("/ui/features", signal ? { signal } : {});
  // An answer to the key before says nothing of this one.
  if (!signal?.aborted) change({ features });
  return features;
}

/** Begins anew, with the key that is there now. */
export function reconnect(): void {
  stop.abort();
  stop = new AbortController();
  change({ link: "connecting", now: null, past: [] });
  void follow(stop.signal);
}

async function follow(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const line = listening(signal);
    try {
      const features = await refreshFeatures(line.signal);
      if (signal.aborted) return;
      if (!features.may_read) {
        change({ link: "key" });
        return;
      }
      const response = await ask("/ui/events", { signal: line.signal, accept: "text/event-stream" });
      for await (const data of events(response)) {
        if (signal.aborted) return;
        line.heard();
        take(JSON.parse(data) as Snapshot);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
        change({ link: "key" });
        return;
      }
    } finally {
      line.end();
    }
    change({ link: "lost" });
    await new Promise((again) => setTimeout(again, AGAIN_MS));
  }
}

/** A signal that comes with this one, or when nothing was heard for too long. */
function listening(signal: AbortSignal): { signal: AbortSignal; heard: () => void; end: () => void } {
  const silent = new AbortController();
  let timer = 0;
  const end = () => clearTimeout(timer);
  const heard = () => {
    end();
    timer = setTimeout(() => silent.abort(), SILENT_MS);
  };
  heard();
  return { signal: AbortSignal.any([signal, silent.signal]), heard, end };
}

function take(now: Snapshot): void {
  const last = live.past.at(-1);
  // Another process has another uptime.
  const past = last && last.uptime_s > now.engine.uptime_s ? [] : live.past;
  const { uptime_s, waiting, requests, devices } = now.engine;
  const moment = { uptime_s, waiting, requests, busy_s: devices.map((device) => device.busy_s) };
  change({ link: "live", now, past: [...past, moment].slice(-PAST_MAX) });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stop.abort();
  } else if (stop.signal.aborted) {
    stop = new AbortController();
    void follow(stop.signal);
  }
});
