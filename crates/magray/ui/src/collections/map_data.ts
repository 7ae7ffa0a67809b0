// The picture of a collection as the server sends it: a head in JSON, then numbers as bytes.

import { ask } from "../state/server";

export interface MapData {
  total: number;
  axes: number;
  shares: number[];
  ids: (number | string)[];
  values: Float32Array;
}

export interface Values {
  names: string[];
  /** One a point: the place of its name. */
  of: Uint16Array;
}

export const NO_VALUE = 65535;

export interface Drawn {
  collection: string;
  vector: string;
  limit: number;
}

function route(drawn: Drawn, what: "map" | "values", field?: string): string {
  const query = new URLSearchParams({ vector: drawn.vector, limit: String(drawn.limit) });
  if (field) query.set("field", field);
  return `/ui/collections/${encodeURIComponent(drawn.collection)}/${what}?${query}`;
}

async function read<H>(path: string, signal: AbortSignal): Promise<[H, ArrayBuffer]> {
  const response = await ask(path, { signal, accept: "application/octet-stream" });
  const bytes = await response.arrayBuffer();
  const length = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))) as H;
  return [head, bytes.slice(4 + length)];
}

export async function readMap(drawn: Drawn, signal: AbortSignal): Promise<MapData> {
  const [head, numbers] = await read<Omit<MapData, "values">>(route(drawn, "map"), signal);
  return { ...head, values: new Float32Array(numbers) };
}

export async function readValues(drawn: Drawn, field: string, signal: AbortSignal): Promise<Values> {
  const [head, numbers] = await read<{ names: string[] }>(route(drawn, "values", field), signal);
  return { names: head.names, of: new Uint16Array(numbers) };
}
