// Numbers as people read them. Rounds only what is shown; the exact value stands beside it where a test compares.

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

export function count(value: number): string {
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  if (value >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(1);
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.1) return `${(value * 1e3).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1e3).toFixed(0)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 && !Number.isInteger(value) ? 1 : 0)} s`;
  const [large, of, small, size] = value < 3600 ? ["min", 60, "s", 1] : value < 86400 ? ["h", 3600, "min", 60] : ["d", 86400, "h", 3600];
  const rest = Math.floor((value % of) / size);
  return `${Math.floor(value / of)} ${large}${rest > 0 ? ` ${rest} ${small}` : ""}`;
}

export function ago(uptime: number, at: number): string {
  const past = Math.max(0, uptime - at);
  return past < 1 ? "just now" : `${past < 60 ? `${past.toFixed(0)} s` : seconds(past)} ago`;
}

export function percent(part: number | null | undefined, digits = 0): string {
  return part === null || part === undefined ? "–" : `${(part * 100).toFixed(digits)} %`;
}

/** A word of a program as a word of people. */
export function words(code: string): string {
  return code.replaceAll("_", " ");
}

/** The latency that a part of the requests is below, of counts by bucket; the bound of its bucket. */
export function quantile(counts: number[], bounds: number[], part: number): number | null {
  const all = counts.reduce((sum, value) => sum + value, 0);
  if (all === 0) return null;
  let seen = 0;
  for (const [at, value] of counts.entries()) {
    if (seen + value >= part * all) {
      const low = at === 0 ? 0 : (bounds[at - 1] ?? 0);
      const high = bounds[at] ?? low * 2;
      return low + ((high - low) * (part * all - seen)) / Math.max(value, 1);
    }
    seen += value;
  }
  return bounds.at(-1) ?? null;
}
