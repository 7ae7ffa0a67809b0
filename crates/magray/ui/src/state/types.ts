// What the server says of itself, as the page reads it.
// Types only; the server's side is control/snapshot.rs and control/report.rs.

export interface Features {
  magray: string;
  may_read: boolean;
  may_change: boolean;
  key: string | null;
  faults: boolean;
  evaluate: boolean;
  models: FeatureModel[];
}

export type Does = "embed" | "rank" | "classify" | "generate";

export interface FeatureModel {
  name: string;
  does: Does;
  outputs: number;
  max_tokens: number;
}

export interface Snapshot {
  at_ms: number;
  engine: Engine;
  memory: MemoryMap[];
  seconds: Second[];
  latency_bounds_ms: number[];
  batch_bounds: number[];
  fallbacks: { reason: string; requests: number }[];
  incidents: Incident[];
  moves: Move[];
}

export interface Engine {
  pid: number;
  magray: string;
  uptime_s: number;
  requests: number;
  waiting: number;
  tokens: number;
  gpu_memory_allocated_gb: number;
  performance: Performance;
  devices: Device[];
  models: Model[];
}

export interface Performance {
  window_s: number;
  requests: number;
  latency_mean_s: number | null;
  requests_per_s: number;
  texts_per_s: number;
  tokens_per_s: number;
  fallback_rate: number | null;
}

export interface Device {
  name: string;
  is_gpu: boolean;
  hardware: string | null;
  state: "starting" | "in_rotation" | "resting" | "recovering" | "out";
  reason: string | null;
  grade: string;
  worker_pid: number | null;
  memory_total_bytes: number | null;
  memory_used_bytes: number | null;
  memory_step: string;
  temperature_celsius: number | null;
  power_watts: number | null;
  power_limit_watts: number | null;
  utilisation_percent: number | null;
  weight: number;
  speed: number | null;
  kv_bytes: number;
  batches: number;
  batches_finished: number;
  texts_finished: number;
  busy_s: number;
  failures: number;
  worker_restarts: number;
  last_error: string | null;
}

export interface Model {
  name: string;
  location: "gpu" | "loading" | "cpu" | "unloaded";
  requests: number;
  idle_s: number;
  bytes: number;
  loads: number;
  offloads: number;
  idle_timeout_s: number | null;
  offload_after_use: boolean;
  pinned: boolean;
  priority: "low" | "normal" | "high";
  residency: { device: string; where: string }[];
}

export type Owner = "weights" | "kv" | "vectors" | "workspace" | "context";

export interface MemoryMap {
  device: string;
  total_bytes: number | null;
  others_bytes: number | null;
  accounts: { owner: Owner; model: string | null; bytes: number }[];
}

export interface Second {
  second: number;
  requests: number;
  texts: number;
  tokens: number;
  generated: number;
  fallbacks: number;
  latencies: number[];
  batches: number[];
}

export interface Incident {
  device: string;
  code: string;
  at_s: number;
  back_after_s: number | null;
  requests: number;
  answered: number;
  refused: number;
  cancelled: number;
}

export interface Move {
  model: string;
  device: string | null;
  kind: "load" | "offload" | "forget";
  reason: string | null;
  at_s: number;
  took_s: number | null;
  is_done: boolean | null;
}
